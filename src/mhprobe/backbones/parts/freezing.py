"""Parts of a network that can be frozen while the rest, or its gates, is trained.

Attention comes from seams; MLPs are the rest of the blocks. (Voita et al., 2019, train all parts.)
"""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from torch import nn

from mhprobe.backbones import family_of, layout_of
from mhprobe.errors import UserError
from mhprobe.gates import find_gates
from mhprobe.heads import HeadLayout, Part, Scope

Frozen = Scope | Sequence[Part] | int


def freeze(model: nn.Module, frozen: Frozen) -> None:
    """Freeze parts of a model; UserError for a part that its family cannot tell from the rest.

    frozen: "nothing", the "backbone" (all but its classifier), all "weights", parts (see
        ``part_of``), or a number: the embedding and so many of the first blocks, where no gradient
        has to be computed then.
    """
    if isinstance(frozen, int):
        for parameter in (*part_of(model, "embedding"), *_first_blocks(model, frozen)):
            parameter.requires_grad_(False)
    elif not isinstance(frozen, str):
        for parameter in [
            parameter for part in frozen for parameter in part_of(model, part)
        ]:  # all, or an error
            parameter.requires_grad_(False)
    elif frozen != "nothing":
        model.requires_grad_(False)
        if frozen == "backbone":
            for parameter in _classifier(model):
                parameter.requires_grad_(True)


def part_of(model: nn.Module, part: Part) -> list[nn.Parameter]:
    """Parameters of a part of a model with gates; parts do not overlap.

    UserError for a part without any.

    attention: with projections. mlp: other matrices of blocks, with biases. embedding: of patches,
    the class token and positions. classifier: from features to logits. Norms, layer scales and the
    merging of patches are in no part.
    """
    if parameters := list(_PARTS[part](model)):
        return parameters
    parts = ", ".join(other for other in get_args(Part) if any(True for _ in _PARTS[other](model)))
    raise UserError(
        f"frozen: mhprobe cannot tell the {part} of this {type(model).__name__} "
        f"({family_of(model).title}) "
        f"from the rest. It can freeze {parts}; frozen=weights freezes all but the gates."
    )


def _first_blocks(model: nn.Module, number: int) -> list[nn.Parameter]:
    blocks = [*family_of(model).blocks(model)]
    if not 1 <= number <= len(blocks):
        raise UserError(
            f"frozen: expected 1 to at most the {len(blocks)} blocks of this network, got {number}."
        )
    named = [
        *model.named_parameters()
    ]  # in forward order, so what merges patches between two blocks stands there
    first, last = f"{blocks[0].name}.", f"{blocks[number - 1].name}."
    inside = [index for index, (name, _) in enumerate(named) if name.startswith((first, last))]
    return [parameter for _, parameter in named[inside[0] : inside[-1] + 1]]


def _layout(model: nn.Module) -> HeadLayout:
    """That of the gates, if heads have some: of many families a new one needs a trial run."""
    gates = find_gates(model)
    if gates is not None and "head" in gates.layout.kinds:
        return gates.layout
    return layout_of(model, {"head"})


def _attention(model: nn.Module) -> Iterator[nn.Parameter]:
    for site in _layout(model).of("head").sites:
        seam = family_of(model).seam(model, site)
        yield from {
            *seam.attention.parameters(),
            *seam.output.parameters(),
        }  # W_O is not always inside


def _mlp(model: nn.Module) -> Iterator[nn.Parameter]:
    attention = {*_attention(model)}
    for block in _layout(model).blocks:
        for module in model.get_submodule(block.name).modules():
            parameters = {*module.parameters(recurse=False)}
            if any(parameter.ndim > 1 for parameter in parameters):
                yield from parameters - attention


def _embedding(model: nn.Module) -> Iterator[nn.Parameter]:
    family = family_of(model)
    try:
        stem = family.stem(model)
    except UserError:
        return
    yield from stem.parameters()
    held = {stem, *(model.get_submodule(block.name) for block in _layout(model).blocks)}
    for module in model.modules():
        if held & ({*module.modules()} - {module}):
            yield from {*module.parameters(recurse=False)} - {*stem.parameters()}


def _classifier(model: nn.Module) -> Iterator[nn.Parameter]:
    heads: Any = family_of(model).classifier(model)
    for head in heads if isinstance(heads, tuple | list) else (heads,):  # distilled models have two
        yield from head.parameters()


_PARTS = {"attention": _attention, "mlp": _mlp, "embedding": _embedding, "classifier": _classifier}
