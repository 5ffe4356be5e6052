"""From which checkpoint a training run goes on."""

from pathlib import Path

import lightning as L

from mhprobe.callbacks.same_run import SameRun
from mhprobe.errors import UserError
from mhprobe.run.fingerprint import Facts, earlier, judge
from mhprobe.run.schema import Config
from mhprobe.weights.checkpoint import load_checkpoint


def resume(cfg: Config, folder: Path, trainer: L.Trainer) -> Path | None:
    """The checkpoint that ``ckpt_path`` asks for; None to start anew. UserError if it is of another run.

    folder: of this run. What is different and allowed is printed.
    """
    asked = cfg.ckpt_path
    if asked is None:
        return None
    ours = next(part for part in trainer.callbacks if isinstance(part, SameRun)).facts(trainer)  # type: ignore[attr-defined]
    allow = _allowed(cfg)
    path, lines = _last(cfg, folder, ours) if asked == "last" else (_named(asked), None)
    if lines is None:
        lines = judge(_facts(path), ours, allow, path)
    if trainer.is_global_zero:
        print("\n".join([f"resuming from {path}", *lines]))
    return path


def begun(cfg: Config, folder: Path) -> bool:
    """Return True if a part of a study has the checkpoint that ``ckpt_path`` asks for; with ``last`` it need not."""
    return cfg.ckpt_path is not None and (cfg.ckpt_path != "last" or bool(earlier(_runs(cfg), folder)))


def _runs(cfg: Config) -> Path:
    return Path(cfg.out) / cfg.name


def _named(asked: str) -> Path:
    if "://" in asked:
        raise UserError(f"ckpt_path: {asked} is remote, where pickled code could hide; download it first.")
    if not Path(asked).is_file():
        raise UserError(f"ckpt_path: no file {asked}; ckpt_path=last takes the last checkpoint of this run.")
    return Path(asked)


def _last(cfg: Config, folder: Path, ours: Facts) -> tuple[Path, list[str]]:
    """The newest of this run's checkpoints, and what is different; what keeps the newest from being one is said."""
    runs = _runs(cfg)
    refusals = []
    for path in earlier(runs, folder):
        try:
            return path, judge(_facts(path), ours, _allowed(cfg), path)
        except UserError as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]
    raise UserError(f"ckpt_path=last: no last.ckpt of this run under {runs}; leave ckpt_path out to start anew.")


def _allowed(cfg: Config) -> list[str]:
    """Return the settings that may differ from the checkpoint's run."""
    return cfg.resume.allow if cfg.resume else []


def _facts(path: Path) -> Facts | None:
    return load_checkpoint(path).get("run")
