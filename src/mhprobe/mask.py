"""python -m mhprobe.mask: the masking curves of trained weights (no training)."""

from mhprobe.probe import run

__all__ = ["run"]


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("mask")
