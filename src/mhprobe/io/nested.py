"""Options in nested mappings and lists, as a configuration holds them."""

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(
    part: Any, lists: bool = False, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the keys and the value of each option in nested mappings; none for another value.

    lists: look into lists, too, whose keys are positions.

    >>> dict(leaves({"optim": {"lr": 0.1, "betas": [0.9, 0.99]}, "seed": 0}))
    {('optim', 'lr'): 0.1, ('optim', 'betas'): [0.9, 0.99], ('seed',): 0}
    """
    inside = enumerate(part) if lists and isinstance(part, list | tuple) else ()
    for key, value in part.items() if isinstance(part, Mapping) else inside:
        if isinstance(value, Mapping | list | tuple if lists else Mapping) and value:
            yield from leaves(value, lists, (*path, str(key)))
        else:
            yield (*path, str(key)), value
