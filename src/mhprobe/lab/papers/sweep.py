"""Sweeps over gates: the runs side by side, and which heads survive, for ``mhprobe.studies.sweep``.

FOLDER is that of ``mhprobe.train -m ... gates.penalty.weight=0.01,0.03,0.1``. Writes
FOLDER/tables/sweep.csv and FOLDER/figures/sweep.png: accuracy against heads kept, beside that of
WHOLE. Writes tables/survivors.csv and figures/survivors.png: which heads survive, by stage and
block, on a Swin by plain or shifted windows, with RUN also by function. RUN is a probed run of the
whole model with the measures that ``survival`` takes (position, token_kinds, entropy,
attention_distance, rarity, and object_attention where images have masks). It takes seconds, without
torch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from mhprobe.errors import UserError
from mhprobe.io.head_tables import DIGEST, check_layout, read_column, read_heads
from mhprobe.measures.parts.functions import USED, functions
from mhprobe.report.runs.folder import Folder, reading
from mhprobe.report.runs.run import jobs, read_run
from mhprobe.report.tables import Table, from_rows
from mhprobe.stats.survival import Survivors, survivors

METRICS = (
    "gates/kept",
    "gates/heads",
    "gates/binary_accuracy",
    "test/accuracy",
    "gates/binary_loss",
    "test/loss",
    "test/images",
)
Groups = dict[str, list[tuple[str, ...]]]  # by division (A,) the groups of each head


class GatesOfRun(NamedTuple):
    """Heads of a run, by its tables/gates.csv.

    digest: of the layout, empty if the table has none.
    """

    path: Path
    digest: str
    kept: list[bool]  # (A,)
    groups: Groups  # by stage, block and, where a model shifts windows, kind of window

    @property
    def num_heads(self) -> int:
        return len(self.kept)


class GatedRun(NamedTuple):
    """One finished run: its folder's name, the settings that differ from other runs, its numbers and its gates."""

    name: str
    settings: dict[str, str]
    metrics: dict[str, float]
    gates: GatesOfRun
    description: dict[str, Any]
    images: str | None  # digest of its test images, if it kept which were right


def finished_runs(folder: Path) -> list[GatedRun]:
    """Read the finished runs with learned gates below ``folder``, fewest heads first.

    UserError if there are none.
    """
    runs = [run for job in jobs(folder) if (run := _read(job))]
    if not runs:
        raise UserError(
            f"sweep: {folder} has no finished run with learned gates. Give the sweep's folder, as "
            "in "
            f"outputs/<name>/sweep_<time>."
        )
    shared = (
        set.intersection(*(set(run.settings.items()) for run in runs)) if len(runs) > 1 else set()
    )
    runs = [
        run._replace(settings={k: v for k, v in run.settings.items() if (k, v) not in shared})
        for run in runs
    ]
    return sorted(runs, key=lambda run: run.metrics["gates/kept"])


def table(runs: Sequence[GatedRun]) -> Table:
    settings = list(dict.fromkeys(key for run in runs for key in run.settings))
    columns = ["run", *settings, *(name.removeprefix("gates/") for name in METRICS)]
    cells = [
        [*(run.settings.get(key, "") for key in settings), *map(run.metrics.__getitem__, METRICS)]
        for run in runs
    ]
    return Table(columns, [[run.name, *row] for run, row in zip(runs, cells, strict=True)])


def write_sweep(
    folder: Path,
    probe: Path | None = None,
    style: str = "screen",
    whole: float | Path | None = None,
    origin: Mapping[str, str] = MappingProxyType({}),
) -> list[Path]:
    """Write tables and figures of the sweep in ``folder``; return their files.

    origin: as in ``style.save_figure``.

    probe: a probed run of the whole model. whole: its test accuracy, or its weights; None for that
    of ``probe``.
    """
    from mhprobe.report.figures import pruned
    from mhprobe.report.report import Report, Result, Sample

    runs = finished_runs(folder)
    first = runs[0]
    chance = 1 / max(1, len(first.description.get("class_names", ())))
    right = None if probe is None else read_run(probe).outcomes()
    if whole is None and right is not None and right.images == first.images:
        whole = float(right.right.double().mean())
    whole = _whole(whole, first.description) if isinstance(whole, Path) else whole
    images = int(first.metrics["test/images"])
    heads = int(first.metrics["gates/heads"])
    report = Report(folder, style=style)
    report.origin, report.data, report.images = (
        origin,
        first.description.get("data", ""),
        Sample(images, "test"),
    )
    plotted = ("gates/kept", "test/accuracy", "gates/binary_accuracy")
    points = [tuple(run.metrics[name] for name in plotted) for run in runs]
    retained = Result(
        table(runs), pruned.retained(points, images, heads, whole, chance), drawn="retained"
    )
    rows, about = (
        survivors_of(runs, probe),
        ("heads of the group that are kept", "pruning spares the group"),
    )
    kept = Result(
        from_rows([row._asdict() for row in rows]),
        pruned.survival(rows),
        of=Sample(),
        drawn="survival",
    )
    sweep = retained.saying("test accuracy", "a better network")
    return report.add({"sweep": sweep, "survivors": kept.saying(*about)})


def survivors_of(runs: Sequence[GatedRun], probe: Path | None = None) -> list[Survivors]:
    """Count the heads that each run keeps, by group; with ``probe`` also by function.

    UserError for two models.
    """
    first = runs[0].gates
    for other in (run.gates for run in runs):
        if (other.num_heads, other.digest) != (first.num_heads, first.digest):
            raise UserError(
                f"sweep: {other.path} and {first.path} are of two models, {other.num_heads} heads "
                f"({other.digest or 'no layout'}) and {first.num_heads} "
                f"({first.digest or 'no layout'}). Compare runs "
                f"of one."
            )
    groups = dict(first.groups)
    if probe is not None:
        groups["label"] = functions(probe_columns(probe, first), first.num_heads)
    return [row for run in runs for row in survivors(run.name, run.gates.kept, groups)]


def probe_columns(folder: Path, heads: GatesOfRun) -> dict[str, list[float]]:
    """Return ``<table>.<column>`` of a probed run, for functions of heads.

    UserError if it probed other heads.
    """
    asker, run = f"sweep --probe, for the heads of {heads.path}", read_run(folder)
    columns = {}
    for name in USED:
        table, column = name.split(".")
        if table in run.tables and column in run.tables[table].columns:
            columns[name] = read_column(
                run.folder / "tables" / f"{table}.csv", column, heads, asker
            ).tolist()
    if not columns:
        tables = ", ".join(sorted({name.split(".")[0] for name in USED}))
        raise UserError(
            f"probe: {folder} has none of the tables {tables}; run mhprobe.probe with them."
        )
    return columns


def _read(folder: Path) -> GatedRun | None:
    """Read a run; None for one that is not finished, or has no learned gates."""
    run = read_run(folder)
    right = run.outcomes()
    if run.unread:
        raise UserError(
            f"sweep: {folder} is damaged ({run.unread[0]}). Take it out of the sweep's folder."
        )
    settings = dict(line.split("=", 1) for line in run.overrides if "=" in line)
    metrics = {name: value for name, value in run.metrics.items() if value is not None}
    if "gates" not in run.tables or not set(METRICS) <= set(metrics):
        return None
    gates = _gates(run.folder / "tables" / "gates.csv", len(run.tables["gates"].rows))
    return GatedRun(
        folder.name, settings, metrics, gates, run.model, None if right is None else right.images
    )


def _gates(path: Path, heads: int) -> GatesOfRun:
    """Read the gates of a run. UserError for a table that does not say which heads are kept."""
    unnamed = GatesOfRun(path, "", [False] * heads, {})
    rows = read_heads(path, ("stage", "block", "kept"), unnamed, "sweep")
    if {row["kept"] for row in rows} not in ({"0", "1"}, {"1"}):
        raise UserError(
            f"sweep: {path}, column kept: expected 0 or 1, and a head with 1. Was the file edited?"
        )
    kept = [row["kept"] == "1" for row in rows]
    gates = GatesOfRun(path, rows[0].get(DIGEST, ""), kept, _groups(rows))
    check_layout(path, rows, gates, "sweep")
    return gates


def _groups(rows: Sequence[Mapping[str, str]]) -> Groups:
    """Return the group of each head by stage, by block and, where windows shift, by kind of window."""
    groups: Groups = {
        name: [(f"{name} {row[name]}",) for row in rows] for name in ("stage", "block")
    }
    if "shifted" in rows[0]:
        groups["windows"] = [
            ("shifted windows" if row["shifted"] == "1" else "plain windows",) for row in rows
        ]
    return groups


def _whole(weights: Path, description: Mapping[str, Any]) -> float:
    """Return the test accuracy beside weights of the whole network.

    UserError if there is none on the same images.
    """
    with reading(weights.parent):
        origin = Folder(weights.parent).json(weights.with_suffix(".json").name).get("made", {})
        if {"test/accuracy", "data"} <= set(origin) and origin["data"] == description.get(
            "made", {}
        ).get("data"):
            return float(origin["test/accuracy"])
    raise UserError(
        f"weights: the JSON beside {weights} has no test accuracy on the images of these runs."
    )
