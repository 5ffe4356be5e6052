"""bench.json: the rows of a run, with what they were measured on; and how a run compares with an earlier one."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.timing import Ratio
from mhprobe.errors import UserError
from mhprobe.io.files import write
from mhprobe.io.machine import processor

PACKAGES = ("torch", "timm", "lightning", "torchmetrics", "numpy", "scipy")


def conditions(size: str) -> dict[str, Any]:
    """What decides the numbers besides the code.

    load: processes that wanted a core in the last minute.
    """
    import torch

    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "size": size,
        "commit": commit(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "processor": processor(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        **({"float32": float32()} if torch.cuda.is_available() else {}),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def float32() -> dict[str, str]:
    """How a GPU multiplies float32: "tf32" rounds factors to 10 bits, "ieee" and "none" (torch's own choice) do not.

    torch leaves convolutions at tf32 and products at full precision; nothing here changes that.
    """
    import torch

    backends: Any = torch.backends
    return {
        "products": backends.cuda.matmul.fp32_precision,
        "convolutions": backends.cudnn.conv.fp32_precision,
    }


def commit() -> str:
    """Of the working tree, "+" where it was changed since; empty outside a repository."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def save(
    file: Path,
    conditions: Mapping[str, Any],
    rows: Mapping[str, Sequence[Ratio]],
    failed: Mapping[str, str],
    seconds: Mapping[str, int],
) -> None:
    """Written whole or not at all; after every part, so that a run that is killed leaves what it has.

    seconds: that each part took.
    """
    plain = {part: [dataclasses.asdict(row) for row in ratios] for part, ratios in rows.items()}
    document = {
        "conditions": conditions,
        "rows": plain,
        "failed": dict(failed),
        "seconds": dict(seconds),
    }
    write(file, (json.dumps(document, indent=2) + "\n").encode())


def load(file: Path) -> tuple[dict[str, Any], dict[str, list[Ratio]]]:
    """The conditions and the rows, part by part."""
    try:
        document = json.loads(file.read_text())
        rows = {part: [Ratio(**row) for row in ratios] for part, ratios in document["rows"].items()}
        return document["conditions"], rows
    except FileNotFoundError:
        raise UserError(
            f"--against: no file {file}; expected the bench.json of an earlier run."
        ) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise UserError(
            f"--against: {file} is no bench.json. Name the one that an earlier run wrote."
        ) from None


def worse(now: Ratio, before: Ratio) -> bool:
    """Whether a row with an aim went the wrong way, and further than the quartiles of both runs reach."""
    if now.limit.startswith(">="):
        return now.high < before.low
    return now.limit.startswith("<=") and now.low > before.high
