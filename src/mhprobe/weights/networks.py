"""Find the networks in a weights file, and choose one of them.

A file holds tensors by name, maybe in mappings within mappings (``state_dict``, ``model_ema``,
``teacher``). A network is all tensors behind one prefix: keys of mappings and the beginnings of
names count alike. Wrappers of modules (compile, DataParallel, FSDP, checkpointing) add parts to
names; these parts are removed wherever they stand.
"""

import re
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


class Candidate(NamedTuple):
    """A place in a file whose tensors have a model's names.

    holder: keys that lead to the mapping. inner: prefix of names in it. fits: number of the model's
    tensors behind it; one that has the model's shape, too, counts twice.
    """

    holder: str
    inner: str
    fits: int

    @property
    def name(self) -> str:
        return _full(self.holder, self.inner)


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
    best = max((one.fits for one in found), default=0)
    found = [one for one in found if 4 * one.fits >= 3 * best]
    if not found:  # no such network: timm may know its names
        found = [Candidate(max(states, key=lambda holder: len(states[holder])), "", 0)]
    chosen, notes = _chosen(found, unwrapped, path, where)
    state = unwrapped[chosen.holder]
    if prefix is not None:
        notes = []
    if lost := _parts_lost(states[chosen.holder], state):
        notes = [*notes, f"its names lose {', '.join(lost)}"]
    beside = _outside_networks(chosen, found, state)
    return NetworkInFile(chosen.name, _behind(state, chosen.inner), beside, notes)


def _outside_networks(chosen: Candidate, found: Sequence[Candidate], state: State) -> State:
    """The tensors of the chosen network's mapping that are part of no network."""
    if not chosen.inner:
        return {}
    networks = tuple(f"{one.inner}." for one in found if one.holder == chosen.holder)
    return {key: value for key, value in state.items() if not key.startswith(networks)}


def _parts_lost(before: State, after: State) -> list[str]:
    """The parts of WRAPPERS that stood in names before, and stand there no more."""
    had = {part for key in before for part in key.split(".")}
    kept = {part for key in after for part in key.split(".")}
    return [part for part in WRAPPERS if part in had - kept]


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


def _candidates(states: Mapping[str, State], shapes: Mapping[str, Any]) -> list[Candidate]:
    """The places that have half of a model's names, most first.

    Of equals the holders' order decides, which has averages first, then the shortest prefix.
    """
    found = [
        Candidate(holder, prefix, _fits(state, names, prefix, shapes))
        for holder, state in states.items()
        for prefix, names in _names_behind(state, shapes).items()
        if _is_network(names, shapes)
    ]
    rank = {holder: number for number, holder in enumerate(HOLDERS)}

    def order(one: Candidate) -> tuple[int, int, int, str]:
        return -one.fits, rank.get(one.holder, len(rank)), len(one.inner), one.inner

    return sorted(found, key=order)


def _names_behind(state: State, shapes: Mapping[str, Any]) -> dict[str, list[str]]:
    """By prefix the model's names that stand behind it."""
    names: dict[str, list[str]] = {}
    for key in state:
        parts = key.split(".")
        for start in range(len(parts)):
            name = ".".join(parts[start:])
            if name in shapes:
                names.setdefault(".".join(parts[:start]), []).append(name)
    return names


def _fits(state: State, names: Sequence[str], prefix: str, shapes: Mapping[str, Any]) -> int:
    """Return the number of names, those that have the model's shape twice."""
    same = [tuple(state[_full(prefix, name)].shape) == tuple(shapes[name]) for name in names]
    return len(names) + sum(same)


def _is_network(names: Sequence[str], shapes: Mapping[str, Any]) -> bool:
    """True for half of a model's names; blocks alone, as those of a stage, are no network."""
    its_tops = {name.split(".")[0] for name in names}
    tops = {name.split(".")[0] for name in shapes}
    return 2 * len(names) >= len(shapes) and 2 * len(its_tops) >= len(tops)


def _named(
    found: list[Candidate], states: Mapping[str, State], prefix: str, path: Path, where: str
) -> list[Candidate]:
    """The candidates behind the user's prefix: the whole of it, or from the mapping's key on."""
    whole = prefix.strip(".")
    asked = ".".join(part for part in whole.split(".") if part not in WRAPPERS)
    for name in dict.fromkeys((whole, asked)):
        if there := _of_name(found, name):
            return there
    # tensors that the model does not call so, but timm may translate
    for holder, state in states.items():
        for inner in (asked, whole):
            if _behind(state, inner):
                return [Candidate(holder, inner, 0)]
    tops = dict.fromkeys(
        _full(holder, key.split(".")[0]) for holder, state in states.items() for key in state
    )
    raise UserError(
        f"{option(where, 'prefix')}: nothing in {path} is behind {quoted(prefix)}. It has "
        f"{some([*tops], 12)}."
    )


def _of_name(found: Sequence[Candidate], name: str) -> list[Candidate]:
    """The candidates with this name; without one, those that lie within it."""
    exact = [one for one in found if name in (one.name, one.inner, one.holder)]
    within = [
        one
        for one in found
        if any(place.startswith(f"{name}.") for place in (one.name, one.inner, one.holder))
    ]
    return exact or within


def _chosen(
    found: Sequence[Candidate], states: Mapping[str, State], path: Path, where: str
) -> tuple[Candidate, list[str]]:
    """The network among candidates that all look like the model, with a sentence if there are several."""
    parts = [_behind(states[one.holder], one.inner) for one in found]
    if all(_equal(parts[0], part) for part in parts[1:]):
        return found[0], []
    averaged = _averaged([one.name for one in found], parts, [states[one.holder] for one in found])
    one_average = all(_equal(parts[averaged[0]], parts[at]) for at in averaged[1:])
    if averaged and one_average:
        return found[averaged[0]], [_taken(found, averaged[0], "averaged weights", where)]
    if one_average and all(_alike(parts[0], part) for part in parts[1:]):
        return found[0], [_taken(found, 0, "a guess: they are alike", where)]
    names = [one.name for one in found]
    raise UserError(
        f"{where}: {path} holds several networks that fit: {', '.join(map(quoted, names))}. "
        f"Say which one: {option(where, 'prefix')}={names[0] or repr('')}."
    )


def _taken(found: Sequence[Candidate], at: int, why: str, where: str) -> str:
    """A sentence: which of several networks is taken, why, and how to have another."""
    names = [one.name or repr("") for one in found]
    others = [f"{option(where, 'prefix')}={name}" for name in names[:at] + names[at + 1 :]]
    which = "the other" if len(others) == 1 else "another"
    return (
        f"of the networks {', '.join(names)} in it {names[at]} is taken ({why}); "
        f"{' or '.join(others)} takes {which}"
    )


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
