"""Check the JSON of weights, or of a checkpoint. A stranger may have written it.

timm's constructors also open paths and addresses, maybe of a pickle. So a setting passes only if
the model's own class takes it, timm's loading code does not, and it is a number, a flag, a list of
numbers or a plain word.
"""

import functools
import hashlib
import importlib
import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from timm.models import (
    build_model_with_cfg,
    create_model,
    is_model,
    list_models,
    model_entrypoint,
)
from torch import nn

from mhprobe.errors import UserError, nearest, quoted

LARGEST = (
    2**16
)  # no size, width or depth of a model is larger; a forged one must not eat the memory
PIXELS = 4096**2  # of an image that a network takes
OURS = (
    "name",
    "pretrained",
    "fused_attn",
)  # read by mhprobe.backbones.build itself; loading never fetches weights
Finite = Annotated[float, Field(allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=LARGEST)]

RATES = (
    "patch_drop_rate",
    "drop_path_rate",
    "drop_rate",
    "pos_drop_rate",
    "proj_drop_rate",
    "attn_drop_rate",
)
SWITCHES = ("fused_attn",)
FREE = (*RATES, *SWITCHES)
"""Settings of a backbone that may differ from those of its weights: they hold none."""


class Input(BaseModel):
    """Input that the model expects: size (height, width) in pixels, mean and std per channel."""

    model_config = ConfigDict(strict=True)
    size: Annotated[list[Size], Field(min_length=2, max_length=2)]
    mean: Annotated[list[Finite], Field(min_length=1, max_length=1024)]
    std: Annotated[list[Annotated[Finite, Field(gt=0)]], Field(min_length=1, max_length=1024)]

    @field_validator("size")
    @classmethod
    def _of_an_image(cls, size: list[int]) -> list[int]:
        if math.prod(size) > PIXELS:
            raise ValueError(f"expected at most {PIXELS:,} pixels")
        return size


class Backbone(BaseModel):
    """Settings of mhprobe.backbones.build itself, which timm's models do not take; theirs stand beside them."""

    model_config = ConfigDict(strict=True, extra="allow")
    name: Annotated[str, Field(pattern=r"^[\w.]+$")]
    fused_attn: bool | None = None
    conv_stem: Annotated[list[Size], Field(min_length=1, max_length=16)] | None = None
    attn_head_dim: Size | None = None


class Description(BaseModel):
    """The types. Keys that are not here are for people, and are not read."""

    model_config = ConfigDict(strict=True)
    backbone: Backbone
    class_names: list[str]
    data: str
    input: Input | None = None
    gates: list[Finite] | None = None
    gates_kept: list[Literal[0, 1]] | None = None
    kept: dict[str, list[Annotated[int, Field(ge=0)]]] | None = None
    proj_bias: Literal["keep", "drop"] | None = None
    chosen_by: (
        Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=1000)] | None
    ) = None
    timm: dict[str, Any] | None = None
    origin: dict[str, Any] = Field({}, alias="made")


def checked(description: Any, where: Path) -> dict[str, Any]:
    """Return ``description`` if it is of a model and nothing else; UserError names the key in ``where`` that is not."""
    try:
        Description.model_validate(description)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise UserError(
            f"weights: {where}: {key}: {first['msg']}, got {quoted(first['input'])}. It is "
            "damaged, or was not made by "
            f"mhprobe."
        ) from None
    name = description["backbone"]["name"]
    if not is_model(name):
        raise UserError(
            f"weights: {where}: backbone.name: expected the name of a timm model, got "
            f"{quoted(name)}. {nearest(name, list_models())}".rstrip()
        )
    for key, value in description["backbone"].items():
        if key not in (*OURS, *Backbone.model_fields):
            check_setting(name, key, value, where)
    if description.get("timm") not in (None, for_timm(description)):
        raise UserError(
            f"weights: {where}: `timm` and `backbone` describe different models. It is damaged or "
            "forged."
        )
    return description


def for_timm(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which ``timm.create_model`` builds the described model with all its heads."""
    settings = description["backbone"]
    return {
        "model_name": settings["name"],
        "num_classes": len(description["class_names"]),
        **{key: value for key, value in settings.items() if key not in OURS},
    }


def pruned_description(
    description: Mapping[str, Any],
    kept: Mapping[str, Sequence[int]],
    proj_bias: str,
    gates: Sequence[float] | None,
) -> dict[str, Any]:
    """Describe a loaded model without the heads missing from ``kept``: by its sites, numbered as it numbers them."""
    before = {
        site: range(max(heads, default=0) + 1) for site, heads in kept.items()
    } | description.get("kept", {})
    return {
        **description,
        "timm": for_timm(description),
        "kept": {
            site: [heads[n] for n in kept.get(site, range(len(heads)))]
            for site, heads in before.items()
        },
        "proj_bias": proj_bias,
        **({} if gates is None else {"gates_folded": list(gates)}),
    }


def portable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that rebuild a backbone: without those that were left to the model, and where its weights came from."""
    return {
        key: value
        for key, value in settings.items()
        if value is not None and key not in {"_target_", *_loading()}
    }


def digest_of_description(description: Mapping[str, Any]) -> str:
    """Digest of everything in the JSON but the digest itself; spaces and the order of keys do not count."""
    content = {key: value for key, value in description.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_setting(name: str, key: str, value: Any, where: Path) -> None:
    """UserError if a model of timm must not be given ``key=value`` on a stranger's word."""
    settings = _settings(name)
    if key not in settings:
        raise UserError(
            f"weights: {where}: backbone.{quoted(key)} is refused: it is no size or switch of "
            f"{name} (it may name a "
            f"file or an address); {nearest(key, settings)}leave it out, or correct it."
        )
    if not _harmless(value):
        raise UserError(
            f"weights: {where}: backbone.{key}: expected a number from 0 to {LARGEST}, a flag, a "
            "list of numbers or a "
            f"name of timm's, got {quoted(value)}."
        )


@functools.cache
def _loading() -> frozenset[str]:
    """The arguments of timm that say where weights come from, or what is made of a model once it is there."""
    taken = {
        *inspect.signature(create_model).parameters,
        *inspect.signature(build_model_with_cfg).parameters,
    }
    others = {
        "features_only",
        "out_indices",
        "feature_cls",
        "pruned",
        "num_classes",
        "device",
        "dtype",
    }
    return frozenset((taken | others) - {"kwargs", "pretrained"})


@functools.cache
def _settings(name: str) -> frozenset[str]:
    """Keywords of the classes that timm's file of this model builds classifiers from."""
    module = importlib.import_module(model_entrypoint(name).__module__)
    classes = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, nn.Module)
    ]
    taken = [{*inspect.signature(kind).parameters} for kind in classes]
    keys = set[str]().union(*(keywords for keywords in taken if "num_classes" in keywords))
    return frozenset(keys - _loading() - {"self", "args", "kwargs", "pretrained"})


def _harmless(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return math.isfinite(value) and 0 <= value <= LARGEST
    if isinstance(value, (list, tuple)):
        return 0 < len(value) <= 64 and all(
            isinstance(part, (int, float)) and _harmless(part) for part in value
        )
    # a plain word names no address and no file that a constructor would open
    return value is None or (
        isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_]{0,32}", value) is not None
    )
