"""python -m mhprobe.dashboard ENTITY/PROJECT: a W&B workspace and a report of a project's runs, as code.

Prints the specification; ``--save`` sends both to W&B. ``--group`` takes the runs of one sweep or
experiment.
"""

import json

from mhprobe.errors import one_line
from mhprobe.io.options import Parser


@one_line()
def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m mhprobe.dashboard", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("project", help="entity/project")
    parser.add_argument("--group", help="only the runs of this sweep or experiment")
    parser.add_argument(
        "--measures", nargs="+", default=["gate_importance", "svcca"], help="whose maps are shown"
    )
    parser.add_argument(
        "--curves", nargs="+", default=None, help="masking curves; the default ones"
    )
    parser.add_argument("--save", action="store_true", help="send both to W&B (needs a key)")
    options = parser.parse_args(arguments)
    from omegaconf import OmegaConf

    from mhprobe.framework.loggers.workspace import specification, views
    from mhprobe.framework.run.sections import CONF

    curves = options.curves or list(
        map(str, OmegaConf.load(CONF / "masking" / "three_curves.yaml").curves)
    )
    pages = views(options.project, options.group, options.measures, curves)
    if options.save:
        print(*(view.save().url for view in pages), sep="\n")
    else:
        print(json.dumps([specification(view) for view in pages], indent=2))


if __name__ == "__main__":
    main()
