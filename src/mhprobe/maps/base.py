"""The interface of a map: of a model and images, a grid of each image's patches by their relevance.

A kind is a file of this package with one class, chosen by the name of the file.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

from torch import Tensor, nn

from mhprobe.backbones import attach, puts_out_features
from mhprobe.errors import UserError, quoted, refuse_misfits
from mhprobe.heads import HeadLayout, HeadSite

NO_KIND = "maps: no kind is chosen, expected at least one, e.g. maps=[rollout,relevance_map]."


class MapKind(ABC):
    """A kind of map.

    per_head: True for maps of all heads of a block, a figure per image; False for few maps.

    label: of the colour bars, where numbers of one map mean the same as those of another.
    """

    per_head: bool = False
    label: ClassVar[str] = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raise UserError for an option of another type than the class says: NaN, True for 1."""
        refuse_misfits(cls, kwargs, cls.__module__.rpartition(".")[2], args)
        return super().__new__(cls)

    @abstractmethod
    def __call__(
        self, model: nn.Module, images: Tensor, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Maps (B, h, w) by name; larger means more relevant.

        model: of a supported family; gates are attached if it has none. images: (B, 3, height,
        width), normalised.
        labels: (B,), for kinds that explain the label's logit. Raises UserError, with the module's
        name, without attention weights.
        """

    def held(self, layout: HeadLayout) -> float:
        """Bytes that the maps of one image take beside the network, at least; 0 if they take rows as these pass."""
        return 0

    def asking(self, grid: tuple[int, int]) -> tuple[int, int] | None:
        """(row, column) of the one query patch on a map of ``grid``; None if there is none, or many."""
        return None


def gated_layout(model: nn.Module) -> HeadLayout:
    """Layout of the heads of a model, which gets gates if it has none."""
    return attach(model).layout.of("head")


def usual_target(model: nn.Module) -> Literal["top1", "norm"]:
    """Default of the explained scalar: the largest logit, or the length of features."""
    return "norm" if puts_out_features(model) else "top1"


def choose_block(block: int, layout: HeadLayout, kind: str) -> list[int]:
    """Numbers of the sites in a residual block; negative counts from the end.

    Raises UserError for no block.
    """
    count = 1 + max(site.block for site in layout.sites)
    if not -count <= block < count:
        raise UserError(
            f"{kind}: the model has blocks 0 to {count - 1} (or -1 for the last), got {block}."
        )
    return [number for number, site in enumerate(layout.sites) if site.block == block % count]


def chosen_heads(
    layout: HeadLayout, blocks: Sequence[int], heads: Sequence[str] | None, kind: str
) -> list[tuple[int, int]]:
    """(site number, head) of all heads of ``blocks``, or of the named ``heads``, in the order of their names.

    heads: "5/11" is head 11 of block 5; "blocks.5.attn/11" names the attention module, for blocks
    with several. Raises UserError for a block, a module or a head that is not there.
    """
    for option, given in {"blocks": blocks, "heads": heads}.items():
        if given is not None and (not given or len({*given}) < len(given)):
            raise UserError(f"{kind}: {option}: expected some, each once, got {quoted(given)}.")
    if heads is None:
        sites = [number for block in blocks for number in choose_block(block, layout, kind)]
        return [
            (number, head) for number in sites for head in range(layout.sites[number].num_heads)
        ]
    return [_head(str(name), layout, kind) for name in heads]


def _head(name: str, layout: HeadLayout, kind: str) -> tuple[int, int]:
    where, _, head = name.rpartition("/")
    sites = [
        number for number, site in enumerate(layout.sites) if where in (site.name, str(site.block))
    ]
    if len(sites) != 1 or not head.isdigit() or int(head) >= layout.sites[sites[0]].num_heads:
        raise UserError(
            f"{kind}: heads: expected <block>/<head> or <attention module>/<head>, as in "
            f"{layout.sites[-1].block}/0 or "
            f"{layout.sites[-1].name}/0, of which the model has one, got {quoted(name)}."
        )
    return sites[0], int(head)


def as_grid(tokens: Tensor, site: HeadSite) -> Tensor:
    """(B, ..., T) over a site's tokens -> (B, ..., h, w), without the prefix."""
    return tokens[..., site.prefix_tokens :].unflatten(-1, site.token_grid)


def readout(queries: Tensor, site: HeadSite) -> Tensor:
    """(B, ..., T queries, X) -> (B, ..., X): the class token's row, if logits come from it, or the grid's mean."""
    return (
        queries[..., 0, :]
        if reads_class_token(site)
        else queries[..., site.prefix_tokens :, :].mean(-2)
    )


def reads_class_token(site: HeadSite) -> bool:
    """True if the logits come from the class token; a model that pools the grid ignores its row."""
    return site.class_token and not site.pooled
