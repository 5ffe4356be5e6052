"""The table of draws, and its figure: shares with Wilson's interval, areas with a bootstrap over draws."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from benchmarks.diff.networks import NOISE
from mhprobe.io.files import write
from mhprobe.report.figures import style
from mhprobe.report.runs.facts import made_by
from mhprobe.stats.intervals import bootstrap
from mhprobe.stats.significance import wilson

Rows = Sequence[Mapping[str, Any]]
COLUMNS = ("what", "of", "grade", "noise", "draws", "number", "value", "low", "high")
TABLE = Path("tables", "diff_levels.csv")
FIGURE = Path("figures", "diff_levels.png")
PANELS = {
    "area under the ROC curve": "area under the ROC curve",
    "flagged": "share of disturbed heads that are flagged",
}
# what a share is of: of all heads that nothing was done to
CALLED = {
    "int4": "block with 4-bit projection named first",
    "unchanged": "runs that flag any head",
    "images": "runs that flag any head",
}


def share(values: Iterable[object]) -> list[float]:
    """Share of those that are true, and the ends of its interval."""
    flags = torch.tensor([bool(value) for value in values])
    low, high = wilson(flags.sum()[None], torch.tensor([len(flags)]))
    return [float(flags.double().mean()), float(low), float(high)]


def mean(values: Iterable[float]) -> list[float]:
    """Mean, and the ends of its interval."""
    numbers = torch.tensor([list(values)], dtype=torch.float64)
    low, high = bootstrap(numbers)
    return [float(numbers.mean()), float(low), float(high)]


def table(draws: Sequence[Rows]) -> list[dict[str, Any]]:
    """Rows of ``COLUMNS`` from all draws that there are."""
    rows = [row for draw in draws for row in draw]
    found = []
    planted = [row for row in rows if row["kind"] == "planted"]
    for ground in dict.fromkeys(row["ground"] for row in planted):
        for grade, noise in NOISE.items():
            of = [row for row in planted if (row["ground"], row["grade"]) == (ground, grade)]
            about = ("planted head", ground, grade, noise, len(of))
            found += [
                [*about, "area under the ROC curve", *mean(row["auc"] for row in of)],
                [*about, "flagged", *share(row["found"] for row in of)],
                [*about, "another head flagged", *share(row["others"] > 0 for row in of)],
            ]
    for kind, called in CALLED.items():
        of = [row for row in rows if row["kind"] == kind]
        for way in sorted({str(row.get("way", "")) for row in of}):
            those = [row for row in of if row.get("way", "") == way]
            about = (kind, way, "", "", len(those))
            found.append([*about, called, *share(row["found"] for row in those)])
    return [dict(zip(COLUMNS, row, strict=True)) for row in found]


def write_table(draws: Sequence[Rows], docs: Path) -> str:
    """Write tables/diff_levels.csv of docs, and return the table as text."""
    rows = table(draws)
    file = docs / TABLE
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as open_file:
        writer = csv.DictWriter(open_file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            ends = {key: f"{row[key]:.4f}" for key in ("value", "low", "high")}
            writer.writerow({**row, **ends})
    return "\n".join(_line(row) for row in rows)


def _line(row: Mapping[str, Any]) -> str:
    name = " ".join(str(row[key]) for key in ("what", "of", "grade") if row[key] != "")
    ends = f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
    return f"{name}: {row['number']} {ends}, {row['draws']} draws"


def draw(docs: Path) -> Path:
    """Write figures/diff_levels.png of docs from the table there, and return its path."""
    with (docs / TABLE).open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["what"] == "planted head"]
    origin = made_by("python -m benchmarks.diff")
    with tempfile.TemporaryDirectory() as folder:
        picture, _ = style.save_figure(sensitivity(rows), Path(folder, FIGURE.stem), origin=origin)
        return write(docs / FIGURE, picture.read_bytes())


def sensitivity(rows: Sequence[Mapping[str, str]]) -> Figure:
    """Draw how well disturbed heads are told apart, and how many are flagged, by the disturbance.

    rows: of the table, of planted heads. A curve for each precision of the copy.
    """
    with style.canvas((6.6, 2.5)) as figure:
        for at, (number, title) in enumerate(PANELS.items()):
            axes = style.axes_at(figure, 0.55 + 3.2 * at, 0.5, 2.5, 1.6)
            of_panel = [row for row in rows if row["number"] == number]
            for shade, precision in enumerate(dict.fromkeys(row["of"] for row in of_panel)):
                of = [row for row in of_panel if row["of"] == precision]
                ends = [[float(row[key]) for row in of] for key in ("value", "low", "high")]
                noise = [100 * float(row["noise"]) for row in of]
                style.band(axes, noise, ends, f"C{shade}", marker="o", ms=3, label=precision)
            axes.set_xscale("log")
            axes.set_xticks(noise, [f"{share:g}" for share in noise])
            axes.minorticks_off()
            axes.set_ylim(-0.03, 1.03)
            axes.set_xlabel("noise in a head's weights, % of their length")
            axes.set_title(title, loc="left")
        axes.legend(title="B is a copy in", loc="lower right")
        return figure
