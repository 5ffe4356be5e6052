"""The jobs of a sweep: which folders inside a folder are finished runs."""

from collections.abc import Iterable
from pathlib import Path

from mhprobe.report import ledger


def jobs(folder: Path) -> list[Path]:
    """The finished runs in the folder of a sweep or a study, in the order of their numbers; no links."""
    inside = [path.parent for path in Path(folder).glob("*/metrics.json") if not path.parent.is_symlink()]
    return sorted(inside, key=lambda run: (len(run.name), run.name))


def expand(folders: Iterable[Path]) -> list[Path]:
    """Folders of runs; one of a sweep or a study stands for its jobs."""
    return [run for folder in folders for run in ([folder] if _is_run(Path(folder)) else jobs(folder) or [folder])]


def _is_run(folder: Path) -> bool:
    """A sweeper may leave a table beside its jobs."""
    results = any((folder / name).exists() for name in ("metrics.json", ledger.FILE))
    return results and not (folder / "multirun.yaml").exists()
