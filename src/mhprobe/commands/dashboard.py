"""python -m mhprobe.dashboard ENTITY/PROJECT: a W&B workspace and a report of a project's runs, as code.

Prints the specification; ``--save`` sends both to W&B. ``--group`` takes the runs of one sweep or experiment.
"""

import argparse
import json
import sys

from mhprobe.errors import UserError


def main(arguments: list[str] | None = None) -> None:
    """Print what the views hold, or save them and print their addresses."""
    parser = argparse.ArgumentParser(prog="python -m mhprobe.dashboard", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("project", help="entity/project")
    parser.add_argument("--group", help="only the runs of this sweep or experiment")
    parser.add_argument("--measures", nargs="+", default=["gate_importance", "svcca"], help="whose maps are shown")
    parser.add_argument("--curves", nargs="+", default=None, help="masking curves; those of masking=six_curves")
    parser.add_argument("--save", action="store_true", help="send both to W&B (needs a key)")
    told = parser.parse_args(arguments)
    try:
        from mhprobe.report.workspace import specification, views

        made = views(told.project, told.group, told.measures, told.curves or _curves())
        if told.save:
            for view in made:
                print(view.save().url)
            return
        print(json.dumps([specification(view) for view in made], indent=2))
    except UserError as error:
        print(f"mhprobe: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _curves() -> list[str]:
    from omegaconf import OmegaConf

    from mhprobe.run.sections import CONF

    return [str(name) for name in OmegaConf.load(CONF / "masking" / "six_curves.yaml").curves]


if __name__ == "__main__":
    main()
