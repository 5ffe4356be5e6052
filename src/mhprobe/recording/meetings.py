"""Attention weights as they pass: from queries and keys where attention is fused, else from a module.

While a block runs, its queries and keys are met at torch's scaled_dot_product_attention
(``Seam.met_at``), which runs as it is. Where weights pass a module anyway (attention that is not
fused, cosine attention), they are taken there.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from mhprobe.backbones.base import Seam
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, Shown, Weights
from mhprobe.heads.attention import Paired, Product

Take = Callable[[int, Weights], None]
Through = Callable[[int, Tensor], Tensor]


class Meetings(contextlib.ExitStack):
    """``with Meetings(layout, seams, take): model(images)`` calls ``take`` with each site's number and weights.

    seams: by number of the site in ``layout``. through: called with the number and the result of
    fused attention, or with weights that pass a module; its return value takes their place. Raises
    UserError for a site without weights.
    """

    def __init__(
        self,
        layout: HeadLayout,
        seams: Mapping[int, Seam],
        take: Take,
        through: Through | None = None,
    ) -> None:
        super().__init__()
        self.layout, self.seams, self.take, self.through = layout, seams, take, through
        # the number of the site whose attention runs, and where it is met
        self.inside: tuple[int, Callable[..., Tensor]] | None = None

    def __enter__(self) -> "Meetings":
        super().__enter__()
        try:
            for number, seam in self.seams.items():
                self._meet(number, seam)
            self.enter_context(_Meeting(self))
        except BaseException:
            self.close()
            raise
        return self

    def _meet(self, number: int, seam: Seam) -> None:
        if seam.weights is None:
            raise UserError(seam.hidden)
        shown = functools.partial(self._shows, number)
        meeting = seam.meeting()
        if meeting is None:
            self.enter_context(seam.watched(shown))
            return
        self.enter_context(seam.weights.register_forward_pre_hook(shown))
        enter = functools.partial(self._enters_site, number, meeting)
        self.enter_context(seam.attention.register_forward_pre_hook(enter))
        self.enter_context(seam.attention.register_forward_hook(self._leaves_site))

    def _enters_site(self, number: int, meeting: Callable[..., Tensor], *_: Any) -> None:
        self.inside = number, meeting

    def _leaves_site(self, *_: Any) -> None:
        self.inside = None

    def _shows(self, number: int, _module: nn.Module, args: tuple[Tensor, ...]) -> Any:
        if self.through is not None:
            args = (self.through(number, args[0]), *args[1:])
        self.take(number, Shown(args[0]))
        return args

    def met(self, meeting: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
        """Run the function at which the site that runs is met, and take its weights."""
        assert self.inside is not None
        number = self.inside[0]
        if meeting is F.softmax:
            result = meeting(*args, **kwargs)
            weights: Weights = Shown(result)
        else:
            weights = Paired(self.layout.sites[number].num_heads, Product(*args, **kwargs))
        self.take(number, weights)
        if meeting is not F.softmax:
            result = meeting(*args, **kwargs)
        return result if self.through is None else self.through(number, result)


class _Meeting(TorchFunctionMode):
    """While it is on, calls of the function where a site is met are seen inside it, and run as they are."""

    def __init__(self, meetings: Meetings) -> None:
        super().__init__()
        self.meetings = meetings

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inside = self.meetings.inside
        if inside is None or func is not inside[1]:
            return func(*args, **kwargs)
        return self.meetings.met(func, args, kwargs)


def meets_pairs(seam: Seam) -> bool:
    """Return True if queries and keys of the site can be met just now."""
    return seam.weights is not None and seam.meeting() is F.scaled_dot_product_attention


def refuse_unmet(layout: HeadLayout, met: Sequence[bool]) -> None:
    """Raise UserError for the first site whose weights were not met."""
    for site, came in zip(layout.sites, met, strict=True):
        if not came:
            raise UserError(
                f"{site.name}: neither its queries and keys nor its attention weights came by, "
                "so where its heads look is unknown. Load the network with torch's own "
                "attention (attn_implementation='sdpa' or 'eager')."
            )
