"""How much a bench measures: ``tiny`` is for the tests and measures nothing, ``full`` takes more than an hour."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Size:
    """name: tiny, usual or full.

    cifar: the CIFAR-10 archive, None for stand-ins. cache: where decoded images go.
    """

    name: str
    cifar: Path | None = None
    cache: Path = Path(".cache/mhprobe")

    def pick(self, tiny: T, usual: T, full: T | None = None) -> T:
        """The number of this size; ``full`` is as ``usual`` where there is none."""
        return {"tiny": tiny, "usual": usual, "full": usual if full is None else full}[self.name]

    def rounds(self, usual: int) -> int:
        """Timings of each side."""
        return self.pick(1, usual)
