"""Hugging Face transformers (from 5.19): ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP, BEiT, Swin; BERT, RoBERTa.

The configuration names the function that computes attention (eager, sdpa ...). While attention
weights are recorded it names one of this file. A model with a classifier holds one of these models,
which ``mhprobe.attach`` finds.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from timm.data.constants import (
    IMAGENET_DEFAULT_MEAN,
    IMAGENET_DEFAULT_STD,
    OPENAI_CLIP_MEAN,
    OPENAI_CLIP_STD,
)
from timm.layers import to_2tuple
from torch import Tensor, nn
from torch.nn import functional as F

from mhprobe.backbones.base import Family, Seam, blocks_in, submodule
from mhprobe.backbones.parts.bounds import BESIDE, bounded
from mhprobe.backbones.parts.folders import held_in, read_config
from mhprobe.backbones.parts.timm_models import colours_read, note
from mhprobe.backbones.parts.units import width_of
from mhprobe.errors import UserError, refusing, short
from mhprobe.gates.meanwhile import meanwhile
from mhprobe.heads import Block, HeadSite, Windows
from mhprobe.io.readings import Reading

IMPLEMENTATION = "mhprobe_open"
# functions of torch that transformers' own implementations call; others' kernels show nothing
_MET_AT: dict[str, Callable[..., Tensor]] = {
    "sdpa": F.scaled_dot_product_attention,
    "eager": F.softmax,
}


class BlockNames(NamedTuple):
    """Names of parts of a model: its blocks; in a block its attention, and the module after it.

    prefix: tokens before the grid; a name is one of the configuration. text: there is no grid.
    """

    layers: str
    attention: str
    middle: str
    prefix: tuple[int | str, ...] = (1,)
    text: bool = False


KINDS = {
    "ViTModel": BlockNames("layers", "attention", "layernorm_after"),
    "DeiTModel": BlockNames("layers", "attention", "layernorm_after", (2,)),
    "BeitModel": BlockNames("layers", "attention", "layernorm_after"),
    "Dinov2Model": BlockNames("encoder.layer", "attention", "norm2"),
    "Dinov2WithRegistersModel": BlockNames(
        "encoder.layer", "attention", "norm2", (1, "num_register_tokens")
    ),
    "DINOv3ViTModel": BlockNames("model.layer", "attention", "norm2", (1, "num_register_tokens")),
    "CLIPVisionModel": BlockNames("encoder.layers", "self_attn", "layer_norm2"),
    "SiglipVisionModel": BlockNames("encoder.layers", "self_attn", "layer_norm2", (0,)),
    "BertModel": BlockNames("encoder.layer", "attention.self", "intermediate", (0,), text=True),
    "RobertaModel": BlockNames("encoder.layer", "attention.self", "intermediate", (0,), text=True),
}


# towers that are asked for, and the reason why their heads are not found; and what to do instead
_IN_ONE_ROW = (
    "it takes the patches of all images in one row, (patches, values) with grid_thw, so there is no "
    "batch of images and no one grid. Expected a tower for images (B, 3, height, width), e.g. "
    "SiglipVisionModel or Dinov2Model."
)
REFUSED = {
    "ViTMAEModel": "it leaves out patches at random and shuffles the others, so a token has no "
    "place. Its blocks are those of a ViT: load its weights by "
    "transformers.ViTModel.from_pretrained(..., add_pooling_layer=False).",
    "Siglip2VisionModel": "it takes patches of images of many shapes, padded to one length "
    "(NaFlex), so there is no one grid. SigLIP 2's weights of one size are a SiglipVisionModel; "
    "those of many sizes are timm's naflexvit_*, built for one.",
    "Qwen2_5_VisionTransformerPretrainedModel": _IN_ONE_ROW,
    "Qwen3VLVisionModel": _IN_ONE_ROW,
    "VJEPA2Model": "it takes videos, (B, frames, 3, height, width), whose tokens have a time beside "
    "their place. Expected a tower for images (B, 3, height, width).",
}


class HuggingFace(Family):
    title = (
        "Hugging Face transformers (ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP, BEiT; BERT, RoBERTa)"
    )
    names: ClassVar[Collection[str]] = {*KINDS, *REFUSED}
    head = None
    whole = "its configuration holds one number of heads for all blocks, so one without some could not be loaded again"

    def claims(self, model: nn.Module) -> bool:
        return (
            type(model).__module__.startswith("transformers.")
            and type(model).__name__ in self.names
        )

    def sites(self, model: Any) -> Iterator[HeadSite]:
        kind, config = _kind(model), model.config
        for number, block in enumerate(self.blocks(model)):
            name, heads = f"{block.name}.{kind.attention}", config.num_attention_heads
            width = width_of(name, _output(model.get_submodule(name), model, name), heads)
            if kind.text:
                yield HeadSite(
                    name, stage=0, block=number, num_heads=heads, head_dim=width, line=True
                )
                continue
            prefix = sum(
                part if isinstance(part, int) else getattr(config, part) for part in kind.prefix
            )
            image, patch = to_2tuple(config.image_size), to_2tuple(config.patch_size)
            grid, pixels = (
                (image[0] // patch[0], image[1] // patch[1]),
                (float(patch[0]), float(patch[1])),
            )
            tokens: dict[str, Any] = {
                "prefix_tokens": prefix,
                "class_token": prefix > 0,
                "pooled": prefix == 0,
            }
            yield HeadSite(name, 0, number, heads, width, grid=grid, pixels=pixels, **tokens)

    def blocks(self, model: Any) -> Iterator[Block]:
        kind = _kind(model)
        return blocks_in(model, kind.layers, lambda _: kind.middle)

    def prepare(self, model: Any) -> None:
        for site in self.sites(model):
            attention: Any = submodule(model, site)
            if not hasattr(attention, "softmaxed"):
                attention.softmaxed = nn.Identity()

    def seam(self, model: Any, site: HeadSite) -> Seam:
        attention: Any = submodule(model, site)
        point = _output(attention, model, site.name)
        return Seam(
            *(attention, point, point, attention.softmaxed),
            visible=lambda: _implementation(attention.config),
            # attention also returns its weights; of a text it returns the heads: W_O is in the next
            # module
            behind=lambda heads: (heads if site.line else point(heads), None),
            met_at=lambda: _MET_AT.get(attention.config._attn_implementation),
        )

    def materialised(self, model: Any) -> AbstractContextManager[None]:
        return _implementation(model.config)

    def stem(self, model: Any) -> nn.Module:
        embeddings = model.embeddings
        stem = getattr(embeddings, "patch_embeddings", None) or getattr(
            embeddings, "patch_embedding", embeddings
        )
        return getattr(stem, "projection", stem)

    def patches(self, embedded: Tensor) -> Tensor:
        return embedded.flatten(2).mT if embedded.dim() == 4 else embedded  # of a convolution

    def input_spec(self, model: Any) -> dict[str, Any]:
        kind = KINDS.get(type(model).__name__)  # Swin has none: a class of its own finds its heads
        if kind is not None and kind.text:
            raise UserError(f"{type(model).__name__} takes texts, and no images.")
        mean, std, _ = colours_of_processor(model)
        return {"size": to_2tuple(model.config.image_size), "mean": mean, "std": std}

    def colours(self, model: Any) -> Reading:
        mean, std, source = colours_of_processor(model)
        return colours_read(mean, std, source or f"usual for {type(model).__name__}", not source)


class HuggingFaceSwin(HuggingFace):
    """Windows are padded before they are shifted; one as large as its grid is not shifted."""

    title = "Hugging Face transformers' Swin"
    names = ("SwinModel",)

    def sites(self, model: Any) -> Iterator[HeadSite]:
        image, patch = to_2tuple(model.config.image_size), to_2tuple(model.config.patch_size)
        size = model.config.window_size
        for number, about in enumerate(self.blocks(model)):
            block: Any = model.get_submodule(about.name)
            rows, columns = (side * 2**about.stage for side in patch)
            grid = (-(-image[0] // rows), -(-image[1] // columns))
            side, shift = (min(grid), 0) if min(grid) <= size else (size, block.shift_size)
            heads, width = block.attention.num_attention_heads, block.attention.head_dim
            yield HeadSite(
                *(f"{about.name}.attention", about.stage, number, heads, width),
                windows=Windows(
                    grid=grid, size=to_2tuple(side), shift=to_2tuple(shift), pad_first=True
                ),
                grid=grid,
                pixels=(float(rows), float(columns)),
                pooled=True,
            )

    def blocks(self, model: Any) -> Iterator[Block]:
        for stage in range(len(model.encoder.layers)):
            yield from blocks_in(
                model, f"encoder.layers.{stage}.blocks", lambda _: "layernorm_after", stage
            )


Numbers = tuple[float, ...]
_HALF = ((0.5,) * 3, (0.5,) * 3)
_IMAGENET = (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
# the mean and deviation in the processors of the families' published weights; others have halves
_PUBLISHED: dict[str, tuple[Numbers, Numbers]] = {
    **dict.fromkeys(("DeiTModel", "Dinov2Model", "Dinov2WithRegistersModel"), _IMAGENET),
    **dict.fromkeys(("DINOv3ViTModel", "SwinModel"), _IMAGENET),
    "CLIPVisionModel": (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD),
}
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def colours_of_processor(model: Any) -> tuple[Numbers, Numbers, str]:
    """Return mean and deviation per channel of the pixels in [0, 1] that a model saw, and their file's name.

    They are in the file of its processor, in the folder or the Hub's cache that the model is from.
    "" for the file's name: none is there, and those of the family's published weights are returned.
    Raises UserError for a damaged file.
    """
    channels = getattr(model.config, "num_channels", 3)
    usual = _PUBLISHED.get(type(model).__name__, _HALF)
    mean, std = usual if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
    for file in _processors(model):
        if found := colours_in(read_config(file.parent, file.name)):
            return found.get("mean", mean), found.get("std", std), file.name
    return mean, std, ""


def _processors(model: Any) -> Iterator[Path]:
    """Files of processors beside the weights that a model was loaded from. Nothing is downloaded."""
    name = str(getattr(model.config, "_name_or_path", "") or "")
    if not name:
        return
    if Path(name).is_dir():
        yield from (Path(name) / file for file in PROCESSORS if (Path(name) / file).exists())
        return
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for file in PROCESSORS:
        with contextlib.suppress(HFValidationError):  # a name that is no repository's
            if isinstance(found := try_to_load_from_cache(name, file), str):
                yield Path(found)


def colours_in(settings: Mapping[str, Any]) -> dict[str, Numbers]:
    """Return "mean" and "std" of pixels in [0, 1] in a processor's settings, those that it has.

    A processor multiplies bytes by ``rescale_factor`` first, which need not be 1 / 255.
    """
    inner = settings.get("image_processor")
    settings = inner if isinstance(inner, Mapping) else settings
    numbers = {key: settings.get(f"image_{key}") for key in ("mean", "std")}
    if settings.get("do_normalize") is False:
        numbers = {"mean": [0.0] * 3, "std": [1.0] * 3}
    factor = settings.get("rescale_factor")
    unit = 255 * (1 / 255 if factor is None else factor)
    unit = 255.0 if settings.get("do_rescale") is False else unit
    return {key: tuple(n / unit for n in of) for key, of in numbers.items() if of is not None}


def _kind(model: nn.Module) -> BlockNames:
    """UserError for a tower that is refused."""
    if (name := type(model).__name__) in REFUSED:
        raise UserError(f"{name}: mhprobe does not find its heads: {REFUSED[name]}")
    return KINDS[name]


def _output(attention: Any, model: nn.Module, name: str) -> Any:
    if hasattr(attention, "query"):  # of BERT, in the module beside it
        return model.get_submodule(f"{name.rpartition('.')[0]}.output.dense")
    return attention.o_proj if hasattr(attention, "o_proj") else attention.out_proj


def _implementation(config: Any) -> AbstractContextManager[None]:
    """Make models of ``config`` compute attention by ``_open`` for a while."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(IMPLEMENTATION, _open)
    AttentionMaskInterface.register(IMPLEMENTATION, eager_mask)
    return meanwhile([config], _attn_implementation=IMPLEMENTATION)


def _open(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attention whose weights (B, H, T, T) pass ``module.softmaxed``."""
    scores = (
        query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    )
    scores = scores if attention_mask is None else scores + attention_mask
    weights = module.softmaxed(scores.softmax(-1))
    return (F.dropout(weights, dropout, module.training) @ value).transpose(
        1, 2
    ).contiguous(), weights


def _refuse_other_weights(folder: Path, loaded: Mapping[str, Any]) -> str:
    """Return the names that the network has not, in words; "" if it has all.

    Raises UserError for weights that are missing, which transformers draws at random, and for blocks
    that the configuration leaves out.
    """
    missing = sorted(key for key in loaded.get("missing_keys", ()) if "pooler." not in key)
    others = sorted(loaded.get("unexpected_keys", ()))
    blocks = [key for key in others if re.search(r"(^|\.)(layers?|blocks)\.\d+\.", key)]
    for names, problem in ((missing, "its weights lack"), (blocks, "its config.json leaves out")):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UserError(
                f"{folder}: {problem} {', '.join(names[:3])}{more}: config.json and weights are of "
                "two networks. Copy both again."
            )
    more = f" and {len(others) - 4} more" if len(others) > 4 else ""
    return f"{', '.join(others[:4])}{more}" if others else ""


def from_folder(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The image model in a folder that transformers saved, and its images' size, mean and std.

    Mean and std are those of its processor, or usual for its family.

    Nothing is downloaded, and no code in the folder is run. UserError where transformers is
    missing, or cannot read it.
    """
    try:
        from transformers import AutoModel
    except ImportError:
        raise UserError(
            f"{folder} is of transformers: pip install 'mhprobe[transformers]'."
        ) from None
    read_config(folder)
    held = held_in(folder)
    # a dozen unrelated types, from missing files to foreign classes
    with (
        refusing(
            lambda error: (
                f"{folder}: transformers cannot read it "
                f"({short(' '.join(str(error).split()), 200) or type(error).__name__})."
            )
        ),
        bounded(*held, str(folder), BESIDE),
    ):
        model, loaded = AutoModel.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    left_out = _refuse_other_weights(folder, loaded)
    if any("pooler." in key for key in loaded.get("missing_keys", ())) and hasattr(model, "pooler"):
        model.pooler = None  # of a network for classes; transformers draws one at random
    model = getattr(model, "vision_model", model)
    if left_out:
        note(model, Reading("weights", f"left out: {left_out}", f"of {folder.name}"))
    model.config._name_or_path = str(folder)  # of a part it is empty
    unknown = f"{folder}: the size of its images is unknown. Give a folder of a model for images."
    kind = KINDS.get(type(model).__name__)
    if kind is not None and kind.text:
        raise UserError(unknown)
    with refusing(lambda _: unknown, (AttributeError, TypeError)):
        spec = {"size": to_2tuple(model.config.image_size)}
    mean, std, _ = colours_of_processor(model)
    return model.eval(), spec | {"mean": mean, "std": std}
