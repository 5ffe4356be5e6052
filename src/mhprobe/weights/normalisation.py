"""Mean and deviation of the pixels that a network with foreign weights was trained on.

A file of weights does not hold them, and trainings of one architecture differ: timm's own
``vit_small_patch16_224`` saw pixels around 0.5, DINO's and MAE's saw ImageNet's mean.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any

from mhprobe.backbones import channels_of, input_spec
from mhprobe.errors import UserError, quoted
from mhprobe.weights.networks import option

log = logging.getLogger(__name__)

Numbers = float | Sequence[float]


def normalise_by(model: Any, mean: Numbers | None, std: Numbers | None, where: str) -> None:
    """Set the mean and deviation, per channel or one for all, of pixels in [0, 1] that ``model`` expects.

    None keeps the model's own. where: the key that the user gave, for errors. Raises UserError for
    another number of channels, and for numbers that no pixels in [0, 1] have.
    """
    channels, given = channels_of(model), {"mean": mean, "std": std}
    numbers = {
        key: _checked(value, channels, option(where, key), least=0 if key == "mean" else 1e-6)
        for key, value in given.items()
        if value is not None
    }
    if numbers:
        model.pretrained_cfg = {**(getattr(model, "pretrained_cfg", None) or {}), **numbers}


def tell(model: Any, name: str, given: Sequence[str], where: str) -> None:
    """Log which mean and deviation a network with foreign weights gets, and where they are from.

    name: timm's, with a tag if the user gave one. given: those of mean and std that the user gave.
    """
    spec = input_spec(model)
    numbers = f"mean {_short(spec['mean'])} and std {_short(spec['std'])}"
    if {*given} == {"mean", "std"}:
        log.info("%s: %s are taken, as given.", where, numbers)
        return
    config = getattr(model, "pretrained_cfg", None) or {}
    tag = config.get("tag")
    tagged = f"{config.get('architecture', name)}.{tag}" if tag else name
    rest = f" ({given[0]} as given)" if given else ""
    if tag and name.endswith(f".{tag}"):
        log.info("%s: %s are taken, of timm's %s%s.", where, numbers, tagged, rest)
        return
    log.warning(
        "%s: %s are taken, of timm's %s%s. This is a guess: the file does not say what it was trained "
        "on. Give %s= and %s= if it was others.",
        where, numbers, tagged, rest, option(where, "mean"), option(where, "std"),
    )  # fmt: skip


def _checked(value: Any, channels: int, key: str, least: float) -> tuple[float, ...]:
    values = [value] * channels if isinstance(value, int | float) else value
    fits = (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and len(values) == channels
        and all(
            isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
            for one in values
        )
    )
    if not fits or not all(least <= one <= 1 for one in values):
        raise UserError(
            f"{key}: expected {channels} numbers from {least:g} to 1, of pixels in [0, 1], got "
            f"{quoted(value)}. Divide numbers of pixels in [0, 255] by 255."
        )
    return tuple(float(one) for one in values)


def _short(numbers: Sequence[float]) -> str:
    return f"({', '.join(f'{number:g}' for number in numbers)})"
