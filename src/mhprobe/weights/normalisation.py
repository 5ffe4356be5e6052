"""Mean and deviation of the pixels that a network with foreign weights was trained on.

A file of weights does not hold them, and trainings of one architecture differ: timm's own
``vit_small_patch16_224`` saw pixels around 0.5, DINO's and MAE's saw ImageNet's mean.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any

from mhprobe.backbones import channels_of, colours_of, input_spec
from mhprobe.backbones.parts.timm_models import colours_read, note
from mhprobe.errors import UserError, quoted
from mhprobe.io.readings import Reading
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
    if {*numbers} == {"mean", "std"}:
        note(model, colours_read(numbers["mean"], numbers["std"], "as given"))
    if numbers:
        model.pretrained_cfg = {**(getattr(model, "pretrained_cfg", None) or {}), **numbers}


def seen_by(
    model: Any, mean: Numbers | None, std: Numbers | None, where: str
) -> tuple[dict[str, Any], Reading]:
    """Return the ``input_spec`` of a model with the mean and deviation that were given, and where they are from.

    Those of three colours become one number for grey images. UserError as of ``normalise_by``.
    """
    channels, spec, reading = channels_of(model), input_spec(model), colours_of(model)
    if {len(spec["mean"]), len(spec["std"])} != {channels}:
        source = f"{reading.source}, their mean for each of {channels} channels"
        reading = reading._replace(source=source, guess=True)
    given = {key: value for key, value in (("mean", mean), ("std", std)) if value is not None}
    for key in ("mean", "std"):
        own = spec[key]
        if len(own) != channels:
            spec[key] = (sum(own) / len(own),) * channels
        if key in given:
            spec[key] = _checked(given[key], channels, key, least=0 if key == "mean" else 1e-6)
    if len(given) == 2:
        return spec, colours_read(spec["mean"], spec["std"], "as given")
    source = f"{reading.source} ({next(iter(given))} as given)" if given else reading.source
    return spec, colours_read(spec["mean"], spec["std"], source, reading.guess)


def of_foreign(model: Any, name: str) -> Reading:
    """Return the mean and deviation of a network with foreign weights: those of timm's tag.

    They are a guess unless ``name`` has the tag.
    """
    spec, config = input_spec(model), getattr(model, "pretrained_cfg", None) or {}
    tag = config.get("tag")
    tagged = f"{config.get('architecture', name)}.{tag}" if tag else name
    known = bool(tag and name.endswith(f".{tag}"))
    return colours_read(spec["mean"], spec["std"], f"of timm's {tagged}", not known)


def tell(model: Any, name: str, given: Sequence[str], where: str) -> None:
    """Log which mean and deviation a network with foreign weights gets, and where they are from.

    The model keeps it, in ``readings``. name: timm's, with a tag if the user gave one. given: those
    of mean and std that the user gave.
    """
    spec = input_spec(model)
    numbers = f"mean {_short(spec['mean'])} and std {_short(spec['std'])}"
    if {*given} == {"mean", "std"}:
        log.info("%s: %s are taken, as given.", where, numbers)
        note(model, colours_read(spec["mean"], spec["std"], "as given"))
        return
    config = getattr(model, "pretrained_cfg", None) or {}
    tag = config.get("tag")
    tagged = f"{config.get('architecture', name)}.{tag}" if tag else name
    rest = f" ({given[0]} as given)" if given else ""
    known = bool(tag and name.endswith(f".{tag}"))
    source = f"of timm's {tagged}{rest}"
    note(model, colours_read(spec["mean"], spec["std"], source, not known))
    if known:
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
