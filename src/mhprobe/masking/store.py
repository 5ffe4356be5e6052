"""Greedy orders on disk, so that a search is done once: by the jobs of a sweep, and after an interruption.

One small JSON file per search. It is replaced atomically and carries a checksum; a damaged file is ignored, with a
warning, and written anew. Of two jobs that write at once the longer order stays; losing that race costs only the time
to search a step again, for every prefix of a greedy order is the start of the same order.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mhprobe.io.files import write

log = logging.getLogger(__name__)


def order_key(**parts: Any) -> str:
    """sha256 of everything that decides an order: weights, data, units, order, split. Plain values only."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class OrderStore:
    """Unit indices by key, as files of one folder.

    share: in a multi-process run, gives every process rank 0's order (a broadcast): processes that take up a search
    at different places would wait for each other for ever.
    """

    def __init__(self, folder: Path | str, share: Callable[[list[int]], list[int]] | None = None) -> None:
        self.folder = Path(folder)
        self.share = share

    def load(self, key: str) -> list[int]:
        """The longest order found so far; empty if there is none."""
        order = self._read(key)
        return order if self.share is None else self.share(order)

    def save(self, key: str, order: Sequence[int]) -> None:
        """Keep ``order`` unless the stored one is longer."""
        order = list(order)
        if len(self._read(key)) >= len(order):
            return
        write(self._file(key), json.dumps({"order": order, "sha256": _checksum(key, order)}).encode())

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _read(self, key: str) -> list[int]:
        file = self._file(key)
        try:
            record = json.loads(file.read_text())
            order = record["order"]
            if record["sha256"] != _checksum(key, order):
                raise ValueError("checksum")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError):
            log.warning("%s is damaged and ignored; the masking order is searched again.", file)
            return []
        return order


def _checksum(key: str, order: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps([key, order]).encode()).hexdigest()
