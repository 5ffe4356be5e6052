"""Create timm models, with stems of convolutions or wide heads where asked for, and read the input that they expect."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import timm
from timm.layers import Attention, to_2tuple
from timm.models._hub import load_model_config_from_hf, load_model_config_from_path
from timm.models.vision_transformer_hybrid import ConvStem, HybridEmbed
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from mhprobe.backbones.parts.bounds import BESIDE, planned
from mhprobe.backbones.parts.folders import folder_of_others, held_in, read_config
from mhprobe.errors import UserError, first_line, nearest, quoted, refusing, short
from mhprobe.io.readings import Reading

LOCAL = "local-dir:"
SIZES = {
    "attn_head_dim",
    "img_size",
    "patch_size",
    "embed_dim",
    "depth",
    "num_heads",
    "window_size",
}


def build_timm(
    name: str,
    pretrained: bool = False,
    num_classes: int | None = 10,
    fused_attn: bool | None = None,
    conv_stem: Sequence[int] | None = None,
    attn_head_dim: int | None = None,
    **kwargs: Any,
) -> nn.Module:
    """``timm.create_model`` with clear errors; arguments as for ``mhprobe.backbones.build``, and two more.

    conv_stem: channels of convolutions in the place of the patch projection, see ``stem_of``.
    attn_head_dim: width of a head of a VisionTransformer, see ``attention_of_width``; None:
    embed_dim / num_heads.
    """
    _refuse_unknown(name)
    if conv_stem is not None:
        _refuse_no_channels(conv_stem)
        kwargs["embed_layer"] = stem_of(conv_stem)
    _refuse_sizes({"attn_head_dim": attn_head_dim, **kwargs})
    _refuse_classes(num_classes)
    if attn_head_dim is not None:
        kwargs["attn_layer"] = attention_of_width(attn_head_dim)
    with _failures_told(name, pretrained, attn_head_dim):
        if name.startswith(LOCAL):
            _plan(name, num_classes, kwargs)
        with untold():
            model: Any = timm.create_model(
                name, pretrained=pretrained, num_classes=num_classes, **kwargs
            )
    # Swin of timm before 1.0.31 takes any key, and drops it
    if attn_head_dim is not None and not any(type(part) is Attention for part in model.modules()):
        raise UserError(_no_width_of(name))
    _refuse_cut_images(name, model)
    if (size := kwargs.get("img_size")) is not None and _noted_size(model) is None:
        model.pretrained_cfg = {**model.pretrained_cfg, "input_size": (3, *to_2tuple(size))}
    for module in model.modules():
        if fused_attn is not None and hasattr(module, "fused_attn"):
            module.fused_attn = fused_attn
    return model


def _refuse_unknown(name: str) -> None:
    """Raise UserError for a name that is neither timm's nor of a file or hub (hf-hub:owner/name)."""
    if ":" in name or timm.is_model(name):
        return
    if others := folder_of_others(Path(name)):
        raise UserError(f"name: {others}")
    raise UserError(
        f"name: timm {timm.__version__} has no model {quoted(name)}; {_instead_of(name)}"
    )


def _refuse_no_channels(conv_stem: Sequence[int]) -> None:
    """Raise UserError for an empty stem, and for what is no number of channels."""
    wrong = [channels for channels in conv_stem if type(channels) is not int or channels < 1]
    if wrong or not conv_stem:
        raise UserError(
            "conv_stem: expected channels of convolutions, e.g. [16, 32, 64], got "
            f"{quoted(list(conv_stem))}."
        )


def _refuse_sizes(options: dict[str, Any]) -> None:
    """Raise UserError for a size below 1, and for true, which would be one head."""
    for key, value in options.items():
        too_small = type(value) is int and value < 1
        if key in SIZES and (isinstance(value, bool) or too_small):
            raise UserError(f"{key}: expected at least 1, got {value}.")


def _refuse_classes(count: Any) -> None:
    """Raise UserError for a number of classes below 0, which timm takes for none, and for no whole number."""
    if count is not None and (type(count) is not int or count < 0):
        raise UserError(
            f"num_classes: expected a whole number, or 0 for features, got {quoted(count)}."
        )


@contextlib.contextmanager
def _failures_told(name: str, pretrained: bool, attn_head_dim: int | None) -> Iterator[None]:
    """Raise UserError, with what to change, where timm cannot make or fetch the model."""
    try:
        yield
    except UserError:
        raise
    except (OSError, RuntimeError) as error:
        raise UserError(_unread(name, pretrained, error)) from error
    except (TypeError, AssertionError, ValueError, ArithmeticError, IndexError) as error:
        raise UserError(_unbuilt(name, attn_head_dim, error)) from error
    except Exception as error:  # settings of a stranger fail anywhere
        if ":" not in name:
            raise
        raise UserError(_not_there(name, error)) from error


def _unread(name: str, pretrained: bool, error: Exception) -> str:
    """Return the line for weights that timm could not fetch, would not load, or that do not fit."""
    elsewhere = ":" in name
    if "Invalid pretrained tag" in str(error):
        return _no_tag(name)
    if "weights_only" in str(error):
        return (
            f"backbone {name}: its weights are refused: they hold more than tensors, and loading "
            "them could run code. Use weights in .safetensors."
        )
    # timm makes the model and downloads weights in one call; only a failed download is a missing
    # network
    if elsewhere and "in loading state_dict" not in str(error):
        return _not_there(name, error)
    if not pretrained or elsewhere or "size mismatch" in str(error):
        line = short(first_line(error), 300)
        place = "in its config.json" if name.startswith(LOCAL) else "given under backbone"
        return f"backbone {name}: {line}. Check the sizes {place}."
    return (
        f"backbone {name}: the pretrained weights could not be fetched ({first_line(error)}). "
        f"Without a network give pretrained=false checkpoint=<weights you have>, or fetch them "
        f"where there is one (python -m mhprobe.fetch)."
    )


def _unbuilt(name: str, attn_head_dim: int | None, error: Exception) -> str:
    """Return the line for keys and sizes that timm's constructor does not take."""
    if attn_head_dim is not None and "attn_layer" in str(error):
        return _no_width_of(name)
    return f"backbone {name}: {first_line(error)}. Check the keys and sizes given under backbone."


def _no_width_of(name: str) -> str:
    expected = "a VisionTransformer of timm, whose heads may have any width"
    return f"attn_head_dim: expected {expected}, got {name}. Leave it out."


def _plan(name: str, num_classes: int | None, settings: dict[str, Any]) -> None:
    """Make the model of a folder without memory. UserError where its sizes ask for more than its file holds."""
    folder = Path(name.removeprefix(LOCAL))
    _refuse_other_library(folder)
    with planned(*held_in(folder), f"backbone {name}", BESIDE):
        timm.create_model(name, pretrained=False, num_classes=num_classes, **settings)


def _refuse_other_library(folder: Path) -> None:
    """Raise UserError for a folder of transformers, and as ``read_config``."""
    config = read_config(folder)
    if "architecture" not in config and "model_type" in config:
        raise UserError(f"name: {folder_of_others(folder)}")


@contextlib.contextmanager
def untold(library: str = "huggingface_hub", level: int = logging.ERROR) -> Iterator[None]:
    """Keep a library from logging below ``level`` for a while: the Hub logs each of a dozen retries."""
    logger = logging.getLogger(library)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def registered(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by a name in timm's list.

    A repository or folder adds what is not set; UserError if it is not there.
    """
    source, _, place = (name := settings["name"]).partition(":")
    if not place:
        return settings
    read = load_model_config_from_path if source == "local-dir" else load_model_config_from_hf
    with refusing(lambda error: _not_there(name, error)), untold():
        if source == "local-dir":
            _refuse_other_library(Path(place))
        _, architecture, theirs = read(place)
    return {
        **(theirs or {}),
        **{key: of for key, of in settings.items() if of is not None},
        "name": architecture,
    }


def _instead_of(name: str) -> str:
    if "/" in name:
        return (
            f"expected hf-hub:{name} if the hub has it for timm. A model of transformers is built "
            "in Python "
            "(pip install 'mhprobe[transformers]') and given to mhprobe.attach, see "
            "docs/your_model.md."
        )
    architecture = name.partition(".")[0]
    if meant := nearest(architecture, timm.list_models()):
        return meant.rstrip()
    kind = architecture.split("_")[0]
    return f"close: {', '.join(timm.list_models(f'*{kind}*')[:5]) or 'see timm.list_models()'}."


def _no_tag(name: str) -> str:
    """Return the line for a model of timm's with the tag of a training that timm does not know."""
    architecture, _, tag = name.partition(".")
    known = [of.partition(".")[2] for of in timm.list_pretrained(f"{architecture}.*")]
    return (
        f"name: timm {timm.__version__} has no weights {quoted(tag)} of {architecture}; "
        f"{nearest(tag, known)}it has {', '.join(known[:5]) or 'none'}."
    )


def _not_there(name: str, error: BaseException) -> str:
    if name.startswith(LOCAL):
        reason = "no folder with a config.json and weights as timm's save_for_hf writes them"
        return f"backbone {name}: {reason} ({first_line(error)})"
    return (
        f"backbone {name}: the hub could not be reached, or has no such model "
        f"({first_line(error)}). Without a network "
        f"fetch it where there is one (python -m mhprobe.fetch), and give what that prints."
    )


def _refuse_cut_images(name: str, model: Any) -> None:
    """UserError for patches that do not tile the image: its last rows and columns would not be seen."""
    embed = getattr(model, "patch_embed", None)
    image, patch = getattr(embed, "img_size", None), getattr(embed, "patch_size", None)
    if image is None or patch is None or getattr(embed, "dynamic_img_pad", False):
        return
    image, patch = to_2tuple(image), to_2tuple(patch)  # XCiT keeps one number
    if image[0] % patch[0] or image[1] % patch[1]:
        fit = patch[0] * max(1, round(image[0] / patch[0]))
        raise UserError(
            f"backbone {name}: patches of {patch[0]} x {patch[1]} do not tile an image of "
            f"{image[0]} x {image[1]} "
            f"pixels; the nearest size that they tile is img_size={fit}."
        )


def timm_input(model: Any) -> dict[str, Any]:
    """Return the input of a model: ``size`` (height, width) in pixels, ``mean`` and ``std`` per channel (or 0.5).

    The size is the one that the model was built for, or that of its ``pretrained_cfg``. UserError
    for an unknown size.
    """
    config = getattr(model, "pretrained_cfg", None) or {}
    size = _noted_size(model) or config.get("input_size", ())[1:]
    if not size:
        raise UserError(
            f"{type(model).__name__}: the size of its images is unknown. Set model.pretrained_cfg "
            "= "
            f"{{'input_size': (3, height, width)}}, with 'mean' and 'std' of pixels in [0, 1] "
            "where they are not 0.5."
        )
    return {
        "size": tuple(size),
        **{key: tuple(config.get(key, (0.5, 0.5, 0.5))) for key in ("mean", "std")},
    }


COLOURS = "mean and std"  # what a Reading of them is called


def colours_read(
    mean: Sequence[float], std: Sequence[float], source: str, guess: bool = False
) -> Reading:
    """Return the reading of a mean and a deviation per channel."""
    several = len(mean) > 3 and len({*mean}) == len({*std}) == 1
    parts = [of[:1] if several else of for of in (mean, std)]
    taken = " and ".join(f"({', '.join(f'{one:.4g}' for one in of)})" for of in parts)
    if several:
        taken += f" for each of {len(mean)} channels"
    return Reading(COLOURS, taken, source, guess, "mean and std")


def colours_from(model: Any) -> Reading:
    """Return where the mean and deviation of ``timm_input`` are from: a note of whoever loaded the model, or timm."""
    if (noted := getattr(model, "readings", {}).get(COLOURS)) is not None:
        return noted
    config = getattr(model, "pretrained_cfg", None) or {}
    mean, std = (tuple(config.get(key, (0.5, 0.5, 0.5))) for key in ("mean", "std"))
    if not {"mean", "std"} <= {*config}:
        return colours_read(mean, std, "since nothing says what it was trained on", guess=True)
    tag = ".".join(filter(None, (config.get("architecture"), config.get("tag"))))
    return colours_read(mean, std, f"of timm's {tag}" if tag else "of its pretrained_cfg")


def note(model: Any, reading: Reading) -> None:
    """Keep how a file or a setting of a model was interpreted, in ``model.readings``, by what was read."""
    model.readings = {**getattr(model, "readings", {}), reading.what: reading}


def _noted_size(model: nn.Module) -> tuple[int, int] | None:
    """(height, width) that the model was built for, by itself or by its first part with an ``img_size``."""
    sizes = (
        size for part in model.modules() if (size := getattr(part, "img_size", None)) is not None
    )
    return next(map(to_2tuple, sizes), None)


def parameter_groups(
    model: Any, weight_decay: float, layer_decay: float | None
) -> list[dict[str, Any]]:
    """timm's groups for the optimizer: no weight decay on norms, biases and what the model exempts."""
    exempt = model.no_weight_decay() if hasattr(model, "no_weight_decay") else set()
    if layer_decay is None:
        return param_groups_weight_decay(model, weight_decay, no_weight_decay_list=exempt)
    return param_groups_layer_decay(
        model, weight_decay, no_weight_decay_list=exempt, layer_decay=layer_decay
    )


def stem_of(channels: Sequence[int]) -> Callable[..., HybridEmbed]:
    """Return a stem of 3 x 3 convolutions for timm's ``embed_layer``: a small network from scratch learns faster.

    Xiao et al., Early Convolutions Help Transformers See Better, 2021, arXiv 2106.14881. As many
    tokens as without it.

    channels: of the convolutions before the last, each with batch norm and ReLU. The later ones
        halve the image, until a token stands for ``patch_size`` pixels.
    """

    def embed(
        *, img_size: Any, patch_size: Any, in_chans: int, embed_dim: int, **options: Any
    ) -> HybridEmbed:
        image, patch = to_2tuple(img_size), to_2tuple(patch_size)
        halvings = patch[0].bit_length() - 1
        if patch != (2**halvings, 2**halvings) or halvings > len(channels) + 1:
            number, size = f"{len(channels) + 1} convolutions", f"{patch[0]} x {patch[1]} pixels"
            raise ValueError(
                f"conv_stem: {number}, of which some halve the image, cannot make patches of "
                f"{size}."
            )
        if any(pixels % patch[0] for pixels in image):
            raise ValueError(
                f"conv_stem: patches of {patch[0]} pixels do not tile {image[0]} x {image[1]} "
                "pixels."
            )
        strides = (1,) * (len(channels) + 1 - halvings) + (2,) * halvings
        stem = ConvStem(
            in_chans, len(strides), (*channels, embed_dim), kernel_size=3, stride=strides
        )
        options = {
            name: value for name, value in options.items() if name not in ("norm_layer", "bias")
        }  # of a stem
        return HybridEmbed(
            stem, image, 1, in_chans=in_chans, embed_dim=embed_dim, proj=False, **options
        )

    return embed


def attention_of_width(width: int) -> type[Attention]:
    """Return the ``attn_layer`` of a VisionTransformer with heads of ``width`` channels, whatever their number."""

    class Wide(Attention):
        # timm wants a class; its instances are timm's own Attention, by which families know heads
        def __new__(cls, *args: Any, **options: Any) -> Any:
            return Attention(*args, **{**options, "attn_head_dim": width})

    return Wide


def patch_embedding(model: nn.Module) -> nn.Module:
    """Return the convolution, or stem of several, that embeds patches, (B, C, h, w).

    UserError for another module.
    """
    embed = getattr(model, "patch_embed", None)
    if isinstance(embed, HybridEmbed) and isinstance(embed.proj, nn.Identity):
        return embed.backbone
    convolution = getattr(embed, "proj", None)
    if not isinstance(convolution, nn.Conv2d) or convolution.stride != convolution.kernel_size:
        raise UserError(
            f"kernels: {type(model).__name__} does not embed patches by one convolution without "
            "overlap nor by a stem "
            "of convolutions, expected one of these in patch_embed. Leave the figure out, by "
            "figures=[...]."
        )
    return convolution
