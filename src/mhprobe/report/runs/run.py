"""Reading of a finished run from its folder, for pages, cards and comparisons; short names of runs among others.

A name consists of the overrides that distinguish a run, e.g. ``remove=18``: one may change forty
settings.
"""

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from mhprobe.errors import UserError, refusing
from mhprobe.io.head_tables import DIGEST, read_cells
from mhprobe.io.nested import leaves
from mhprobe.io.tensors import (
    BENCH,
    MASKED,
    OUTCOMES,
    Outcomes,
    read_masked,
    read_outcomes,
    unpacked,
)
from mhprobe.report import ledger
from mhprobe.report.ledger import Entry
from mhprobe.report.runs.folder import MB, Folder, reading
from mhprobe.report.tables import Table

DIGITS = 15  # of a whole number that a float, and so a page, can hold
MOST = 3  # settings in a name
ASIDE = (
    "hydra",
    "out",
    "cache_dir",
    "logger",
    "progress",
    "verbose",
)  # no property of what was run
_UNNAMED = ("model", "pruned")  # stems of weights that the folder around them names


@dataclass(frozen=True)
class Run:
    """Contents of a run's folder; missing parts are empty.

    results, tables: by the result's name. config: as composed, references unresolved. overrides: of
    the command line.
    facts: ``run.json``. model: description of the weights.
    """

    files: Folder
    results: dict[str, Entry]
    tables: dict[str, Table]
    metrics: dict[str, float | None]
    config: dict[str, Any]
    overrides: list[str]
    facts: dict[str, Any]
    model: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.files.root

    @property
    def unread(self) -> list[str]:
        """Files and parts that could not be read, each with the reason."""
        return list(dict.fromkeys(self.files.unread))  # a file may have been asked for twice

    @property
    def name(self) -> str:
        """Experiment and time, e.g. ``digits_vit/2026-11-21_18-01-33``."""
        return "/".join(self.folder.parts[-2:])

    def of_kind(self, *kinds: str) -> Iterator[tuple[str, Entry, Table]]:
        """Yield name, entry and table of the results of these kinds of the trained network, at the end."""
        for name, entry in self.results.items():
            if (
                entry.kind in kinds
                and name in self.tables
                and not entry.during
                and not entry.control_of
            ):
                yield name, entry, self.tables[name]

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows of the first table of this kind; [] if there is none."""
        table = next((table for _, _, table in self.of_kind(kind)), None)
        return [] if table is None else table.dicts()

    @property
    def of_step(self) -> bool:
        """Return True if the run was asked for one step of its masking curves."""
        return "masked/heads" in self.metrics

    def masked_outcomes(self) -> dict[str, Outcomes]:
        """Return the correct test images of the network masked at one step, by curve; {} of others."""
        if self.files.tried(self.files.path, MASKED, 100 * MB) is None:
            return {}
        return read_masked(self.folder)

    def outcomes(self) -> Outcomes | None:
        """Return the correct test images of the run's network, with no head masked, if it has kept them."""
        if self.files.tried(self.files.path, OUTCOMES, 100 * MB) is None:
            return None
        right = read_outcomes(self.folder)
        share = self.metrics.get("test/accuracy")
        if right is None:
            self.files.unread.append(f"{OUTCOMES}: damaged")
        elif share is not None and abs(float(right.right.double().mean()) - share) > 1e-6:
            self.files.unread.append(
                f"{OUTCOMES}: another accuracy than test/accuracy in metrics.json"
            )
            return None
        return right

    def bench(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return which test images each cell of mhprobe.prunebench gets right, and digests: "images" and "network".

        The former are (N,) by cell and stage, "fisher_0.5_0/repaired". Raises UserError where the
        run has kept none.
        """
        kept = self.files.tried(
            lambda: unpacked(path) if (path := self.files.path(BENCH, 100 * MB)) else None
        )
        if kept is None or not {"images", "network"} <= set(kept[1]):
            raise UserError(
                f"compare: {self.folder}: {BENCH} is missing or damaged. Run the bench's command "
                "again."
            )
        return kept


def read_run(folder: Path) -> Run:
    """Read a run's folder. Raises UserError if it holds no results, or no ledger of them.

    Damaged files, and all but ordinary files inside the folder, are left out and named in
    ``unread``.
    """
    with reading(folder):
        return _read(Folder(folder))


def _read(files: Folder) -> Run:
    results = _ledger(files)
    config = files.tried(files.yaml, "config/config.yaml")
    facts = files.tried(files.json, "run.json") or {}
    network = facts.get("network")
    described = (
        about for name in ("model.json", "pruned.json") if (about := files.tried(files.json, name))
    )
    tables = {
        name: table
        for name, entry in results.items()
        if entry.table is not None
        and (table := files.tried(_table, files, entry.table, entry.kind)) is not None
    }
    return Run(
        files,
        results,
        tables,
        _metrics(files.tried(files.json, "metrics.json") or {}, files.unread),
        config if isinstance(config, dict) else {},
        files.tried(files.overrides) or [],
        facts,
        next(described, {}) or (dict(network) if isinstance(network, Mapping) else {}),
    )


def _ledger(files: Folder) -> dict[str, Entry]:
    """Read the results of results.json.

    UserError for a folder without results, or without this list of them.
    """
    with refusing(lambda error: f"report: {files.root}: {error}.", (ValueError,)):
        data = files.bytes(ledger.FILE, 20 * MB)
    if data is None:
        if (files.root / "tables").is_dir() or (files.root / "figures").is_dir():
            raise UserError(
                f"report: {files.root} has tables or figures, but no {ledger.FILE}, which lists "
                "them. Run the "
                f"command again."
            )
        if not (files.root / "metrics.json").exists():
            raise UserError(
                f"report: {files.root} holds no metrics.json and no {ledger.FILE}. Give the folder "
                "of a finished run, "
                f"e.g. outputs/digits_vit/<time>."
            )
        return {}
    try:
        return ledger.Ledger.model_validate_json(data).results
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        files.unread.append(f"{ledger.FILE}: {first['msg']}{f' at {where}' if where else ''}")
        return {}


def measured_on(order: Any) -> str | None:
    """Return "test" for an order by a table that a run measured on test images, else None."""
    if not (table := getattr(order, "table", None)):
        return None
    place = Path(table).absolute()
    try:
        results = _ledger(Folder(place.parent.parent))
    except UserError:  # a table without a run
        return None
    here = f"tables/{place.name}", "test"
    return "test" if here in [(entry.table, entry.split) for entry in results.values()] else None


def _table(files: Folder, name: str, kind: Any) -> Table:
    path = files.path(name, 100 * MB)
    if path is None:
        raise ValueError(f"{name}: no such file")
    table = read_table(path)._replace(kind=kind)
    for row in table.dicts() if kind == "curves" else []:
        masked = [] if row.get("masked") is None else str(row["masked"]).split()
        if masked and row.get("heads_masked") != len(masked):
            raise ValueError(
                f"{name}: column masked names {len(masked)}, heads_masked says "
                f"{row.get('heads_masked')}"
            )
        if not 0 <= (row.get("accuracy") or 0) <= 1:
            raise ValueError(f"{name}: accuracy is {row['accuracy']}, expected a share from 0 to 1")
    return table


def read_table(path: Path) -> Table:
    """Read a table without the model's digest; an empty cell or NaN is None.

    Raises UserError for a damaged file.
    """
    columns, rows = read_cells(path, "report")
    shown = [at for at, name in enumerate(columns) if name != DIGEST]
    return Table([columns[at] for at in shown], [[_value(row[at]) for at in shown] for row in rows])


def settings(run: Run) -> dict[str, str]:
    """Return the configuration, flat: ``optim.lr`` -> ``0.001``."""
    return {".".join(path): str(value) for path, value in leaves(run.config)}


def differing(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Return the settings that differ, each with its value in every run, or ""."""
    flat = [settings(run) for run in runs]
    values = {key: [of.get(key, "") for of in flat] for key in sorted(set().union(*flat))}
    return {key: of for key, of in values.items() if len(set(of)) > 1}


def _value(cell: str) -> Any:
    if cell == "" or len(cell) > 40:
        return cell or None
    for number in (int, float) if len(cell) <= DIGITS else (float,):
        with contextlib.suppress(ValueError):
            value = number(cell)
            return value if value - value == 0 else None  # JSON has neither NaN nor infinity
    return cell


def _metrics(values: Mapping[str, Any], unread: list[str]) -> dict[str, float | None]:
    """Keep the numbers; one that is not finite, and an accuracy outside [0, 1], is None."""
    numbers: dict[str, float | None] = {}
    for key, value in values.items():
        if value is None or isinstance(value, int | float):
            numbers[key] = value if value is not None and abs(value) < 1e300 else None
    share = numbers.get("test/accuracy")
    if share is not None and not 0 <= share <= 1:
        unread.append(f"metrics.json: test/accuracy is {share}, expected a share from 0 to 1")
        share = numbers["test/accuracy"] = None
    return numbers


def jobs(folder: Path, holding: str = "metrics.json") -> list[Path]:
    """Return the runs in the folder of a sweep or a study, in the order of their numbers, without links.

    holding: file or folder that a run must have; the usual one is there once a run has finished.
    """
    inside = [
        path.parent for path in Path(folder).glob(f"*/{holding}") if not path.parent.is_symlink()
    ]
    return sorted(inside, key=lambda run: (len(run.name), run.name))


def expand(folders: Iterable[Path]) -> list[Path]:
    """Replace folders of sweeps and studies by those of their jobs."""
    runs: list[Path] = []
    for folder in map(Path, folders):
        results = any((folder / name).exists() for name in ("metrics.json", ledger.FILE))
        sweep = (folder / "multirun.yaml").exists()  # a sweeper may leave a table beside its jobs
        runs += [folder] if results and not sweep else jobs(folder) or [folder]
    return runs


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """Read runs, and the jobs of sweeps and studies. Raises UserError as ``read_run``."""
    return [read_run(folder) for folder in expand(folders)]


def typed_apart(runs: Sequence[Run], without: Collection[str] = ()) -> list[dict[str, str]]:
    """Return for each run up to three overrides that distinguish it, without their sections if that is unambiguous.

    Chooses the fewest overrides that distinguish all runs with different ones; a run without any of
    these has others of its own. without: settings to leave out, by their name or its end, e.g.
    seed.
    """
    typed = [_typed(run) for run in runs]
    keys = [key for key in _varied(typed) if not {key, _end(key)} & {*without}]
    ends = Counter(map(_end, keys))
    short = {key: _end(key) if ends[_end(key)] == 1 else key for key in keys}
    chosen = _distinguishing(typed, keys)
    named = [
        [key for key in chosen if key in of] or [key for key in keys if key in of] for of in typed
    ]
    return [
        {short[key]: of[key] for key in run_keys[:MOST]}
        for run_keys, of in zip(named, typed, strict=True)
    ]


def _varied(typed: Sequence[dict[str, str]]) -> list[str]:
    """Return the settings in which runs differ, in the order in which they were typed."""
    every = dict.fromkeys(key for of in typed for key in of)
    return [key for key in every if len({of.get(key) for of in typed}) > 1]


def _distinguishing(typed: Sequence[dict[str, str]], keys: Sequence[str]) -> list[str]:
    """Return up to ``MOST`` settings that tell the runs apart, found one by one: the best of those left."""
    chosen: list[str] = []
    while len(chosen) < MOST and _different(typed, chosen) < _different(typed, keys):
        chosen.append(max(keys, key=lambda key: _different(typed, [*chosen, key])))
    return sorted(chosen, key=keys.index)


def _different(typed: Sequence[dict[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(of.get(key) for key in keys) for of in typed})


def names(runs: Sequence[Run]) -> list[str]:
    """Return a unique name for every run: its distinguishing overrides, else its folder's name."""
    texts = [as_typed(settings) for settings in typed_apart(runs)]
    alike = Counter(texts)
    unique = [
        run.name if not text else text if alike[text] == 1 else f"{text} ({run.name})"
        for text, run in zip(texts, runs, strict=True)
    ]
    return (
        unique
        if len(set(unique)) == len(unique)
        else [f"{i + 1}: {name}" for i, name in enumerate(unique)]
    )


def as_typed(settings: dict[str, str]) -> str:
    """Write settings as they are typed, e.g. ``lr=0.1, remove=18``."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def _typed(run: Run) -> dict[str, str]:
    words = (word.lstrip("+~").partition("=") for word in run.overrides)
    return {key: _short(value) for key, _, value in words if key.split(".")[0] not in ASIDE}


def _short(value: str) -> str:
    """Shorten the path of a file of weights to its name."""
    path = PurePath(value)
    if path.suffix not in (".safetensors", ".ckpt"):
        return value
    return path.parent.name if path.stem in _UNNAMED and path.parent.name else path.stem


def _end(key: str) -> str:
    return key.rpartition(".")[2]
