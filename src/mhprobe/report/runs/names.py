"""Short names for runs among others, from the overrides that distinguish them, e.g. ``remove=18``.

An override like ``prune=order`` changes forty settings of the configuration, so overrides name runs better.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import PurePath

from mhprobe.report.runs.run import Run

MOST = 3  # settings in a name
_PLACES = ("hydra", "out", "cache_dir", "logger", "progress", "verbose")  # no property of what was run
_UNNAMED = ("model", "pruned")  # stems of weights that the folder around them names


def typed_apart(runs: Sequence[Run], without: Collection[str] = ()) -> list[dict[str, str]]:
    """Return for each run up to three overrides that distinguish it, without their sections if that is unambiguous.

    Chooses the fewest overrides that distinguish all runs with different ones; a run without any of these has others
    of its own. without: settings to leave out, by their name or its end, e.g. seed.
    """
    typed = [_typed(run) for run in runs]
    keys = [key for key in dict.fromkeys(key for of in typed for key in of) if not {key, _end(key)} & {*without}]
    keys = [key for key in keys if len({of.get(key) for of in typed}) > 1]
    ends = Counter(map(_end, keys))
    short = {key: _end(key) if ends[_end(key)] == 1 else key for key in keys}
    chosen: list[str] = []  # one by one the key that distinguishes most runs
    while len(chosen) < MOST and _different(typed, chosen) < _different(typed, keys):
        chosen.append(max(keys, key=lambda key: _different(typed, [*chosen, key])))
    chosen.sort(key=keys.index)
    named = [[key for key in chosen if key in of] or [key for key in keys if key in of] for of in typed]
    return [{short[key]: of[key] for key in own[:MOST]} for own, of in zip(named, typed, strict=True)]


def _different(typed: Sequence[dict[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(of.get(key) for key in keys) for of in typed})


def names(runs: Sequence[Run]) -> list[str]:
    """Return a unique name for every run: its distinguishing overrides, else its folder's name."""
    texts = [said(settings) for settings in typed_apart(runs)]
    alike = Counter(texts)
    unique = [
        run.name if not text else text if alike[text] == 1 else f"{text} ({run.name})"
        for text, run in zip(texts, runs, strict=True)
    ]
    return unique if len(set(unique)) == len(unique) else [f"{i + 1}: {name}" for i, name in enumerate(unique)]


def said(settings: dict[str, str]) -> str:
    """Write settings as they are typed, e.g. ``lr=0.1, remove=18``."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def _typed(run: Run) -> dict[str, str]:
    words = (word.lstrip("+~").partition("=") for word in run.overrides)
    return {key: _short(value) for key, _, value in words if key.split(".")[0] not in _PLACES}


def _short(value: str) -> str:
    """Shorten the path of a file of weights to its name."""
    path = PurePath(value)
    if path.suffix not in (".safetensors", ".ckpt"):
        return value
    return path.parent.name if path.stem in _UNNAMED and path.parent.name else path.stem


def _end(key: str) -> str:
    return key.rpartition(".")[2]
