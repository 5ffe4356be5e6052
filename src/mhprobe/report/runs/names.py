"""Short names for runs among others: what somebody typed that tells them apart, e.g. ``remove=18``.

A choice like ``prune=order`` changes forty settings of the configuration. Who compares runs thinks of the one word.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import PurePath

from mhprobe.report.runs.run import Run

MOST = 3  # settings in a name
_PLACES = ("hydra", "out", "cache_dir", "logger", "progress", "verbose")  # no property of what was run
_UNNAMED = ("model", "pruned")  # stems of weights that the folder around them names


def typed_apart(runs: Sequence[Run], without: Collection[str] = ()) -> list[dict[str, str]]:
    """For each run the typed settings that tell it from the others, three at most, without their sections where clear.

    As few settings as tell all runs apart that were typed differently. A run for which none of these was typed has
    settings of its own instead. without: settings that are left out, by their name or its end, e.g. seed.
    """
    typed = [_typed(run) for run in runs]
    keys = [key for key in dict.fromkeys(key for each in typed for key in each) if not {key, _end(key)} & {*without}]
    keys = [key for key in keys if len({each.get(key) for each in typed}) > 1]
    ends = Counter(map(_end, keys))
    short = {key: _end(key) if ends[_end(key)] == 1 else key for key in keys}
    telling: list[str] = []  # as few keys as make as many different runs as all of them do, found one by one
    while len(telling) < MOST and _different(typed, telling) < _different(typed, keys):
        telling.append(max(keys, key=lambda key: _different(typed, [*telling, key])))
    telling.sort(key=keys.index)
    found = []
    for each in typed:
        own = [key for key in telling if key in each] or [key for key in keys if key in each]
        found.append({short[key]: each[key] for key in own[:MOST]})
    return found


def _different(typed: Sequence[dict[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(each.get(key) for key in keys) for each in typed})


def names(runs: Sequence[Run]) -> list[str]:
    """A name of its own for every run: what was typed for it and not for the others, else its folder's."""
    told = [said(settings) for settings in typed_apart(runs)]
    folders = [run.name for run in runs]
    alike = Counter(told)
    found = [
        folder if not text else text if alike[text] == 1 else f"{text} ({folder})"
        for text, folder in zip(told, folders, strict=True)
    ]
    return found if len(set(found)) == len(found) else [f"{i + 1}: {name}" for i, name in enumerate(found)]


def said(settings: dict[str, str]) -> str:
    """Settings as they are typed, e.g. ``lr=0.1, remove=18``."""
    return ", ".join(f"{key}={value}" for key, value in settings.items())


def _typed(run: Run) -> dict[str, str]:
    words = (word.lstrip("+~").partition("=") for word in run.overrides)
    return {key: _short(value) for key, _, value in words if key.split(".")[0] not in _PLACES}


def _short(value: str) -> str:
    """The name of a file of weights, not the way to it."""
    path = PurePath(value)
    if path.suffix not in (".safetensors", ".ckpt"):
        return value
    return path.parent.name if path.stem in _UNNAMED and path.parent.name else path.stem


def _end(key: str) -> str:
    return key.rpartition(".")[2]
