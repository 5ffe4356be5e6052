"""Names that look alike: e with an accent is one character (NFC) or two (NFD, as macOS writes names of files)."""

import unicodedata
from collections import Counter
from collections.abc import Iterable


def spelled(name: str) -> str:
    """Return a name in the spelling of Unicode that names are compared in (NFC)."""
    return unicodedata.normalize("NFC", name)


def as_spelled_in(names: Iterable[str], theirs: Iterable[str]) -> list[str]:
    """Return each name as ``theirs`` spell it, where they have it; two of theirs that look alike stay two."""
    there = dict.fromkeys(theirs)
    times = Counter(map(spelled, there))
    by_look = {spelled(name): name for name in there if times[spelled(name)] == 1}
    return [name if name in there else by_look.get(spelled(name), name) for name in names]
