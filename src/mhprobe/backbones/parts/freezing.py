"""Parts of a network that can stay as they are while the rest, or its gates, is trained.

No module is named here. Attention is what seams say, classifier and embedding what the family says, and the MLPs are
what blocks hold beside their attention. Voita et al., 2019, let all parts move; what a part does for the heads that go
is seen when it may not.
"""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from torch import nn

from mhprobe.backbones import family_of, layout_of
from mhprobe.errors import UserError
from mhprobe.heads import Part, Scope

Frozen = Scope | Sequence[Part]


def freeze(model: nn.Module, frozen: Frozen) -> None:
    """Keep the named parts from being trained from now on.

    frozen: "nothing", the "backbone" (all but its classifier), all "weights", or parts, see ``part_of``. UserError
    where the model's family cannot tell a part from the rest.
    """
    if not isinstance(frozen, str):
        held = [parameter for part in frozen for parameter in part_of(model, part)]  # all of them, or an error
        for parameter in held:
            parameter.requires_grad_(False)
    elif frozen != "nothing":
        model.requires_grad_(False)
        if frozen == "backbone":
            for parameter in _classifier(model):
                parameter.requires_grad_(True)


def part_of(model: nn.Module, part: Part) -> list[nn.Parameter]:
    """Parameters of a part of a model that has gates; none of them is in another part. UserError if it has none.

    attention: of all sites, with their projections. mlp: the matrices of blocks beside their attention, with their
    biases. embedding: what embeds patches, with the class token and embeddings of positions where these are the model's
    own. classifier: what makes logits of features. Norms, layer scales and what merges patches are in no part.
    """
    found = list(_PARTS[part](model))
    if not found:
        known = ", ".join(other for other in get_args(Part) if any(True for _ in _PARTS[other](model)))
        raise UserError(
            f"frozen: mhprobe cannot tell the {part} of this {type(model).__name__} ({family_of(model).title}) "
            f"from the rest. It can freeze {known}; frozen=weights freezes all but the gates."
        )
    return found


def _attention(model: nn.Module) -> Iterator[nn.Parameter]:
    for site in layout_of(model).sites:
        seam = family_of(model).seam(model, site)
        yield from {*seam.attention.parameters(), *seam.output.parameters()}  # W_O is not always inside


def _mlp(model: nn.Module) -> Iterator[nn.Parameter]:
    attention = {*_attention(model)}
    for block in family_of(model).blocks(model):
        for module in model.get_submodule(block.name).modules():
            own = {*module.parameters(recurse=False)}
            if any(parameter.ndim > 1 for parameter in own):
                yield from own - attention


def _embedding(model: nn.Module) -> Iterator[nn.Parameter]:
    family = family_of(model)
    try:
        stem = family.stem(model)
    except UserError:  # nobody knows what makes tokens here
        return
    yield from stem.parameters()
    held = {stem, *(model.get_submodule(block.name) for block in family.blocks(model))}
    for module in model.modules():
        if held & ({*module.modules()} - {module}):
            yield from {*module.parameters(recurse=False)} - {*stem.parameters()}


def _classifier(model: nn.Module) -> Iterator[nn.Parameter]:
    found: Any = family_of(model).classifier(model)
    heads = found if isinstance(found, tuple | list) else (found,)  # distilled models have two
    for head in heads:
        yield from head.parameters()


_PARTS = {"attention": _attention, "mlp": _mlp, "embedding": _embedding, "classifier": _classifier}
