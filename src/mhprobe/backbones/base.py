"""What a backbone family must tell, and how a timm model is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch import nn

from mhprobe.errors import UserError
from mhprobe.heads import Block, HeadSite


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
