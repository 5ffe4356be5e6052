"""A default is written once, in the constructor. What a yaml leaves out comes from there, to be seen and to be set.

``--cfg job`` shows it, and an override needs no ``+``.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from mhprobe.run.constructors import Options, options

Place = tuple[str | int, ...]  # of keys


class Filled(NamedTuple):
    """Defaults that one part was given: its place, its target, its options."""

    path: Place
    target: str
    added: Options


def fill(cfg: DictConfig) -> list[Filled]:
    """Add to each part of ``cfg`` with a ``_target_`` of ours the options that it does not state, in place."""
    found = list(_left_out((), OmegaConf.to_container(cfg, resolve=False)))
    for path, _, added in found:
        part = _part(cfg, path)
        with open_dict(part):
            part.update(added)
    return found


def take_back(cfg: DictConfig, filled: Iterable[Filled], typed: Iterable[str]) -> None:
    """Take from each part that has become another one what it was given, but for the keys that somebody ``typed``."""
    kept = set(typed)
    for path, target, added in filled:
        part = _part(cfg, path)
        if isinstance(part, DictConfig) and part.get("_target_") != target:
            with open_dict(part):
                for key in added:
                    if ".".join(map(str, (*path, key))) not in kept:
                        part.pop(key, None)


def _part(cfg: DictConfig, path: Place) -> Any:
    """None where it is no more."""
    part: Any = cfg
    for key in path:
        there = range(len(part)) if isinstance(part, ListConfig) else part if isinstance(part, DictConfig) else ()
        part = part[key] if key in there else None
    return part


def _left_out(path: Place, plain: Any) -> Iterator[Filled]:
    parts = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    target = str(plain.get("_target_")) if isinstance(plain, dict) else ""
    if added := {option: default for option, default in options(target).items() if option not in plain}:
        yield Filled(path, target, added)
    for key, part in parts:
        yield from _left_out((*path, key), part)
