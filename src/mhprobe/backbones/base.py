"""What a backbone family must tell, and how a timm model is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite


class Segments(NamedTuple):
    """A model's forward in pieces: ``tail(blocks[-1](... blocks[0](stem(images))))`` is ``model(images)``.

    One piece for each of ``Family.blocks``, in their order; what stands between two blocks belongs to the later one.
    """

    stem: Callable[[Tensor], Tensor]
    blocks: tuple[Callable[[Tensor], Tensor], ...]
    tail: Callable[[Tensor], Tensor]


class Family(ABC):
    """A group of timm models whose heads are found in the same way.

    Supported means proven: tests/contracts/test_backbones.py zeroes one head's rows of W_V in every family and
    sees that head's channels, and no others, fall silent.
    """

    title: ClassVar[str]

    @staticmethod
    @abstractmethod
    def claims(model: nn.Module) -> bool:
        """Whether the model belongs here."""

    @staticmethod
    @abstractmethod
    def sites(model: Any) -> Iterator[HeadSite]:
        """The model's sites from input to output; UserError with module and reason where a head is not private."""

    @staticmethod
    @abstractmethod
    def blocks(model: Any) -> Iterator[Block]:
        """The model's residual blocks from input to output."""

    @staticmethod
    @abstractmethod
    def segments(model: Any) -> Segments | None:
        """The model's forward in pieces; None if a subclass changed the forward that is taken apart here."""

    @classmethod
    def slice_heads(cls, model: Any, site: HeadSite, keep: Sequence[int]) -> None:
        """Remove the heads of ``site`` but ``keep``, in place, so that timm's own forward runs on what is left.

        keep: heads within the site, ascending; may be empty. Afterwards ``sites`` names a site only if it has heads.
        """
        raise UserError(
            f"{site.name}: mhprobe does not know how to remove heads of a {cls.title}. They can still be gated, "
            f"measured and masked (mhprobe.probe, mhprobe.mask)."
        )


class NoHeads(nn.Module):
    """What is left of attention without heads: a projection of nothing, i.e. its bias, for every token.

    The one place where a pruned model needs a class that timm does not have: Swin's WindowAttention cannot reshape to
    zero heads, and no module of torch or timm that ignores its input takes the block's ``mask`` argument.
    """

    def __init__(self, proj: nn.Module) -> None:
        super().__init__()
        self.proj = proj

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        return self.proj(x[..., :0])


def keep_channels(attention: Any, site: HeadSite, keep: Sequence[int]) -> None:
    """Cut ``attention.qkv`` and ``attention.proj`` down to the channels of the heads ``keep``, in place."""
    channels = channels_of(site, keep)
    keep_rows(attention.qkv, torch.cat([part * site.channels + channels for part in range(3)]))  # q, k, v
    keep_columns(attention.proj, channels)
    attention.num_heads = len(keep)


def channels_of(site: HeadSite, heads: Sequence[int]) -> Tensor:
    """The input channels of the site's projection that belong to ``heads``, in their order."""
    return (torch.tensor(heads, dtype=torch.long)[:, None] * site.head_dim + torch.arange(site.head_dim)).flatten()


def keep_rows(linear: nn.Linear, rows: Tensor) -> None:
    """Keep these outputs of a linear layer."""
    rows = rows.to(linear.weight.device)
    linear.weight = _kept(linear.weight, 0, rows)
    if linear.bias is not None:
        linear.bias = _kept(linear.bias, 0, rows)
    linear.out_features = len(rows)


def keep_columns(linear: nn.Linear, columns: Tensor) -> None:
    """Keep these inputs of a linear layer."""
    linear.weight = _kept(linear.weight, 1, columns.to(linear.weight.device))
    linear.in_features = len(columns)


def _kept(parameter: Tensor, axis: int, index: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().index_select(axis, index), requires_grad=parameter.requires_grad)


def build(
    name: str, pretrained: bool = False, num_classes: int = 10, fused_attn: bool | None = None, **kwargs: Any
) -> nn.Module:
    """``timm.create_model`` with clear errors.

    fused_attn: None keeps timm's choice; False materialises attention weights (twice as fast for narrow heads in
        bfloat16 on CPU); True asks for scaled_dot_product_attention (a quarter faster than timm's default for Swin).
    kwargs: anything the timm model takes, e.g. img_size, patch_size, embed_dim, depth, num_heads.
    """
    import timm

    if not timm.is_model(name):
        close = ", ".join(timm.list_models(f"*{name.split('.')[0].split('_')[0]}*")[:5]) or "see timm.list_models()"
        raise UserError(f"backbone.name: timm {timm.__version__} has no model {name!r}; close: {close}.")
    try:
        model = timm.create_model(name, pretrained=pretrained, num_classes=num_classes, **kwargs)
    except (OSError, RuntimeError) as error:
        # timm loads shapes and fetches weights in one call; only a failed fetch is a missing network
        if not pretrained or "size mismatch" in str(error):
            raise UserError(f"backbone {name}: {_first_line(error)} Check the sizes given under backbone.") from error
        raise UserError(
            f"backbone {name}: the pretrained weights could not be fetched ({_first_line(error)}) "
            f"Offline, use backbone.pretrained=false, or backbone.pretrained_cfg_overlay.file=<weights you have>."
        ) from error
    except (TypeError, AssertionError) as error:
        raise UserError(
            f"backbone {name}: {_first_line(error)} Check the keys and sizes given under backbone."
        ) from error
    if fused_attn is not None:
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused_attn  # type: ignore[assignment]
    return model


def input_spec(model: Any) -> dict[str, Any]:
    """What a timm model wants to see: ``size`` (height, width) in pixels, ``mean`` and ``std`` per channel."""
    config = model.pretrained_cfg
    size = getattr(getattr(model, "patch_embed", None), "img_size", None) or config["input_size"][1:]
    return {"size": tuple(size), "mean": tuple(config["mean"]), "std": tuple(config["std"])}


def pixels(image: Sequence[int] | None, grid: Sequence[int] | None) -> tuple[float, float]:
    """Input pixels from one token to the next, (down, across); (1, 1) where the size of the image is open."""
    if image is None or grid is None:
        return 1.0, 1.0
    return image[0] / grid[0], image[1] / grid[1]


def _first_line(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip()
    return text if text.endswith(".") else text + "."
