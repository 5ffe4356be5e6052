"""Find the family of a model and its heads, and put gates on them.

Each file of this package holds families.
"""

import contextlib
import copy
import functools
import importlib
import inspect
import pkgutil
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from torch import inference_mode, nn

from mhprobe.backbones.base import Family as Family
from mhprobe.backbones.base import submodule
from mhprobe.backbones.parts import timm_models
from mhprobe.backbones.parts.units import first_channels, slice_heads
from mhprobe.backbones.parts.wrappers import unwrapped as unwrapped
from mhprobe.errors import HeadsMixed, UserError, one_of, quoted, refusing
from mhprobe.gates import HeadGates, find_gates, put_on, remove_gates, sizes_in
from mhprobe.gates.base import gate_hooks, modules_of
from mhprobe.heads import KINDS, HeadLayout, Kind
from mhprobe.io.readings import Reading


def families() -> tuple[Family, ...]:
    """Every Family of this package, and those that a program has defined, one of each class; of one name the last."""
    _import_all()
    classes = (
        family
        for family in _below(Family)
        if not inspect.isabstract(family) and hasattr(family, "title")
    )
    return tuple(
        map(
            _only, {(family.__module__, family.__qualname__): family for family in classes}.values()
        )
    )


@functools.cache
def _only(family: type[Family]) -> Family:
    return family()


@functools.cache
def _import_all() -> None:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


def _below(family: type[Any]) -> list[type[Family]]:
    return [below for child in family.__subclasses__() for below in (child, *_below(child))]


def refuse_no_model(where: str, model: object) -> None:
    """UserError for what is no model. where: the function that was called with it."""
    if not isinstance(model, nn.Module):
        raise UserError(
            f"{where}: expected a model, e.g. timm.create_model(name, pretrained=True), got "
            f"{type(model).__name__} "
            f"{quoted(str(model))}."
        )


def family_of(model: nn.Module) -> Family:
    """The family a model belongs to. A model outside the supported ones is refused by name."""
    if (family := _claiming(model)) is not None:
        return family
    for name, part in _inside(model).items():
        raise UserError(
            f"{type(model).__name__}: it wraps a supported {type(part).__name__}; pass "
            f"model.{name}."
        )
    if type(model).__module__.startswith("transformers."):
        from mhprobe.backbones.huggingface import KINDS as OF_TRANSFORMERS

        names = ", ".join([*OF_TRANSFORMERS, "SwinModel"])
        raise UserError(f"{type(model).__name__}: not supported; of transformers, {names} are.")
    name = f"{type(model).__module__}.{type(model).__name__}"
    for module in model.modules():
        if type(module).__name__ in _REFUSED:
            error, reason = _REFUSED[type(module).__name__]
            raise error(f"{name}: {reason}")
    raise UserError(
        f"{name}: no supported family knows where its heads are; docs/models.md lists the "
        f"{len(families())} that there "
        f"are. To add one, see 'A backbone family' in CONTRIBUTING.md."
    )


_TALKING = (
    "its heads talk: behind the softmax their attention weights are mixed across heads, so what a "
    "head hands on is not "
    "its own. Not supported."
)
_REFUSED: Mapping[
    str, tuple[type[UserError], str]
] = {  # classes whose heads no family can find or mask, and why
    "Cait": (HeadsMixed, _TALKING),
    "EfficientFormerV2": (HeadsMixed, _TALKING),
    "EfficientVitMsra": (
        HeadsMixed,
        "its heads are a cascade: each adds to its input what the one before it has found, so what "
        "a head hands on is "
        "not its own. Not supported.",
    ),
    "Nest": (
        UserError,
        "in front of the projection its heads lie among each other, channel by channel, and not "
        "side by side; mhprobe "
        "gates heads that are slices. Not supported.",
    ),
    "HydraAttention": (
        UserError,
        "Hydra attention has a head per channel and adds up keys times values before any query is "
        "seen, so it never "
        "forms attention between patches to measure, map or roll out; take a ViT or a Swin.",
    ),
}


def gives_features(model: nn.Module) -> bool:
    """Return True if the backbone in ``model`` has no classifier, and gives features."""
    classifier = family_of(backbone := backbone_of(model)).classifier(backbone)
    several = classifier if isinstance(classifier, tuple | list | nn.ModuleList) else [classifier]
    return all(isinstance(getattr(part, "fc", part), nn.Identity) for part in several)


def puts_out_features(model: nn.Module) -> bool:
    """Return True if ``model`` gives features, compiled or not; another module around it may have a classifier."""
    return backbone_of(model) is getattr(model, "_orig_mod", model) and gives_features(model)


def backbone_of(model: nn.Module) -> nn.Module:
    """The model of a supported family in ``model``: itself, or a module of it; of several the one with gates.

    Raises UserError if there is none, or several without gates.
    """
    if _claiming(model) is not None:
        return model
    inside = _inside(model)
    if len(inside) > 1:
        inside = {
            name: module for name, module in inside.items() if find_gates(module) is not None
        } or inside
    if len(inside) > 1:
        raise UserError(
            f"{type(model).__name__} holds several models with heads: {', '.join(inside)}; pass "
            "one."
        )
    if not inside:
        family_of(model)  # refuses it
    return next(iter(inside.values()))


def _claiming(model: nn.Module, among: Sequence[Family] | None = None) -> Family | None:
    return next((family for family in among or families() if family.claims(model)), None)


def _inside(model: nn.Module) -> dict[str, nn.Module]:
    """The outermost modules in ``model`` that a family claims, by name."""
    every, claimed = (
        families(),
        dict[str, nn.Module](),
    )  # gathered once: a model has hundreds of modules
    for name, module in model.named_modules():  # outer ones first
        if (
            not name.startswith(tuple(f"{other}." for other in claimed))
            and _claiming(module, every) is not None
        ):
            claimed[name] = module
    return claimed


def layout_of(model: nn.Module, units: Collection[Kind] | None = None) -> HeadLayout:
    """The heads of a model, or its heads and neurons.

    A model of no supported family is refused by name and reason.

    units: as for ``kinds_of``; heads come first. UserError where the family does not know them.
    """
    family, kinds = family_of(model), kinds_of(model, units)
    sites = [
        *(family.sites(model) if "head" in kinds else ()),
        *(family.neurons(model) if "neuron" in kinds else ()),
    ]
    return HeadLayout(sites=tuple(sites), blocks=tuple(family.blocks(model)))


def kinds_of(model: nn.Module, units: Collection[Kind] | None = None) -> frozenset[Kind]:
    """The kinds of ``units``; None: those with gates on ``model``, or else heads.

    UserError for others than KINDS.
    """
    if units is None:
        gates = find_gates(model)
        return frozenset({"head"}) if gates is None else gates.layout.kinds
    if (
        isinstance(units, str)
        or not isinstance(units, Collection)
        or not units
        or not set(units) <= set(KINDS)
    ):
        raise UserError(
            f"units: expected some of {', '.join(KINDS)}, as {{'head', 'neuron'}}, got "
            f"{quoted(units)}."
        )
    return frozenset(units)


def slice_sites(model: nn.Module, layout: HeadLayout, kept: Mapping[str, Sequence[int]]) -> None:
    """Remove, in place, the units that ``kept`` does not name; sites that keep all are not touched.

    ``model.kept_heads`` names what is left of each site by its numbers in the dense model. A unit
    that is named twice is there twice. UserError for units of a model that can lose none.
    """
    family, cut = (
        family_of(model),
        [site for site in layout.sites if len(kept[site.name]) != site.num_heads],
    )
    if cut and (reason := family.unprunable(model, {site.kind for site in cut})) is not None:
        raise UserError(f"{cut[0].name}: {reason}")
    for site in cut:
        slice_site = slice_heads if site.kind == "neuron" else family.slice_heads
        assert slice_site is not None, "else unprunable says why"
        slice_site(model, site, kept[site.name])
    first = getattr(model, "kept_heads", {})  # of a model that was pruned before
    numbers = {
        name: [first[name][unit] if name in first else unit for unit in units]
        for name, units in kept.items()
    }
    model.kept_heads = {**first, **numbers}  # type: ignore[assignment]


def sliced(model: nn.Module, layout: HeadLayout, kept: Mapping[str, Sequence[int]]) -> nn.Module:
    """A copy without gates, and without the units that ``kept`` does not name; it shares weights where it can."""
    made: dict[int, Any] = {
        id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())
    }
    modules = modules_of(model)
    made |= {id(hook.gates): hook.gates for _, _, hook in gate_hooks(modules)}
    # deepcopy takes most of its time for the ten empty dictionaries of each module
    parts = (part for module in modules for part in vars(module).values())
    made |= {
        id(part): type(part)()
        for part in parts
        if type(part) in (dict, OrderedDict, set) and not part
    }
    smaller = copy.deepcopy(model, made)
    remove_gates(smaller)
    slice_sites(smaller, layout, kept)
    return smaller


def build(
    name: str,
    pretrained: bool = False,
    num_classes: int | None = 10,
    fused_attn: bool | None = None,
    **kwargs: Any,
) -> nn.Module:
    """A new model of a family that builds ``name``, or of ``timm.create_model`` with clear errors.

    pretrained: download its weights. num_classes: 0 leaves the classifier out; None keeps the
    model's own number.
    fused_attn: None keeps timm's choice; False materialises attention weights (twice as fast for
        narrow heads in bfloat16 on CPU); True asks for scaled_dot_product_attention (a quarter
        faster than timm's default for Swin).
    kwargs: of the timm model, e.g. img_size, patch_size, embed_dim, depth, num_heads; None keeps
    the model's own.
    """
    make = next(
        (family.build for family in families() if family.builds(name)), timm_models.build_timm
    )
    options = {key: value for key, value in kwargs.items() if value is not None}
    return make(
        name, pretrained=pretrained, num_classes=num_classes, fused_attn=fused_attn, **options
    )


def input_spec(model: nn.Module) -> dict[str, Any]:
    """Return the input that a model expects: ``size`` (height, width) in pixels, ``mean`` and ``std`` per channel.

    Raises UserError for a model that takes texts.
    """
    return family_of(model).input_spec(model)


def colours_of(model: nn.Module) -> Reading:
    """Return the mean and deviation of ``input_spec`` in words, where they are from, and whether that is a guess."""
    return family_of(model).colours(model)


def readings_of(model: nn.Module) -> dict[str, Reading]:
    """Return how a model's file and settings were interpreted, by what was read, with its mean and deviation."""
    backbone = backbone_of(model)
    noted = {**getattr(model, "readings", {}), **getattr(backbone, "readings", {})}
    with contextlib.suppress(UserError):  # a model of texts sees no colours
        input_spec(backbone)
        reading = colours_of(backbone)
        noted.setdefault(reading.what, reading)
    return noted


def channels_of(model: nn.Module) -> int:
    """Return the number of channels of an image that a model expects; 3 where its first layer is not known."""
    with contextlib.suppress(UserError):
        return first_channels(family_of(model).stem(model))
    return first_channels(model)


@inference_mode(False)  # gates outlive the test that they are made in, and a GPU keeps their mode
def attach(
    model: nn.Module,
    learnable: bool | None = None,
    make: Callable[[nn.Module, HeadLayout], HeadGates] | None = None,
    units: Collection[Kind] | None = None,
) -> HeadGates:
    """Put a gate on every head of ``model``, once; a second call returns the same gates.

    If a block or a projection was replaced meanwhile, or ``units`` are others than before, all get
    new gates of the
    same class and the same values: learned gates go on learning. An optimizer needs these new
    parameters.

    model: of a supported family, or a module that holds one such model (a LightningModule, your own
    class).
    learnable: whether an optimizer may train the gates' values. None keeps that of present gates;
    new ones are fixed.
    make: makes the gates from (model, layout), e.g. ``HardConcreteGates``. A head that was off
    stays off.
    units: {"head", "neuron"} also puts gates on the neurons of every MLP, in front of its last
        linear layer. None keeps the present units, or takes heads. UserError where gates that are
        not 1 would be left out.

    Returns HeadGates: ``.layout``, ``.values`` (A,) all ones, which leave the model's output
    bit-identical. Raises UserError for an unsupported model, with the reason, and inside a with
    block that masks or fixes gates which new ones would replace.

    >>> import timm
    >>> size = dict(img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=3)
    >>> model = timm.create_model("vit_tiny_patch16_224", **size).eval()
    >>> gates = attach(model)
    >>> gates
    HeadGates(6 heads in 2 sites, 0 closed)
    >>> attach(model) is gates
    True
    """
    refuse_no_model("attach", model)
    if learnable is not None:
        one_of("attach", "learnable", learnable, Literal[True, False])
    gates = find_gates(model)
    kinds = kinds_of(model, units)
    if gates is not None and make is None and _still_fit(gates, model, kinds):
        if learnable is not None:
            gates.learn(learnable)
        gates.check(model)
        return gates
    if gates is not None:
        _refuse_to_replace(gates, kinds)
    backbone = backbone_of(model)
    family, layout = family_of(backbone), layout_of(backbone, kinds)
    _refuse_shared(layout, [submodule(backbone, site) for site in layout.sites])
    family.prepare(backbone)
    points = _points(family, backbone, layout)
    _refuse_shared_points(layout, points)
    usual = HeadGates if gates is None else gates.like
    remove_gates(model)  # first: a class of gates may put hooks of its own on the model
    try:
        new = _made(make or usual, backbone, layout)
    except UserError:
        if gates is not None:
            put_on(backbone, gates, _points(family, backbone, gates.layout))
        raise
    if gates is not None:
        gates.hand_over(new, learned=make is None)
    if make is None and learnable is not None:
        new.learn(learnable)
    put_on(backbone, new, points)
    new.check(backbone)
    return new


def _points(family: Family, backbone: nn.Module, layout: HeadLayout) -> list[nn.Module]:
    """The modules in front of which the gates of each site stand."""
    return [family.seam(backbone, site).point for site in layout.sites]


def _still_fit(gates: HeadGates, model: nn.Module, kinds: Collection[Kind]) -> bool:
    """True if a model's gates are on all units of these kinds, and of the model as it is now."""
    if gates.layout.kinds != kinds or gates.missing(model):
        return False
    return gates.form in (None, sizes_in(backbone_of(model)))


def _refuse_to_replace(gates: HeadGates, kinds: Collection[Kind]) -> None:
    """UserError for gates that new ones of these kinds cannot replace without a change of the outputs."""
    if gates.held:
        raise UserError(
            "attach: the gates of this model are masked or fixed by a with block at present; new ones "
            "would stay so after it. Attach before gates.masked(...), or after the block."
        )
    parts = gates.layout.split(gates.effective())
    for site, part in zip(gates.layout.sites, parts, strict=True):
        if site.kind not in kinds and bool((part != 1).any()):
            raise UserError(
                f"units: {site.name} has gates that are not 1, and without them the outputs would "
                f"change; name its {site.kind}s, too, or remove them for good first "
                "(mhprobe.prune_heads)."
            )


def _made(make: Callable[..., HeadGates], model: nn.Module, layout: HeadLayout) -> HeadGates:
    """The gates that ``make`` gives. UserError for anything else, and for what cannot be called so."""
    expected = "attach: make: expected a function of (model, layout) that gives gates, e.g. HardConcreteGates"
    if not callable(make):
        raise UserError(f"{expected}, got {quoted(make)}.")
    try:
        inspect.signature(make).bind(model, layout)
    except ValueError:  # of a class in C
        pass
    except TypeError as error:
        raise UserError(f"{expected}, got {quoted(make)} ({error}).") from None
    with refusing(lambda error: f"{expected}, got {quoted(make)} ({error}).", (TypeError,)):
        new = make(model, layout)
    if not isinstance(new, HeadGates):
        raise UserError(f"{expected}, got one that gives a {type(new).__name__}.")
    return new


def _refuse_shared(layout: HeadLayout, modules: Sequence[nn.Module]) -> None:
    """Raise UserError for one module at two sites: one gate would hold heads of both."""
    for site, other in _twice(layout, modules):
        raise UserError(
            f"attach: {site} is the same module as {other}, so that their heads cannot be "
            "told apart. Give each place a block of its own: copy.deepcopy(block)."
        )


def _refuse_shared_points(layout: HeadLayout, points: Sequence[nn.Module]) -> None:
    """Raise UserError for one output projection of two sites, where the gates of both would stand."""
    for site, other in _twice(layout, points):
        raise UserError(
            f"attach: {site} has the same output projection as {other}, so that a gate in front of "
            "it would hold the heads of both. Give each a projection of its own: "
            "copy.deepcopy(projection)."
        )


def _twice(layout: HeadLayout, modules: Sequence[nn.Module]) -> Iterator[tuple[str, str]]:
    """Yield the names of two sites with one module."""
    first: dict[int, str] = {}
    for site, module in zip(layout.sites, modules, strict=True):
        other = first.setdefault(id(module), site.name)
        if other != site.name:
            yield site.name, other


def detach(model: nn.Module) -> None:
    """Take the gates off ``model`` and any model in it: its outputs are those before ``attach``, with all heads on.

    A model without gates is left as it is. Raises UserError for what is no model.
    """
    refuse_no_model("detach", model)
    remove_gates(model)
