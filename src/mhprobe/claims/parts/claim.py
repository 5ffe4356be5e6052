"""A claim: a sentence of a paper, the number that decides it, and how large that number has to be to matter."""

import difflib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

import mhprobe.claims
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout

Columns = Mapping[str, Tensor]
Shape = Literal["more", "at most", "none"]


class Evidence(Protocol):
    """Numbers of one network that claims are judged by, each measured once, when it is asked for first.

    A UserError from any method says why this network, or this data set, cannot be asked.
    """

    @property
    def layout(self) -> HeadLayout:
        """Layout of the network's heads."""
        ...

    def columns(self, name: str) -> Columns:
        """Columns of a measure of the test images, by its name in conf/claims.yaml."""
        ...

    def control(self, name: str) -> Columns:
        """Columns of the same measure of the untrained twin."""
        ...

    def path(self, name: str) -> Tensor:
        """(R, S + 1, A) bool masks after each step of R paths, chosen on validation images; True: head off."""
        ...

    def right(self, masks: Tensor, split: str = "test") -> Tensor:
        """(M, n) bool: images of a split that are classified rightly under each of the (M, A) masks."""
        ...

    def of_images(self, name: str) -> Tensor:
        """(n,) a number per test image, e.g. the area under deletion in the order of a map."""
        ...


@dataclass(frozen=True)
class Claim:
    """A claim about the heads of a network.

    says: the claim, a sentence. source: paper, figure or table. network: on what it was made. effect: from evidence to
    an estimate, positive in the claimed direction. unit: of the effect. matters: the smallest effect that matters;
    because: why. measures: names of the measures that are asked for, so that one pass takes them all.
    shape: "more": the effect is above ``matters``, and contradicted below its negative; "at most": a cost, of which the
    effect is the negative, is below ``matters``, and contradicted above; "none": no effect is beyond ``matters``.
    """

    says: str
    source: str
    network: str
    effect: Callable[[Evidence], Estimate]
    unit: str
    matters: float
    because: str
    measures: tuple[str, ...] = ()
    shape: Shape = "more"

    @property
    def bounds(self) -> tuple[float, float]:
        """Effects between which the claim neither holds nor is contradicted; of shape "none" it holds there."""
        return (-self.matters, -self.matters) if self.shape == "at most" else (-self.matters, self.matters)


@functools.cache
def known() -> dict[str, Claim]:
    """Every claim by its name, which is that of its file."""
    modules = [each.name for each in pkgutil.iter_modules(mhprobe.claims.__path__) if not each.ispkg]
    names = [name for name in modules if not name.startswith("_")]
    return {name: importlib.import_module(f"{mhprobe.claims.__name__}.{name}").CLAIM for name in names}


def chosen(names: Sequence[str] | None) -> dict[str, Claim]:
    """The named claims; all for None. UserError for a name that no claim has, and for none at all."""
    if names is None:
        return known()
    if not names:
        raise UserError("claims: expected the names of claims, or null for all, got an empty list.")
    for name in names:
        if name not in known():
            close = difflib.get_close_matches(str(name), known(), n=1, cutoff=0.4)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UserError(f"claims: there is no claim {quoted(name)}; {hint}There are {', '.join(known())}.")
    return {name: claim for name, claim in known().items() if name in names}
