"""Families of timm's token models: ``blocks`` one after the other, all patches attending to each other.

Attention concatenates its heads, head 0 first, and projects. Prefix tokens stand before the grid.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from mhprobe.backbones.base import Family, Segments
from mhprobe.backbones.parts.attention import NoHeads, no_norm_between, other_forward, token_site
from mhprobe.backbones.parts.mlp import neurons
from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite

Piece = Callable[[Tensor], Tensor]


class Tokens(Family):
    """A family of token models.

    model, attention: timm's classes. middle: by class of block, its part that the stream enters after attention.
    """

    model: ClassVar[Any]
    attention: ClassVar[tuple[type, ...]]
    middle: ClassVar[Mapping[type, str]]

    @classmethod
    def sites(cls, model: Any) -> Iterator[HeadSite]:
        for number, block in enumerate(model.blocks):
            for inside in cls.inside(block):
                name = f"blocks.{number}.{inside}"
                attention = block.get_submodule(inside)
                if type(block) not in cls.middle or type(attention) not in (*cls.attention, NoHeads):
                    raise cls.strange(name, attention, block)
                if getattr(attention, "num_heads", 0) > 0:  # else all were removed
                    no_norm_between(name, attention)
                    heads = attention.num_heads
                    yield token_site(model, number, name, heads, attention.proj.in_features // heads)

    @classmethod
    def neurons(cls, model: Any) -> Iterator[HeadSite]:
        for number, block in enumerate(model.blocks):
            for inside in cls.mlps(block):
                name = f"blocks.{number}.{inside}"
                yield from neurons(block.get_submodule(inside), token_site(model, number, name, 0, 1))

    @classmethod
    def inside(cls, block: Any) -> Sequence[str]:
        """The names of a block's attention modules."""
        return ("attn",)

    @classmethod
    def mlps(cls, block: Any) -> Sequence[str]:
        """The names of a block's MLPs."""
        return ("mlp",)

    @classmethod
    def strange(cls, name: str, attention: nn.Module, block: nn.Module) -> UserError:
        """Why heads are not looked for in such attention, or in such a block."""
        expected = " or ".join(kind.__name__ for kind in cls.attention)
        return UserError(
            f"{name} is a {type(attention).__name__} in a {type(block).__name__}, expected the {expected} of timm's "
            f"{cls.model.__name__}: nobody has looked where its heads are."
        )

    @classmethod
    def blocks(cls, model: Any) -> Iterator[Block]:
        for number, block in enumerate(model.blocks):
            yield Block(name=f"blocks.{number}", stage=0, middle=f"blocks.{number}.{cls.middle[type(block)]}")

    @classmethod
    def segments(cls, model: Any) -> Segments | None:
        if other_forward(model, cls.model):
            return None
        stem, blocks = cls.pieces(model)
        return Segments(stem=stem, blocks=tuple(blocks), tail=lambda x: model.forward_head(model.norm(x)))

    @classmethod
    @abstractmethod
    def pieces(cls, model: Any) -> tuple[Piece, Sequence[Piece]]:
        """The model's own forward up to its first block, and its blocks."""

    @classmethod
    def replace_empty(cls, model: Any) -> None:
        for name, module in list(model.named_modules()):
            found: Any = module
            if isinstance(module, cls.attention) and found.num_heads == 0:  # ONNX cannot reshape to zero heads
                model.set_submodule(name, NoHeads(found.proj))
