"""Errors for want of memory or of room on a disk, as one line that names the setting to change."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mhprobe.errors import UserError, first_line
from mhprobe.io.files import reason

if TYPE_CHECKING:
    from mhprobe.framework.run.schema import Config

# a disk that is full, over quota, read-only, broken, or gone
DISK = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.ENODEV,
}


def no_memory(error: BaseException) -> bool:
    """Return True if memory ran out: torch's OutOfMemoryError, or that of a CPU, which has no type."""
    words = ("out of memory", "can't allocate memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(w in str(error) for w in words)
    )


@contextlib.contextmanager
def naming_settings(cfg: "Config") -> Iterator[None]:
    """Raise UserError, naming settings of ``cfg``, for a shortage inside."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not no_memory(error):
            raise
        raise UserError(
            f"out of memory ({first_line(error)[:120]}). Lower "
            f"data.batch_size={cfg.data.get('batch_size')} (training) "
            f"or data.eval_batch_size={cfg.data.get('eval_batch_size') or 'null (a million pixels)'} (tests and "
            f"probes); trainer.accumulate_grad_batches keeps the size of a step."
        ) from error
    except OSError as error:
        if error.errno not in DISK:
            raise
        raise UserError(
            f"{error.filename or 'a file of the run'} cannot be written ({error.strerror}). Make "
            "room or choose other "
            f"folders: now out={cfg.out} ({reason(error, Path(cfg.out))}) and "
            f"cache_dir={cfg.cache_dir} "
            f"({reason(error, Path(cfg.cache_dir))})."
        ) from error
