"""What the configuration may hold: types and cross-field rules that yaml itself cannot state.

Groups with a ``_target_`` (backbone, data, measures, orders) are checked by the thing they construct.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mhprobe.errors import UserError


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Optim(_Section):
    lr: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    layer_decay: Annotated[float, Field(gt=0, le=1)] | None
    warmup_epochs: Annotated[float, Field(ge=0)]
    min_lr: Annotated[float, Field(ge=0, le=1)]
    label_smoothing: Annotated[float, Field(ge=0, lt=1)]


class Gates(_Section):
    learnable: bool
    lr: Annotated[float, Field(gt=0)] = 1e-2


class ProbeSettings(_Section):
    every_n_epochs: Annotated[int, Field(ge=1)] | None


class CheckpointSettings(_Section):
    every_n_steps: Annotated[int, Field(ge=1)] | None


class Masking(_Section):
    select_on: Literal["validation", "test"]
    steps: Annotated[int, Field(ge=0)] | None
    step: Annotated[int, Field(ge=0)] | None
    curves: dict[str, dict[str, Any]]


class TrainerSettings(BaseModel):
    """The keys mhprobe reads; the rest goes to lightning.Trainer, which checks it."""

    model_config = ConfigDict(extra="allow")
    max_epochs: Annotated[int, Field(ge=1)]
    precision: str
    num_nodes: Annotated[int, Field(ge=1)]


class Config(_Section):
    name: str
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    weights: str | None
    ckpt_path: str | None
    out: str
    cache_dir: str
    compile: bool
    backbone: dict[str, Any]
    data: dict[str, Any]
    measure: dict[str, dict[str, Any]] | None = None
    masking: Masking
    trainer: TrainerSettings
    logger: dict[str, Any]
    gates: Gates
    optim: Optim
    probe: ProbeSettings
    checkpoint: CheckpointSettings


def check(cfg: DictConfig) -> dict[str, Any]:
    """The composed configuration as plain, checked values; UserError names the key, the rule and what was given."""
    plain: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    try:
        checked = Config.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{key}: {first['msg']}, got {first['input']!r}.") from None
    if checked.masking.step is not None and checked.masking.steps is not None:
        raise UserError("masking: give step (one point) or steps (the curve up to there), not both.")
    return checked.model_dump()
