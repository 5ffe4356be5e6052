"""Out of memory: which setting to lower."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from mhprobe.errors import UserError


@contextlib.contextmanager
def explained(cfg: Mapping[str, Any]) -> Iterator[None]:
    """A device or a machine without memory as one line that names the batch sizes of ``cfg``."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch's OutOfMemoryError is the former; on a CPU it has no type
        text = str(error)
        if not (isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text):
            raise
        reason = (text.splitlines() or ["MemoryError"])[0][:120].rstrip(".")
        sizes = [f"data.{key}={cfg['data'].get(key)}" for key in ("batch_size", "eval_batch_size")]
        raise UserError(
            f"out of memory ({reason}). Lower {sizes[0]} (training) or "
            f"{sizes[1]} (tests and probes); trainer.accumulate_grad_batches keeps the size of a step."
        ) from error
