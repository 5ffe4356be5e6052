"""python -m mhprobe.studies.sweep FOLDER [--probe RUN] [--weights W]: the runs of a sweep over gates, side by side.

FOLDER is that of ``mhprobe.train -m ... gates.penalty.weight=0.01,0.03,0.1``. Writes
FOLDER/tables/sweep.csv and FOLDER/figures/sweep.png: accuracy against heads kept, beside that of
W. Writes tables/survivors.csv and figures/survivors.png: which heads survive, by stage and
block, on a Swin by plain or shifted windows, with RUN also by function. RUN is a probed run of the
whole model with the measures that ``survival`` takes (position, token_kinds, entropy,
attention_distance, rarity, and object_attention where images have masks). It takes seconds, without
torch.
"""

from pathlib import Path

from mhprobe.errors import one_line
from mhprobe.io.options import Parser


@one_line()
def main() -> None:
    from mhprobe.lab.papers.sweep import write_sweep
    from mhprobe.report.runs.facts import origin_of_script

    about = (__doc__ or "").partition(":")[2]
    parser = Parser(prog="python -m mhprobe.studies.sweep", description=about)
    parser.add_argument(
        "folder", type=Path, help="the sweep's folder, with one run in each folder below it"
    )
    parser.add_argument(
        "--probe", type=Path, help="a probed run of the whole model: its heads, and its accuracy"
    )
    parser.add_argument(
        "--weights", type=Path, help="the whole network, for the accuracy stored beside it"
    )
    parser.add_argument(
        "--style",
        choices=["screen", "paper"],
        default="screen",
        help="of figures: paper fits columns",
    )
    options = parser.parse_args()
    origin = origin_of_script("studies.sweep")
    print(
        *write_sweep(options.folder, options.probe, options.style, options.weights, origin),
        sep="\n",
    )


if __name__ == "__main__":
    main()
