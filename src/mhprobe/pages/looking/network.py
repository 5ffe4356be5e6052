"""The network that a command names: a run, a file of weights, a folder of transformers', or a name of timm's."""

import contextlib
import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mhprobe.backbones import (
    attach,
    backbone_of,
    build,
    channels_of,
    input_spec,
    layout_of,
    readings_of,
)
from mhprobe.backbones.huggingface import from_folder
from mhprobe.backbones.parts.folders import read_config
from mhprobe.backbones.parts.timm_models import note
from mhprobe.data.augment import GREY
from mhprobe.errors import UserError, quoted, whole_number
from mhprobe.heads import HeadLayout
from mhprobe.io.readings import Reading, log_readings
from mhprobe.weights.checkpoint import load_weights
from mhprobe.weights.foreign import LeaveOut, model_from
from mhprobe.weights.hub import PREFIX, find_weights
from mhprobe.weights.normalisation import Numbers, of_foreign, seen_by
from mhprobe.weights.twin import RandomTwin

log = logging.getLogger(__name__)

LARGEST = 4096  # pixels of a side; the attention of more would fit nowhere
MANY = 30_000_000  # attention weights of an image; with more, sentences on a dozen take minutes
QUICK = 224  # pixels, for those who cannot wait


class Asked(NamedTuple):
    """Ways to read a network's file and images, as the user gave them; None is found.

    mean, std: of the pixels in [0, 1] that it was trained on, per channel or one for all. prefix,
    leave_out: of foreign weights, as for ``mhprobe.load``.
    """

    mean: Numbers | None = None
    std: Numbers | None = None
    prefix: str | None = None
    leave_out: LeaveOut = False


FOUND = Asked()


class OpenNetwork(NamedTuple):
    """A network to look at.

    spec: size, mean and std of its images. recipe: for ``RandomTwin``, or None if it cannot be
    rebuilt. notes: sentences on choices made for the user. readings: how its file and its images are
    interpreted. class_names: of its logits, () if its file does not name them.
    """

    model: nn.Module
    name: str
    spec: dict[str, Any]
    recipe: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def layout(self) -> HeadLayout:
        return attach(self.model).layout.of("head")

    def twin(self) -> nn.Module:
        """Build the untrained network. Raises UserError if that is not possible."""
        if self.recipe is None:
            raise UserError(
                f"an untrained {type(self.model).__name__} cannot be built: its name and sizes are "
                "unknown"
            )
        return RandomTwin(self.model, self.layout, self.recipe, seed=0)()


def network_to_look_at(
    model: nn.Module | str | Path,
    weights: str | Path | None = None,
    size: int | None = None,
    classifier: bool = False,
    asked: Asked = FOUND,
) -> OpenNetwork:
    """Find or build a network. Raises UserError for anything else, and for options of foreign weights without any.

    model: a network; or a run's folder, a .safetensors beside its .json, a .ckpt, a folder of
    transformers', hf-hub:owner/name, or a name of timm's, whose weights are downloaded if
    ``weights`` names no file. weights: a file of any training, or "random". size: pixels of its
    images' side; by default its own. classifier: keep that of a timm model. asked: how foreign
    weights are read.
    """
    if not isinstance(model, nn.Module | str | Path):
        raise UserError(f"look: model: expected a network or its name, got {type(model).__name__}.")
    if size is not None:
        whole_number("look: --size", size, least=1)
        if size > LARGEST:
            raise UserError(
                f"look: --size: expected at most {LARGEST} pixels of a side, got {size}."
            )
    built = isinstance(model, nn.Module) or Path(model).expanduser().exists()
    if built and not (weights is size is None):
        what = (
            "this network is built already"
            if isinstance(model, nn.Module)
            else f"{model} brings its own"
        )
        raise UserError(
            f"look: --weights and --size are for timm names, but {what}; leave them out."
        )
    _refuse_unread(asked, weights)
    if isinstance(model, nn.Module):
        return _built(model)
    if built:
        return _saved(Path(model).expanduser(), classifier)
    if str(model).startswith(PREFIX) and weights is size is None:
        with contextlib.suppress(UserError):  # weights of ours; others' are timm's to find
            return _described(find_weights(model), str(model))
    return _of_timm(str(model), weights, size, classifier, asked)


def _refuse_unread(asked: Asked, weights: str | Path | None) -> None:
    """Raise UserError for a prefix or names to leave out where no foreign file is read."""
    if not isinstance(asked.prefix, str | None):
        raise UserError(
            f"look: prefix: expected the beginning of names, got {quoted(asked.prefix)}."
        )
    on = {"prefix": asked.prefix is not None, "leave_out": bool(asked.leave_out)}
    if weights in (None, "random") and any(on.values()):
        unread = ", ".join(key for key, given in on.items() if given)
        raise UserError(
            f"look: {unread}: is for weights of another training; give a timm name and weights=FILE "
            "(--weights FILE)."
        )


def coloured(
    network: OpenNetwork, mean: Numbers | None, std: Numbers | None, where: str = "look"
) -> OpenNetwork:
    """Return the network with the mean and deviation that were given, with a line on how inputs are interpreted.

    where: the command, for the line. Raises UserError for numbers that no pixels have.
    """
    model = backbone_of(network.model)
    seen, reading = seen_by(model, mean, std, where)
    readings = {**readings_of(network.model), reading.what: reading}
    if channels_of(model) == 1:
        brightness = Reading("colours", GREY, "since the network takes one channel")
        readings[brightness.what] = brightness
    log_readings(readings.values(), log, where)
    spec = {**network.spec, "mean": seen["mean"], "std": seen["std"]}
    return network._replace(spec=spec, readings=tuple(readings.values()))


def _built(model: nn.Module) -> OpenNetwork:
    """Describe a network of a notebook.

    Raises UserError for unsupported families, and for networks of text.
    """
    backbone, layout = backbone_of(model), attach(model).layout.of("head")
    if any(site.line for site in layout.sites):
        raise UserError(
            f"look: model: expected a network for images, got {type(model).__name__}, which takes "
            "text."
        )
    spec, config = input_spec(backbone), getattr(backbone, "pretrained_cfg", None) or {}
    name, recipe = config.get("architecture"), None
    with contextlib.suppress(
        UserError
    ):  # sizes that its configuration does not tell make another layout
        rebuilt: dict[str, Any] = {"name": name, "img_size": list(spec["size"])}
        if name is not None and _heads_of(rebuilt) == layout:
            recipe = {"backbone": rebuilt, "class_names": ()}
    return OpenNetwork(model, name or type(model).__name__, spec, recipe)


class Undrawn(TorchFunctionMode):
    """Leave weights on the meta device as they are: to draw nothing costs more than to draw a small network."""

    DRAWS = ("uniform_", "normal_", "trunc_normal_", "erfinv_", "mul_", "add_", "clamp_")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        drawn = getattr(func, "__name__", "") in self.DRAWS or func is nn.init.kaiming_uniform_
        tensor = args[0] if args else named.get("tensor")
        if drawn and isinstance(tensor, torch.Tensor) and tensor.is_meta:
            return tensor
        return func(*args, **named)


def _heads_of(options: dict[str, Any]) -> HeadLayout:
    """Layout of the network that ``options`` build.

    Drawing weights takes nearly all of the time of building, so it stands on the meta device if it
    can. UserError if it cannot be built.
    """
    with contextlib.suppress(UserError, RuntimeError), torch.device("meta"), Undrawn():
        return layout_of(build(**options, num_classes=0))
    return layout_of(build(**options, num_classes=0))


def _saved(place: Path, classifier: bool) -> OpenNetwork:
    """A network from a folder or a file."""
    config = read_config(place) if place.is_dir() else {}  # of timm or transformers
    if "model_type" in config:
        model, spec = from_folder(place)
        return OpenNetwork(model, place.name, spec)
    if "architecture" in config:
        classes = None if classifier else 0
        model = build(f"local-dir:{place}", pretrained=True, num_classes=classes).eval()
        return OpenNetwork(model, place.name, input_spec(model))
    file = find_weights(place)
    if file.suffix not in (".safetensors", ".ckpt"):
        raise UserError(
            f"look: {file}: expected a run's folder, a .safetensors with its .json, or a .ckpt. "
            "Weights of another training need the network's name: look <name of timm> <photos> "
            f"--weights {file}."
        )
    return _described(file, "/".join(file.parts[-2:]) if place.is_dir() else file.stem)


def _described(file: Path, name: str) -> OpenNetwork:
    model, about = load_weights(file)
    spec = {key: tuple(value) for key, value in about.get("input", input_spec(model)).items()}
    recipe = None if about.get("kept") else about
    return OpenNetwork(model, name, spec, recipe, class_names=tuple(about["class_names"]))


def _with_weights(
    name: str, weights: str | Path, classifier: bool, asked: Asked, **sizes: int
) -> nn.Module:
    """Build a network of timm with the weights of a file, of any training. UserError where there is none."""
    if not Path(weights).is_file():
        raise UserError(
            f"look: weights: no file {weights}. Give weights of any training, or random for none."
        )
    classes: dict[str, Any] = {} if classifier else {"num_classes": 0}
    model = model_from(weights, name, asked.prefix, asked.leave_out, **classes, **sizes)
    note(model, of_foreign(model, name))
    return model


def _from_timm(name: str, **options: Any) -> nn.Module:
    """Build a network of timm. UserError where its weights could not be fetched."""
    try:
        return build(name, **options).eval()
    except UserError as error:
        if "could not be fetched" not in str(error):
            raise
        raise UserError(
            f"look: the weights of {name} could not be downloaded. Give a file of them "
            "(--weights FILE), or look "
            f"at an untrained network (--weights random)."
        ) from error


def _of_timm(
    name: str, weights: str | Path | None, size: int | None, classifier: bool, asked: Asked
) -> OpenNetwork:
    sizes = {} if size is None else {"img_size": size}
    if weights is None or weights == "random":
        classes = None if classifier else 0
        model = _from_timm(name, pretrained=weights is None, num_classes=classes, **sizes)
    else:
        model = _with_weights(name, weights, classifier, asked, **sizes)
    notes = ["It is untrained: its weights are random."] if weights == "random" else []
    side, attention = (
        input_spec(model)["size"][0],
        sum(site.attention_size for site in layout_of(model).sites),
    )
    if size is None and attention > MANY:
        notes.append(
            f"A photograph of {side} pixels has {attention / 1e6:.0f} million attention weights, so "
            f"measuring its heads takes a while. Images of {QUICK} pixels take less (--size {QUICK})."
        )
    recipe = None if ":" in name else {"backbone": {"name": name, **sizes}, "class_names": ()}
    return OpenNetwork(model, name, input_spec(model), recipe, tuple(notes))
