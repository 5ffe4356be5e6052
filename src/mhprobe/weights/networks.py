"""Find the networks in a weights file, and choose one of them.

A file holds tensors by name, maybe in mappings within mappings (``state_dict``, ``model_ema``,
``teacher``). A network is all tensors behind one prefix: keys of mappings and the beginnings of
names count alike. Wrappers of modules (compile, DataParallel, FSDP, checkpointing) add parts to
names; these parts are removed wherever they stand.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhprobe.errors import UserError, quoted

State = dict[str, Tensor]
# under which keys training scripts keep a state dict
HOLDERS = (
    "state_dict_ema",
    "model_ema",
    "ema",
    "teacher",
    "state_dict",
    "model_state_dict",
    "model",
    "module",
    "student",
)
WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
AVERAGES = {"ema", "averaged", "swa"}  # words of a prefix: these weights are the ones to evaluate
DEPTH = 8  # of mappings within mappings
_SHOWN = 4  # keys in an error
_GROUPS = 40  # groups of tensors in a line


class NetworkInFile(NamedTuple):
    """One network of a file: ``prefix``, its tensors by the names behind it, and what lies beside it."""

    prefix: str
    state: State
    beside: State  # tensors of the same mapping that are part of no network
    notes: list[str]  # sentences on the choice


def find_network(
    content: Any, shapes: Mapping[str, Sequence[int]], path: Path, where: str, prefix: str | None
) -> NetworkInFile:
    """Choose the network in ``content`` that is most like a model.

    shapes: of the model's tensors, by name. prefix: the one that the user named; None to choose.
    where: the key that the user gave, for errors. Raises UserError for a file without tensors, for
    a prefix that is not there, and for several networks where nothing tells which one is meant.
    """
    states = dict(_states(content, path, where))
    unwrapped = {holder: _unwrapped(state, shapes) for holder, state in states.items()}
    found = _candidates(unwrapped, shapes)
    if prefix is not None:
        found = _named(found, unwrapped, prefix, path, where)
    best = max((fits for _, _, fits in found), default=0)
    found = [one for one in found if 4 * one[2] >= 3 * best]
    if not found:  # no such network: timm may know its names
        found = [(max(states, key=lambda holder: len(states[holder])), "", 0)]
    (holder, inner), note = _chosen(found, unwrapped, path, where)
    state = _behind(unwrapped[holder], inner)
    others = [f"{name}." for place, name, _ in found if place == holder and name != inner]
    beside = {
        key: value
        for key, value in unwrapped[holder].items()
        if inner and not key.startswith((f"{inner}.", *others))
    }
    lost = [part for part in WRAPPERS if any(part in key.split(".") for key in states[holder])]
    lost = [part for part in lost if not any(part in key.split(".") for key in unwrapped[holder])]
    notes = note if prefix is None else []
    if lost:
        notes = [*notes, f"its names lose {', '.join(lost)}"]
    return NetworkInFile(_full(holder, inner), state, beside, notes)


def grouped(tensors: Mapping[str, Any]) -> str:
    """Name tensors with their shapes; those that differ by a block's number stand together.

    >>> grouped({f"blocks.{i}.norm.bias": torch.zeros(3) for i in range(2)})
    'blocks.*.norm.bias (3,) x 2'
    """
    groups: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for key, value in tensors.items():
        shape = tuple(getattr(value, "shape", value))
        groups.setdefault((re.sub(r"(?<=\.)\d+(?=\.)", "*", key), shape), []).append(key)
    parts = [
        f"{keys[0]} {shape}" if len(keys) == 1 else f"{pattern} {shape} x {len(keys)}"
        for (pattern, shape), keys in groups.items()
    ]
    return some(parts, _GROUPS)


def some(keys: Sequence[str], most: int = _SHOWN) -> str:
    """The first ``most`` of these, and how many more there are."""
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return f"{', '.join(keys[:most])}{more}"


def option(where: str, name: str) -> str:
    """An option of reading files as the user writes it: ``backbone.prefix`` on the command line."""
    section, dot, _ = where.rpartition(".")
    return f"{section}{dot}{name}" if section == "backbone" else name


def _states(content: Any, path: Path, where: str) -> Iterable[tuple[str, State]]:
    """Yield each mapping in a file that holds mostly tensors, with the keys that lead to it."""
    if not isinstance(content, Mapping):
        raise UserError(
            f"{where}: {path} holds a {type(content).__name__}, expected tensors by name (a state "
            "dict)."
        )
    found = [*_walk(content, "", DEPTH)]
    # an optimizer keeps tensors, too; what no training script calls a network counts last
    known = [one for one in found if not re.search(r"optim|sched|scaler|rng", one[0])]
    if not (known or found):
        has = some([str(key) for key in content]) or "nothing"
        raise UserError(
            f"{where}: {path} holds no state dict: it has {has}, expected tensors "
            f"by name, or such a dict under {', '.join(HOLDERS)}."
        )
    return known or found


def _walk(part: Mapping[Any, Any], place: str, depth: int) -> Iterable[tuple[str, State]]:
    tensors = {str(key): value for key, value in part.items() if isinstance(value, Tensor)}
    # of a state dict most values are tensors: gates and metrics keep other things beside them
    if len(tensors) > len(part) / 2:
        yield place, tensors
        return
    for key, value in part.items() if depth else ():
        if isinstance(value, Mapping):
            yield from _walk(value, _full(place, str(key)), depth - 1)


def _unwrapped(state: State, shapes: Mapping[str, Any]) -> State:
    """The state without the parts of names that wrappers of modules add; two of one name stay as they are."""
    genuine = {part for key in shapes for part in key.split(".")}
    parts = set(WRAPPERS) - genuine

    def plain(key: str) -> str:
        return ".".join(part for part in key.split(".") if part not in parts)

    renamed = {plain(key): value for key, value in state.items()}
    return renamed if len(renamed) == len(state) else state


def _candidates(
    states: Mapping[str, State], shapes: Mapping[str, Any]
) -> list[tuple[str, str, int]]:
    """(place of the mapping, prefix in it, number of the model's tensors behind it), most first.

    A tensor counts twice if its shape is the model's, too. A network has half of the names.
    """
    found, tops = [], {key.split(".")[0] for key in shapes}
    for holder, state in states.items():
        behind: Counter[str] = Counter()
        names: dict[str, list[str]] = {}
        for key, value in state.items():
            parts = key.split(".")
            for i in range(len(parts)):
                name = ".".join(parts[i:])
                if name in shapes:
                    prefix = ".".join(parts[:i])
                    same = tuple(value.shape) == tuple(shapes[name])
                    behind[prefix] += 1 + same
                    names.setdefault(prefix, []).append(name)
        found += [
            (holder, prefix, fits)
            for prefix, fits in behind.items()
            # blocks alone, as those of a stage, are no network
            if 2 * len(names[prefix]) >= len(shapes)
            and 2 * len({name.split(".")[0] for name in names[prefix]}) >= len(tops)
        ]
    # of equals the holders' order, which has averages first, then the shortest
    rank = {holder: number for number, holder in enumerate(HOLDERS)}
    return sorted(
        found, key=lambda one: (-one[2], rank.get(one[0], len(rank)), len(one[1]), one[1])
    )


def _named(
    found: list[tuple[str, str, int]],
    states: Mapping[str, State],
    prefix: str,
    path: Path,
    where: str,
) -> list[tuple[str, str, int]]:
    """The candidates behind the user's prefix: the whole of it, or from the mapping's key on."""
    asked = ".".join(part for part in prefix.strip(".").split(".") if part not in WRAPPERS)
    for name in dict.fromkeys((prefix.strip("."), asked)):
        names = [{_full(one[0], one[1]), one[1], one[0]} for one in found]
        exact = [one for one, known in zip(found, names, strict=True) if name in known]
        within = [
            one
            for one, known in zip(found, names, strict=True)
            if any(other.startswith(f"{name}.") for other in known)
        ]
        if exact or within:
            return exact or within
    # tensors that the model does not call so, but timm may translate
    for holder, state in states.items():
        for inner in (asked, prefix.strip(".")):
            if _behind(state, inner):
                return [(holder, inner, 0)]
    there = dict.fromkeys(
        _full(holder, key.split(".")[0]) for holder, state in states.items() for key in state
    )
    raise UserError(
        f"{option(where, 'prefix')}: nothing in {path} is behind {quoted(prefix)}. It has "
        f"{some([*there], 12)}."
    )


def _chosen(
    found: list[tuple[str, str, int]], states: Mapping[str, State], path: Path, where: str
) -> tuple[tuple[str, str], list[str]]:
    """The network among candidates that all look like the model, with a sentence if there are several."""
    names = [_full(holder, inner) for holder, inner, _ in found]
    first = found[0][:2]
    parts = [_behind(states[holder], inner) for holder, inner, _ in found]
    if len(found) == 1 or all(_equal(parts[0], part) for part in parts[1:]):
        return first, []
    give = option(where, "prefix")
    several = f"of the networks {', '.join(name or repr('') for name in names)} in it"
    averaged = _averaged(names, parts, [states[holder] for holder, _, _ in found])
    one_average = all(_equal(parts[averaged[0]], parts[at]) for at in averaged[1:])
    if averaged and one_average:
        at = averaged[0]
        taken = f"{several} {names[at]} is taken (averaged weights)"
    elif one_average and all(_alike(parts[0], part) for part in parts[1:]):
        at, taken = 0, f"{several} {names[0] or repr('')} is taken (a guess: they are alike)"
    else:
        raise UserError(
            f"{where}: {path} holds several networks that fit: {', '.join(map(quoted, names))}. "
            f"Say which one: {give}={names[0] or repr('')}."
        )
    others = [f"{give}={name or repr('')}" for number, name in enumerate(names) if number != at]
    which = "the other" if len(others) == 1 else "another"
    return found[at][:2], [f"{taken}; {' or '.join(others)} takes {which}"]


def _averaged(
    names: Sequence[str], parts: Sequence[State], states: Sequence[State]
) -> Sequence[int]:
    """Return which of several networks are averages of weights, by their names.

    parts: tensors of each network. states: of what holds it.
    """
    words = [set(re.split(r"[._]", name.lower())) for name in names]
    averaged = [at for at, its in enumerate(words) if its & AVERAGES]
    if averaged:
        return averaged
    teachers = [at for at, its in enumerate(words) if "teacher" in its]
    students = [at for at, its in enumerate(words) if "student" in its]
    if not teachers or not students:
        return []
    # the teacher of a self-distillation is an average of the student, of the same shapes
    at = teachers[0]
    distilled = any("last_layer" in key for key in states[at])
    return [at] if _alike(parts[at], parts[students[0]]) or distilled else []


def _equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(
        value.shape == other[key].shape and torch.equal(value, other[key])
        for key, value in one.items()
    )


def _alike(one: State, other: State) -> bool:
    """True if one network is near the other, as an average over training steps is."""
    keys = [
        key
        for key, value in one.items()
        if key in other and value.ndim > 1 and value.shape == other[key].shape
    ]
    near, size = 0.0, 0.0
    for key in keys:
        a = one[key].double().flatten()
        b = other[key].double().flatten()
        near += float(a @ b)
        size += float(a.norm() * b.norm())
    return bool(keys) and near > 0.5 * size


def _behind(state: State, prefix: str) -> State:
    dotted = f"{prefix}." if prefix else ""
    return {
        key.removeprefix(dotted): value for key, value in state.items() if key.startswith(dotted)
    }


def _full(place: str, name: str) -> str:
    return f"{place}.{name}" if place and name else place or name
