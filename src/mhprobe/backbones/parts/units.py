"""Heads and neurons in blocks of timm: names of their parts.

Neurons are input channels of ``fc2``, each a unit of width 1. In a gated MLP (GLU, SwiGLU) a neuron
is a row in each half of ``fc1``. MLPs with a norm in front of ``fc2`` (scale_mlp) and MLPs of other
classes are refused.
Shapes: N neurons of one MLP, C channels of the residual stream, R rows of the first linear layers
per neuron (1 or 2).
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.backbones.parts.narrow import FIRST, narrowed
from mhprobe.errors import HeadsMixed, UserError, quoted
from mhprobe.gates.meanwhile import meanwhile
from mhprobe.heads import HeadSite, Kind

Parts = Sequence[Tensor]  # the weights of queries, keys and values
STILL = "They can still be gated, measured and masked (mhprobe.measure, mhprobe.masking_curve)."
_MERGE = "Merge adapters (LoRA), weight norms and masks of weights into plain layers first, and do not quantise them."
_PLAIN = ("torch.nn.modules.", "timm.", "mhprobe.")  # where layers come from whose weight says all
# layers that lose rows or columns with a head or a neuron
_CUT = ("qkv", "q_proj", "k_proj", "v_proj", "gate", "proj", "fc1", "fc1_g", "fc1_x", "fc2")
# their names in blocks of timm and transformers, behind attention and behind the MLP
_LAYER_SCALES = {
    "head": (
        "ls1",
        "ls",
        "gamma_1",
        "gamma1",
        "gamma_xca",
        "lambda_1",
        "layer_scale",
        "layer_scale1",
        "layer_scale_1",
    ),
    "neuron": ("ls2", "ls", "gamma_2", "gamma2"),
}


def weight_of(layer: Any) -> Tensor:
    """(outputs, C) weight, detached, of a linear layer or a convolution of single pixels, which may be its ``linear``.

    UserError for a layer of another kind: what it computes is more than its weight, as with LoRA,
    or it has none.
    """
    if not getattr(type(layer).forward, "__module__", "").startswith(_PLAIN):
        raise UserError(
            f"weights: {type(layer).__module__}.{type(layer).__name__} may compute more than its "
            "weight says, expected "
            f"torch's or timm's own layer. {_MERGE}"
        )
    weight: Tensor = getattr(layer, "linear", layer).weight
    return weight.detach().flatten(1)


def width_of(name: str, layer: Any, heads: int) -> int:
    """Channels of a head that enter the projection ``layer``.

    UserError for a layer that does not say its inputs.
    """
    if not isinstance(inputs := getattr(layer, "in_features", None), int):
        raise UserError(
            f"{name}: its projection, a {type(layer).__name__}, has no number in_features. {_MERGE}"
        )
    return inputs // heads


def uncuttable(model: nn.Module, sites: Iterable[HeadSite]) -> str | None:
    """Why no unit of these sites can be cut out of a copy of the model, in a sentence; None where they can."""
    for name, module in model.named_modules():
        if (
            getattr(module.forward, "__self__", None) is not module
        ):  # a function that knows the original
            return f"{name or 'the model'} has a forward of its own, by which a copy would run the original. Delete it."
    for site in sites:
        for name, layer in model.get_submodule(site.name).named_children():
            if name in _CUT and (type(layer) is not nn.Linear or "weight" not in layer._parameters):
                where, wrong = f"{site.name}.{name}", "is no nn.Linear whose weight is a parameter"
                return f"{where} {wrong}, so no {site.kind} can be cut out. {_MERGE}"
    return None


def query_key_value(attention: Any, heads: int) -> Parts:
    """Each (H, D, C in), detached, of one layer or of three; shared keys and values are repeated for each head."""
    if getattr(attention, "qkv", None) is not None:
        return weight_of(attention.qkv).unflatten(0, (3, heads, -1)).unbind()
    names = (
        ("query", "key", "value") if hasattr(attention, "query") else ("q_proj", "k_proj", "v_proj")
    )
    query, key, value = (weight_of(getattr(attention, name)) for name in names)
    query, key, value = (
        part.unflatten(0, (-1, len(query) // heads)) for part in (query, key, value)
    )
    if (shared := heads // len(key)) > 1:
        key = key.repeat_interleave(shared, 0)
        value = value.repeat_interleave(shared, 0)
    return query, key, value


def no_norm_between(name: str, attention: Any) -> None:
    """UserError where a norm over the channels of all heads stands in front of the projection."""
    norm = getattr(attention, "norm", None)
    if not isinstance(norm, nn.Identity | None):
        raise HeadsMixed(
            f"{name}.norm is a {type(norm).__name__} between the heads and the projection "
            f"(scale_norm): it mixes heads, so masking one changes the others. Not supported."
        )


def linear_pool(pool: str) -> None:
    """UserError for a pooling that is no fixed sum of tokens."""
    if pool not in ("token", "avg"):
        raise UserError(
            "logit_attribution: expected global_pool token or avg, which sum the writes of heads, "
            f"got {quoted(pool)}."
        )


def other_forward(model: nn.Module, base: Any) -> bool:
    """Return True if the forward of ``base`` that ``Family.segments`` takes apart is overridden, or replaced."""
    methods = ("forward", "forward_features")
    return any(
        getattr(getattr(model, n, None), "__func__", None) is not getattr(base, n, None)
        for n in methods
    )


def neurons(mlp: Any, site: HeadSite) -> Iterator[HeadSite]:
    """The site of an MLP's neurons, unless it has none left; UserError for an unknown MLP.

    site: its name and place.
    """
    if type(mlp) not in FIRST or not isinstance(mlp.fc2, nn.Linear):
        names = ", ".join(kind.__name__ for kind in FIRST)
        raise HeadsMixed(
            f"{site.name} is a {type(mlp).__name__}, expected one of timm's {names} of linear "
            "layers: nobody has "
            f"looked where its neurons are. Its heads can be taken alone: units={{'head'}}."
        )
    if not isinstance(mlp.norm, nn.Identity):
        raise HeadsMixed(
            f"{site.name}.norm is a {type(mlp.norm).__name__} between the neurons and fc2 "
            "(scale_mlp): it mixes "
            "neurons, so masking one changes the others. Its heads can be taken alone: "
            f"units={{'head'}}."
        )
    if mlp.fc2.in_features:
        yield dataclasses.replace(site, num_heads=mlp.fc2.in_features, kind="neuron")


def rows_of_neurons(mlp: Any) -> Tensor:
    """(N, R, C) rows of the first linear layers of each neuron."""
    count = mlp.fc2.in_features
    halves = [
        getattr(mlp, name).weight.detach().unflatten(0, (-1, count)) for name in FIRST[type(mlp)]
    ]
    return torch.cat(halves).transpose(0, 1)


def slice_heads(model: Any, site: HeadSite, keep: Sequence[int]) -> None:
    """Replace the attention, or the MLP, of a site by one with these of its units, and with its hooks."""
    module = model.get_submodule(site.name)
    smaller = narrowed(module, keep, by_head=getattr(model, "rope_mixed", False))
    vars(smaller).update(
        {name: hooks for name, hooks in vars(module).items() if name.startswith("_forward_")}
    )
    model.set_submodule(site.name, smaller)


def layer_scale(block: nn.Module, kind: Kind = "head") -> Tensor | None:
    """(C,) factors of a block on the output of its attention, or of its MLP; None without any."""
    scales = (getattr(block, name, None) for name in _LAYER_SCALES[kind])
    vectors = (getattr(scale, "gamma", getattr(scale, "lambda1", scale)) for scale in scales)
    return next((vector.detach() for vector in vectors if isinstance(vector, Tensor)), None)


def unfused(modules: Iterable[nn.Module]) -> AbstractContextManager[None]:
    """Switch the fused path of these attention modules off for a while, where they have one."""
    return meanwhile(
        [module for module in modules if getattr(module, "fused_attn", False)], fused_attn=False
    )


def pixels(image: Sequence[int] | None, grid: Sequence[int] | None) -> tuple[float, float]:
    """Input pixels from one token to the next, (down, across); (1, 1) if the size of the image is open."""
    return (1.0, 1.0) if image is None or grid is None else (image[0] / grid[0], image[1] / grid[1])


def first_channels(model: nn.Module) -> int:
    """Channels of an image: those that a model states, or those of the first convolution in it; 3 without either."""
    stated = getattr(model, "in_chans", None)
    if isinstance(stated, int):  # of CSATv2, whose first convolution reads frequencies
        return stated
    return next((part.in_channels for part in model.modules() if isinstance(part, nn.Conv2d)), 3)
