"""python -m mhprobe.studies.voita: heads pruned from trained weights, against the same heads trained from scratch."""

from mhprobe.lab.papers.voita import run

__all__ = ["run"]

if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("studies.voita")
