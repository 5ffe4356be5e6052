"""Facts of a run: command, commit, versions, hardware and time, kept as ``run.json``."""

import contextlib
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from mhprobe import __version__
from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.io.machine import processor
from mhprobe.io.readings import Reading
from mhprobe.report.runs.folder import Folder

PACKAGES = ("torch", "timm", "lightning", "torchmetrics", "numpy")


def write_facts(
    folder: Path,
    task: str,
    layout: HeadLayout,
    network: Mapping[str, Any] | None = None,
    inputs: Iterable[Reading] = (),
) -> Path:
    """Write ``folder/run.json``.

    task: the command's module, e.g. "train". network: description of the weights. inputs: how files
    of weights and images were interpreted.
    """
    config = Path(folder) / "config" / "overrides.yaml"  # written at the start
    now = datetime.datetime.now().astimezone()
    started = (
        datetime.datetime.fromtimestamp(config.stat().st_mtime).astimezone()
        if config.exists()
        else None
    )
    facts = {
        "command": command(task, Path(folder)),
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(),
        "started": None if started is None else started.isoformat(timespec="seconds"),
        "finished": now.isoformat(timespec="seconds"),
        "seconds": None if started is None else round((now - started).total_seconds()),
        "network": {
            key: network[key] for key in ("data", "class_names") if network and key in network
        },
        "inputs": [reading.plain() for reading in inputs],
        "heads": [
            [site.name, site.stage, site.block, site.num_heads] for site in layout.of("head").sites
        ],
    }
    return write(Path(folder) / "run.json", (json.dumps(facts, indent=2) + "\n").encode())


def command(task: str, folder: Path) -> str:
    """Return the command line that repeats this run; a sweep's job is a run of its own."""
    return shlex.join(
        ["python", "-m", f"mhprobe.{task.removesuffix('.__main__')}", *Folder(folder).overrides()]
    )


def origin(task: str, folder: Path) -> dict[str, str]:
    """Return version, commit and command for a figure's metadata, with paths cut to their names."""
    return made_by(re.sub(r"=/\S*/(?=\S)", "=", command(task, Path(folder))))


def origin_of_script(module: str) -> dict[str, str]:
    """Return ``origin`` for a command without a configuration."""
    return made_by(
        shlex.join(
            ["python", "-m", f"mhprobe.{module}", *(Path(word).name for word in sys.argv[1:])]
        )
    )


def made_by(line: str) -> dict[str, str]:
    """Return what made a file, for its metadata: the version, the commit, and the command ``line``."""
    return {"version": __version__, "commit": commit() or "not recorded", "command": line}


@functools.cache
def commit() -> str | None:
    """Return the commit of the package's checkout, with ``-dirty`` if files differ; None if installed.

    It is asked for once: a process runs what it has imported, whatever is committed meanwhile.
    """
    home = Path(__file__).parents[4]
    if not (home / ".git").exists():
        return None
    command = [
        "git",
        "-C",
        str(home),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ]
    try:
        return (
            subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
            or None
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def versions() -> dict[str, str]:
    numbers = {"mhprobe": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            numbers[name] = importlib.metadata.version(name)
    return numbers


def hardware() -> dict[str, Any]:
    """Return the processor, the number of cores of this process, and its GPUs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"processor": processor(), "cores": cores, "gpus": gpus, "system": platform.system()}
