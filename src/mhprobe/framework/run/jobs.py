"""Folders of jobs, and the end of a sweep whose jobs failed.

A failed job leaves a note in its folder, since jobs may run elsewhere. Launchers find jobs that
were lost.
"""

import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from mhprobe.errors import UserError, first_line
from mhprobe.io.files import write
from mhprobe.report.runs.folder import Folder

# folders that this process has made for its runs, and how many it has made around each
_made: dict[Path, int] = {}
FAILED = "failed.json"
SETTINGS = ("hparams.yaml", "multirun.yaml")  # copies of them, of a logger and of Hydra for a sweep


def rank_by_environment() -> int:
    """Return the number of this process among the ranks of its run; 0 if alone."""
    return int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))


@functools.cache
def claim_folder(wanted: str) -> str:
    """Make a new folder of that name, or the next free one (_2, _3 ...).

    Ranks of a launcher share ``wanted``.
    """
    if "RANK" in os.environ or "SLURM_PROCID" in os.environ:
        return wanted
    names = itertools.chain([wanted], (f"{wanted}_{number}" for number in itertools.count(2)))
    try:
        around = _missing_around(Path(wanted))
        Path(wanted).parent.mkdir(parents=True, exist_ok=True)
        while True:
            with contextlib.suppress(FileExistsError):
                name = next(names)
                os.mkdir(name)  # of two processes only one can
                _made[Path(name).resolve()] = around
                return name
    except OSError as error:
        raise UserError(
            f"out: {error.filename} cannot be written ({error.strerror}). Choose another folder "
            "with out=<folder>."
        ) from error


def use_folder(wanted: str) -> str:
    """Return the name of a folder that several runs share, and note if this process has to make it."""
    folder = Path(wanted)
    if not folder.exists():
        _made[folder.resolve()] = _missing_around(folder)
    return wanted


def _missing_around(folder: Path) -> int:
    """Return how many of the folders around ``folder`` are not there."""
    return sum(not parent.exists() for parent in folder.absolute().parents)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for this run.

    UserError if another run is writing there, or if the folder was replaced.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(ImportError, OSError):  # a system without such locks
            import fcntl

            try:
                if rank_by_environment() == 0:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"{folder}: another run is writing there. Wait, or give another hydra.run.dir."
                ) from None
        yield
        if not folder.exists() or not os.path.samestat(os.fstat(handle), folder.stat()):
            raise UserError(
                f"{folder} was removed or replaced while the run wrote there: its results are not "
                "whole."
            )
    finally:
        os.close(handle)


@contextlib.contextmanager
def keep_settings(
    folder: Path, cfg: DictConfig, overrides: Sequence[str], sweeping: bool = False
) -> Iterator[None]:
    """Keep the composed configuration and what was typed in ``folder/config``.

    A mistake puts back what was there. A folder that ``claim_folder`` has made goes if nothing but
    settings was written, but for a job of a sweep (``sweeping``), whose settings the sweep's end reads.
    """
    if rank_by_environment():
        yield
        return
    before = {file: file.read_bytes() for file in (folder / "config").glob("*.yaml")}
    (folder / FAILED).unlink(missing_ok=True)  # of a job that was here before
    write(folder / "config" / "config.yaml", OmegaConf.to_yaml(cfg).encode())
    keep_typed(folder, overrides)
    try:
        yield
    except (UserError, OmegaConfBaseException):
        for file, text in before.items():
            write(file, text)
        if folder.resolve() in _made and not sweeping:
            _forget(folder)
        raise


def _forget(folder: Path) -> None:
    """Remove a folder that has settings alone, and those made around it that are empty then."""
    with contextlib.suppress(OSError):
        written = [path for path in folder.rglob("*") if not path.is_dir()]
        if any(file.parent.name != "config" and file.name not in SETTINGS for file in written):
            return
        shutil.rmtree(folder)
        for parent in list(folder.resolve().parents)[: _made[folder.resolve()]]:
            parent.rmdir()


def forget_unused() -> None:
    """Remove the folders that this process has made and that hold settings alone: no job has begun there."""
    for folder in filter(Path.is_dir, list(_made)):
        _forget(folder)


def keep_typed(folder: Path, overrides: Sequence[str]) -> None:
    write(folder / "config" / "overrides.yaml", OmegaConf.to_yaml(list(overrides)).encode())


def note_failure(folder: Path, code: int, message: str) -> None:
    """Leave a note of a failed job for the end of its sweep."""
    with contextlib.suppress(OSError):  # the disk may be full
        (folder / FAILED).write_text(json.dumps({"code": code, "message": message}))


def note_lost(folder: Path, overrides: Sequence[str], message: str) -> None:
    """Leave a note of a job whose process or machine is gone."""
    keep_typed(folder, overrides)
    note_failure(folder, 1, message)


def in_quotes(text: str) -> str:
    """Return a value as Hydra's grammar takes any text."""
    escaped = re.sub(r"(\\*)'", r"\1\1\'", text)
    return f"'{escaped}'"


def submitit_names_lost_jobs(folder: Path) -> None:
    """Make submitit leave a note of a job without a result, and wait for the other jobs."""
    import submitit

    whole = submitit.Job.results

    def results(job: Any) -> list[Any]:
        try:
            return whole(job)
        except submitit.core.utils.UncompletedJobError as error:
            overrides, _, number, *_ = job.submission().args
            note_lost(folder / str(number), overrides, first_line(error))
            return [JobReturn(overrides=overrides, status=JobStatus.COMPLETED)]

    submitit.Job.results = results  # type: ignore[method-assign, assignment]


class SaysWhatFailed(Callback):
    """End of a sweep: a page of its jobs side by side, a line for each failed one, and the exit code."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        # claimed once: a job in another process would claim a folder of its own
        folder = str(config.hydra.sweep.dir)
        with read_write(config.hydra):
            config.hydra.sweep.dir = folder
            config.hydra.overrides.hydra.append(f"hydra.sweep.dir={in_quotes(folder)}")
        if "submitit" in config.hydra.launcher._target_:
            submitit_names_lost_jobs(Path(config.hydra.sweep.dir))

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from mhprobe.framework.run.wing import pages
        from mhprobe.report.runs.run import jobs as jobs_in

        folder = Path(str(OmegaConf.select(config, "hydra.sweep.dir")))
        jobs = jobs_in(folder, "config")
        failed = {
            job: json.loads((job / FAILED).read_text()) for job in jobs if (job / FAILED).is_file()
        }
        wing = pages()
        page = wing.finish_sweep(folder) if wing is not None else None
        if page is not None:
            print(f"side by side: {page}")
        if not failed:
            return
        others = f"the others are in {folder}" if len(failed) < len(jobs) else f"see {folder}"
        print(f"mhprobe: {len(failed)} of {len(jobs)} jobs failed, {others}:", file=sys.stderr)
        for job, end in failed.items():
            print(
                f"  {job.name} ({' '.join(Folder(job).overrides())}): {end['message']}",
                file=sys.stderr,
            )
        sys.exit(2 if all(end["code"] == 2 for end in failed.values()) else 1)
