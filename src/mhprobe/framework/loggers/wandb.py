"""W&B logger that never stops or hangs a run.

If the server does not answer within ``init_timeout``, or the key is missing, a line says so and the
run is recorded offline. A server that dies later delays the end by at most ``finish_timeout``. No
other file imports wandb.
"""

import contextlib
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from mhprobe.errors import first_line, short
from mhprobe.framework.loggers.workspace import CURVE_AXIS
from mhprobe.masking.parts.trace import Curve
from mhprobe.report.ledger import Entry
from mhprobe.report.result import Result
from mhprobe.report.runs.folder import Folder

log = logging.getLogger(__name__)

FIELDS = (
    "kind",
    "label",
    "unit",
    "larger",
    "split",
    "images",
    "interval",
    "chance",
    "control",
    "caption",
)


class RunLogger(WandbLogger):
    """Lightning's W&B logger as a Dashboard. Only rank 0 has a run.

    folder: of the run; ``folder/wandb`` holds W&B's files. project, entity, tags, job_type: of the
    run. group: of the runs of a study or sweep; default: the folder's parent. model_aliases: upload
    model.safetensors and pruned.safetensors as artifacts under these names, e.g. [best]; None
    uploads none. init_timeout: seconds to wait for the server; finish_timeout: for sending the rest
    at the end.
    """

    def __init__(  # noqa: PLR0913 -- its arguments are the keys of conf/logger/wandb.yaml
        self,
        folder: Path,
        project: str = "mhprobe",
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: Sequence[str] = (),
        model_aliases: Sequence[str] | None = None,
        init_timeout: float = 20,
        finish_timeout: float = 60,
    ) -> None:
        run = None
        if rank_zero_only.rank == 0:  # type: ignore[attr-defined]
            folder = Path(folder).resolve()
            run = _start(
                wandb.Settings(
                    init_timeout=init_timeout, finish_timeout=finish_timeout, silent=True
                ),
                dir=str(folder),
                project=project,
                entity=entity,
                name=_name(folder),
                group=group or folder.parent.name,
                job_type=job_type,
                tags=list(tags),
                notes="\n".join(Folder(folder).overrides()) or None,
            )
        self.folder, self.model_aliases = Path(folder), model_aliases
        super().__init__(save_dir=str(folder), project=project, experiment=run)
        self._takes_tables, self._complained = True, False
        self.entries: dict[str, Entry] = {}

    def log_hyperparams(self, params: Any) -> None:
        self._send(super().log_hyperparams, params)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._send(super().log_metrics, metrics, step)

    def add_result(self, name: str, entry: Entry, result: Result, png: Path | None) -> None:
        """Log table, figure and curves; how to read them is in the caption, and in the table ``results``."""
        if result.table is not None:
            self._log_table(name, result.table.columns, result.table.rows)
        if png is not None:
            self._send(
                self.experiment.log,
                {f"figures/{name}": wandb.Image(str(png), caption=entry.reading or None)},
            )
        self.add_curves(result.curves, entry.label)
        self.entries[name] = entry

    def _log_table(self, name: str, columns: Sequence[str], rows: list[list[Any]]) -> None:
        """Log a table, the one call that fails if the server has died."""
        if self._takes_tables:
            shown = wandb.Table(columns=[*columns], data=rows, allow_mixed_types=True)
            self._takes_tables = self._send(self.experiment.log, {f"tables/{name}": shown})

    def add_curves(self, curves: Sequence[Curve], label: str = "accuracy") -> None:
        """Log points along the number of heads masked; of random curves the mean over repeats.

        label: of the score.
        """
        for curve in curves:
            accuracies, losses = (
                f"masking/{curve.name}/{curve.split}/{part}" for part in ("accuracy", "loss")
            )
            for name in (
                accuracies,
                losses,
            ):  # a summary would hold the last point, where all heads are off
                self._send(
                    lambda name=name: self.experiment.define_metric(
                        name, CURVE_AXIS, summary="none"
                    )
                )
            for heads, accuracy, loss, *_ in zip(
                *(part.tolist() for part in curve.points), strict=True
            ):
                self._send(
                    self.experiment.log, {accuracies: accuracy, losses: loss, CURVE_AXIS: heads}
                )
        shown = [curve for curve in curves if curve.split == "test"] or curves
        if self._takes_tables and shown:
            chart = wandb.plot.line_series(
                xs=[curve.points.heads.tolist() for curve in shown],
                ys=[curve.points.accuracy.tolist() for curve in shown],
                keys=[curve.name for curve in shown],
                title=f"{label} as heads are masked",
                xname="heads masked",
            )
            self._takes_tables = self._send(self.experiment.log, {"charts/masking_curves": chart})

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        self._send(self.experiment.summary.update, dict(metrics))

    def finish(self) -> None:
        """Send the rest, for at most ``finish_timeout`` seconds; it stays on disk in any case."""
        rows = [
            [name, *(str(getattr(entry, key) or "") for key in FIELDS)]
            for name, entry in self.entries.items()
        ]
        if wandb.run is not None and rows:
            self._log_table("results", ["result", *FIELDS], rows)
        if wandb.run is not None:
            self._send_page(self.folder / "report.html")
            self._share_models()
        if not self._send(self.experiment.finish):
            _let_go()

    def _send_page(self, page: Path) -> None:
        """Send the report, to be looked at in the run, and to be downloaded."""
        if not page.is_file():
            return

        def show() -> None:
            html = wandb.Html(page.read_text("utf-8"), inject=False)
            self.experiment.log({"report": html})

        self._send(show)
        self._send(self._share, "report", [page], "report", None)

    def _share_models(self) -> None:
        """Send the weights as artifacts, if the settings ask for them."""
        if self.model_aliases is None:
            return
        for stem in ("model", "pruned"):
            files = [self.folder / f"{stem}{suffix}" for suffix in (".safetensors", ".json")]
            if all(file.is_file() for file in files):
                self._send(self._share, "model", files, stem, list(self.model_aliases))

    def _share(
        self, kind: str, files: Sequence[Path], name: str, aliases: list[str] | None
    ) -> None:
        experiment = re.sub(r"[^\w.-]+", "_", self.folder.resolve().parent.name, flags=re.ASCII)
        artifact = wandb.Artifact(f"{experiment}-{name}", kind)
        for file in files:
            artifact.add_file(str(file))
        self.experiment.log_artifact(artifact, aliases=aliases)

    def _send(self, call: Callable[..., Any], *args: Any) -> bool:
        """Call, and return True if it worked; the first error of any kind is a line in the log."""
        try:
            call(*args)
        except Exception as error:
            if not self._complained:
                log.warning(
                    "W&B: %s. The run goes on; everything is in its folder.", first_line(error)
                )
            self._complained = True
            return False
        return True


def _start(settings: wandb.Settings, **where: Any) -> Any:
    """Start a run: online if possible, else offline."""
    if wandb.run is not None:
        _let_go()  # of an earlier job of this process that died
    os.makedirs(where["dir"], exist_ok=True)  # else W&B quietly takes another folder
    # without a key, its telemetry would complain to the terminal after the run's last line
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    try:
        run = _begun(settings, **where)
    except Exception as error:  # CommError: the server; UsageError: no key; and whatever comes next
        _let_go()
        run = _begun(settings, mode="offline", **where)
        send = shlex.join(["wandb", "sync", run.settings.sync_dir])
        log.warning("W&B: %s. Recording offline; send it later with: %s", first_line(error), send)
    if run.url:
        print(f"W&B: {run.url}")
    return run


def _begun(settings: wandb.Settings, **where: Any) -> Any:
    with _no_stderr():  # its service, a process, may write pages of errors
        # started first, or W&B without a key would ask at a terminal, and wait for ever
        wandb.setup(wandb.Settings(silent=True)).ensure_service()
    run = wandb.init(settings=settings, **where)
    # Lightning logs its step as a value; W&B's own counter would count calls
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    run.define_metric(CURVE_AXIS, summary="none")
    # of a training the best is of interest, not the last
    run.define_metric("val/accuracy", step_metric="trainer/global_step", summary="max")
    run.define_metric("val/loss", step_metric="trainer/global_step", summary="min")
    return run


def _let_go() -> None:
    """End the run and W&B's service, ignoring their errors, which would give a traceback at the exit."""
    for end in (lambda: wandb.finish(exit_code=1), wandb.teardown):
        with contextlib.suppress(Exception, SystemExit):
            end()
    wandb.run = None


@contextlib.contextmanager
def _no_stderr() -> Iterator[None]:
    """Close the standard error of processes started inside."""
    ours = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        os.close(nowhere)


def _name(folder: Path) -> str:
    """Name the run by its folder and the words typed, without the experiment.

    W&B takes 128 characters.
    """
    words = [word for word in Folder(folder).overrides() if not word.startswith("+experiment=")]
    return short(" ".join([f"{folder.parent.name}/{folder.name}", *words]), 128)
