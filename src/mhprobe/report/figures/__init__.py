"""Figures, a module per family.

A kind of figure is a function with a caption; it is found by its name.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, Generic, ParamSpec

from matplotlib.figure import Figure

P = ParamSpec("P")


class Kind(Generic[P]):
    """A function that draws, called as such.

    caption: how to read the figure, and what it is read against. draws_control: it draws the
    untrained network itself, from the column "random_init".
    """

    def __init__(self, draw: Callable[P, Figure], caption: str, draws_control: bool) -> None:
        functools.update_wrapper(self, draw)
        self.draw, self.caption, self.draws_control = draw, caption, draws_control

    def __call__(self, *args: P.args, **options: P.kwargs) -> Figure:
        return self.draw(*args, **options)


def captioned(
    caption: str, draws_control: bool = False
) -> Callable[[Callable[P, Figure]], Kind[P]]:
    """Make a kind of figure of a function that draws."""
    return lambda draw: Kind(draw, caption, draws_control)


@functools.cache
def kinds() -> dict[str, Kind[Any]]:
    """Every kind of figure by its name, in the order of modules."""
    modules = [
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    ]
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, Kind)
    }
