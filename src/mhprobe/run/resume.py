"""From which checkpoint a training run goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mhprobe.errors import UserError


def resume(cfg: dict[str, Any], folder: Path) -> str | None:
    """The checkpoint that ``ckpt_path`` asks for; None to start anew. folder: of this run."""
    path = cfg["ckpt_path"]
    if path is None:
        return None
    if "://" in path:
        raise UserError(f"ckpt_path: {path} is remote, where pickled code could hide; download it first.")
    if path != "last":
        if not Path(path).is_file():
            raise UserError(f"ckpt_path: no file {path}; ckpt_path=last takes the newest run's last checkpoint.")
        return path
    runs = Path(cfg["out"]) / cfg["name"]
    own = folder / "checkpoints"
    found = sorted({*runs.glob("**/checkpoints/last.ckpt"), *own.glob("last.ckpt")}, key=os.path.getmtime)
    if not found:
        raise UserError(f"ckpt_path=last: no last.ckpt under {runs}; leave ckpt_path out to start anew.")
    print(f"resuming from {found[-1]}")
    return str(found[-1])
