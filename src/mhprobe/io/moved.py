"""Old places of modules, for configurations and checkpoints on disk that name them as ``_target_``."""

from typing import Any

from mhprobe.errors import UserError

# below mhprobe; a name that begins with one of these has the new beginning instead
MOVED = {
    "questions.beside": "pages.beside",
    "questions": "framework.questions",
    "maps.gallery": "framework.questions.gallery",
    "run.cells": "lab.prunebench.cells",
    "run": "framework.run",
    "training": "framework.training",
    "report.wandb": "framework.loggers.wandb",
    "report.loggers": "framework.loggers.others",
    "report.workspace": "framework.loggers.workspace",
    "report.html": "pages.html",
    "report.several": "pages.several",
    "report.benches": "pages.benches",
    "looking": "pages.looking",
    "surgery.live": "pages.live",
    "surgery.bench": "lab.prunebench.bench",
    "surgery.peer": "lab.prunebench.peer",
    "surgery.rounds": "pruning.rounds",
    "surgery.on_path": "pruning.on_path",
    "surgery.given": "pruning.given",
    "surgery.elastic": "pruning.elastic",
    "surgery.learned": "pruning.learned",
    "surgery.snapvit": "pruning.snapvit",
    "studies": "lab.papers",
    "claims": "lab.claims",
    "headbench": "lab.headbench",
}

# below mhprobe, by today's name: what does their work now
GONE = {
    "lab.papers.panels.before_tuning": "mhprobe diff BEFORE AFTER PHOTOS --measures "
    "entropy,gate_importance --along CHECKPOINTS (docs/before_after.md)",
}


def current(target: str) -> str:
    """Return the name of today for a class or function: mhprobe.surgery.learned.LearnedGates has moved.

    UserError for one that is gone, with the command that does its work.
    """
    name = _moved(target)
    for old, instead in GONE.items():
        if name.startswith(f"mhprobe.{old}."):
            raise UserError(f"{target} is gone. Its work is done by {instead}.")
    return name


def _moved(target: str) -> str:
    package, _, place = target.partition(".")
    if package != "mhprobe":
        return target
    for old, new in MOVED.items():
        if place.startswith(f"{old}."):
            return f"mhprobe.{new}{place.removeprefix(old)}"
    return target


def renamed(part: Any) -> Any:
    """Return a copy of plain containers in which every ``_target_`` has its name of today.

    UserError as of ``current``.
    """
    if isinstance(part, dict):
        return {
            key: current(value) if key == "_target_" and isinstance(value, str) else renamed(value)
            for key, value in part.items()
        }
    if isinstance(part, list):
        return [renamed(item) for item in part]
    return part
