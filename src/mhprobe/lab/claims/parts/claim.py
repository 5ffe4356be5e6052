"""A claim: a sentence of a paper, the number that decides it, and how large that number has to be to matter."""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import mhprobe.lab.claims
from mhprobe.errors import UserError, nearest, quoted
from mhprobe.io.written import counted
from mhprobe.lab.claims.parts.estimates import Estimate
from mhprobe.lab.claims.parts.evidence import Evidence

Shape = Literal["more", "at most", "none"]
Effect = Callable[..., Estimate]


class Margin(NamedTuple):
    """The smallest effect that matters, its unit, and the reason why it is that."""

    size: float
    unit: str
    because: str


POINT = Margin(0.01, "of accuracy", "a point is what a run is known to on 10,000 images")
RANKS = Margin(0.3, "(rank correlation)", "less explains under a tenth of the variance of ranks")
MOSTLY = Margin(
    0.2,
    "(rank correlation, beyond .5)",
    "at .7 one explains half of the variance of the other's ranks",
)
DELETION = Margin(
    0.02,
    "of probability, mean over deletion",
    "a map that is .02 below random orders is hardly one",
)


class Asks(NamedTuple):
    """Evidence that a claim asks for besides columns of measures.

    masks: accuracy under masks. choice: masks, or heads, that validation images choose. images: a
    number per test image. second: another data set. maps: kinds of maps. runs: roles of other runs.
    """

    masks: bool = False
    choice: bool = False
    images: bool = False
    second: bool = False
    maps: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()


NOTHING_ELSE = Asks()
BY_CHOICE = Asks(masks=True, choice=True)


@dataclass(frozen=True)
class Claim:
    """A claim about the heads of a network; the docstring of its function describes the effect.

    effect: (evidence, columns of the measures that further arguments name) -> estimate, positive in
    the claimed direction. says: the claim, a sentence. source: paper, figure; model. shape: "more":
    holds above the margin, is contradicted below its negative; "at most": a cost (minus the effect)
    holds below the margin, contradicted above; "none": holds inside the margin. figure: of
    conf/paper, under which the verdict is quoted.
    """

    effect: Effect
    says: str
    source: str
    margin: Margin
    shape: Shape = "more"
    figure: str = ""
    asks: Asks = NOTHING_ELSE

    @functools.cached_property
    def measures(self) -> tuple[str, ...]:
        """Names of the measures that the effect needs."""
        return tuple(inspect.signature(self.effect).parameters)[1:]

    def estimate(self, evidence: Evidence) -> Estimate:
        """Return the effect in a network. UserError where it cannot be asked."""
        return self.effect(evidence, *(evidence.columns(name) for name in self.measures))

    @property
    def bounds(self) -> tuple[float, float]:
        """(low, high): between them the claim neither holds nor is contradicted; of shape "none" it holds there."""
        size = self.margin.size
        return (-size, -size) if self.shape == "at most" else (-size, size)


def claim(
    says: str,
    source: str,
    margin: Margin,
    shape: Shape = "more",
    figure: str = "",
    asks: Asks = NOTHING_ELSE,
) -> Callable[[Effect], Claim]:
    """Make a claim of the function that gives its effect; the arguments are fields of ``Claim``."""
    return lambda effect: Claim(effect, says, source, margin, shape, figure, asks)


@functools.cache
def all_claims() -> dict[str, Claim]:
    """Every claim by its name, which is that of its function, in the order of the alphabet."""
    names = [
        module.name
        for module in pkgutil.iter_modules(mhprobe.lab.claims.__path__)
        if not module.ispkg
    ]
    modules = [
        importlib.import_module(f"mhprobe.lab.claims.{name}")
        for name in names
        if name != "__main__"
    ]
    claims = {
        name: part
        for module in modules
        for name, part in vars(module).items()
        if isinstance(part, Claim)
    }
    return dict(sorted(claims.items()))


def claims_named(names: Sequence[str] | None) -> dict[str, Claim]:
    """The named claims; all for None.

    UserError for a name that no claim has, and for none at all.
    """
    if names is None:
        return all_claims()
    if not names:
        raise UserError("claims: expected the names of claims, or null for all, got an empty list.")
    for name in names:
        if name not in all_claims():
            hint = nearest(name, all_claims(), cutoff=0.4)
            raise UserError(
                f"claims: there is no claim {quoted(name)}; {hint}there are "
                f"{', '.join(all_claims())}."
            )
    return {name: claim for name, claim in all_claims().items() if name in names}


def refuse_left_out(claims: Mapping[str, Claim], measures: Collection[str]) -> None:
    """UserError where a claim needs a measure that is not among ``measures``."""
    needing = {
        name: [of for of in claim.measures if of not in measures] for name, claim in claims.items()
    }
    if missing := sorted({of for left_out in needing.values() for of in left_out}):
        without = [name for name, left_out in needing.items() if left_out]
        first = f"{', '.join(without[:3])}{' ...' if len(without) > 3 else ''}"
        one = len(missing) == 1
        need = f"{counted(len(without), 'claim')} {'needs' if len(without) == 1 else 'need'}"
        raise UserError(
            f"measures: {', '.join(missing)} {'is' if one else 'are'} left out, and {need} "
            f"{'it' if one else 'them'}: {first}. Keep {'it' if one else 'them'}, or name the other "
            "claims, claims=[...]."
        )
