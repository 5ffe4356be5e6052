"""A claim: a sentence of a paper, the number that decides it, and how large that number has to be to matter."""

import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

import mhprobe.claims
from mhprobe.claims.parts.estimates import Estimate
from mhprobe.errors import UserError, quoted
from mhprobe.heads import HeadLayout
from mhprobe.report.runs.run import Run

Columns = Mapping[str, Tensor]
Shape = Literal["more", "at most", "none"]
NOTHING_LEARNED = "an untrained network guesses: there is no accuracy to lose, and nothing to explain."


class Evidence:
    """Numbers of one network that claims are judged by, each measured once, when it is asked for first.

    layout: of the network's heads. A UserError from any method says why this network, or this data set, cannot be
    asked. What only a trained network has is refused here, and given by ``Measured``.
    """

    layout: HeadLayout

    def columns(self, name: str) -> Columns:
        """Columns of a measure of the test images, by its name in conf/claims.yaml."""
        raise NotImplementedError

    def control(self, name: str) -> Columns:
        """Columns of the same measure of the untrained twin."""
        raise UserError("it compares a network with an untrained one.")

    def second(self, name: str) -> Columns:
        """Columns of the same measure of another data set with the same classes."""
        raise UserError(NOTHING_LEARNED)

    def path(self, name: str) -> Tensor:
        """(R, S + 1, A) bool masks after each step of R paths, chosen on validation images; True: head off."""
        raise UserError(NOTHING_LEARNED)

    def right(self, masks: Tensor, split: str = "test") -> Tensor:
        """(M, n) bool: images of a split that are classified rightly under each of the (M, A) masks."""
        raise UserError(NOTHING_LEARNED)

    def of_images(self, name: str) -> Tensor:
        """(n,) a number per test image, e.g. the area under deletion in the order of a map."""
        raise UserError(NOTHING_LEARNED)

    def run(self, name: str) -> Run:
        """Another run, which the user gives by what it is to this network: training, pruned, scratch, wider."""
        raise UserError(NOTHING_LEARNED)


class Margin(NamedTuple):
    """The smallest effect that matters, its unit, and the reason why it is that."""

    size: float
    unit: str
    because: str


POINT = Margin(0.01, "of accuracy", "a point is what a run is known to on 10,000 images")
RANKS = Margin(0.3, "(rank correlation)", "less explains under a tenth of the variance of ranks")
MOSTLY = Margin(0.2, "(rank correlation, beyond .5)", "at .7 one explains half of the variance of the other's ranks")
DELETION = Margin(0.02, "of probability, mean over deletion", "a map that is .02 below random orders is hardly one")


@dataclass(frozen=True)
class Claim:
    """A claim about the heads of a network; the docstring of its file says what its number is.

    effect: from evidence, and the columns of the measures that its further arguments name, to an estimate, positive in
    the claimed direction. The others are those of ``claim``.
    """

    effect: Callable[..., Estimate]
    says: str
    source: str
    margin: Margin
    shape: Shape = "more"
    figure: str = ""

    @functools.cached_property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures that the effect needs."""
        return tuple(inspect.signature(self.effect).parameters)[1:]

    def estimate(self, evidence: Evidence) -> Estimate:
        """Return the effect in a network. UserError where it cannot be asked."""
        return self.effect(evidence, *(evidence.columns(name) for name in self.measures))

    @property
    def bounds(self) -> tuple[float, float]:
        """Effects between which the claim neither holds nor is contradicted; of shape "none" it holds there."""
        size = self.margin.size
        return (-size, -size) if self.shape == "at most" else (-size, size)


def claim(
    says: str, source: str, margin: Margin, shape: Shape = "more", figure: str = ""
) -> Callable[[Callable[..., Estimate]], Claim]:
    """Make a claim of the function that gives its effect.

    says: the claim, a sentence. source: paper, figure or table; on what it was made. margin: the smallest effect that
    matters. shape: "more": the effect is above the margin, and contradicted below its negative; "at most": a cost, of
    which the effect is the negative, is below the margin, and contradicted above; "none": no effect is beyond the
    margin. figure: of a paper of conf/paper, under which it is quoted.
    """
    return lambda effect: Claim(effect, says, source, margin, shape, figure)


@functools.cache
def known() -> dict[str, Claim]:
    """Every claim by its name, which is that of its file."""
    modules = [each.name for each in pkgutil.iter_modules(mhprobe.claims.__path__) if not each.ispkg]
    names = [name for name in modules if not name.startswith("_")]
    return {name: importlib.import_module(f"{mhprobe.claims.__name__}.{name}").effect for name in names}


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
