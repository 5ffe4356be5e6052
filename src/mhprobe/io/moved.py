"""Old places of modules, for configurations and checkpoints on disk that name them as ``_target_``."""

from typing import Any

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


def current(target: str) -> str:
    """Return the name of today for a class or function: mhprobe.surgery.learned.LearnedGates has moved."""
    package, _, place = target.partition(".")
    if package != "mhprobe":
        return target
    for old, new in MOVED.items():
        if place.startswith(f"{old}."):
            return f"mhprobe.{new}{place.removeprefix(old)}"
    return target


def renamed(part: Any) -> Any:
    """Return a copy of plain containers in which every ``_target_`` has its name of today."""
    if isinstance(part, dict):
        return {
            key: current(value) if key == "_target_" and isinstance(value, str) else renamed(value)
            for key, value in part.items()
        }
    if isinstance(part, list):
        return [renamed(item) for item in part]
    return part
