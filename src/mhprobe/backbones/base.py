"""A backbone family: where its heads are, and all that other packages need to know of its modules.

Methods here fit most models of timm; a family overrides the others. No other package names a part
of attention.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from mhprobe.backbones.parts import timm_models, units
from mhprobe.errors import UserError, refusing
from mhprobe.heads import Block, HeadSite, HeadWeights
from mhprobe.io.readings import Reading


class Segments(NamedTuple):
    """A model's forward in pieces: ``tail(blocks[-1](... blocks[0](stem(images))))`` is ``model(images)``.

    Blocks are those of ``Family.blocks``; modules between two blocks belong to the later one.
    """

    stem: Callable[[Tensor], Tensor]
    blocks: tuple[Callable[[Tensor], Tensor], ...]
    tail: Callable[[Tensor], Tensor]


class DirectPath(NamedTuple):
    """The direct path of a write into the residual stream to the logits, past all later blocks.

    between: for each of ``Family.blocks`` the module in front of it that merges fields of 2 x 2
    tokens, (B, rows, columns, C), or None. norm: behind the last block, per token. pool: a fixed
    sum over tokens, (B, T, C) in raster order -> (B, C), for any C. head: (B, C) -> logits. All are
    linear, but for norms and biases. grids: of each block the (rows, columns) of its tokens; empty
    where no module merges tokens.
    """

    between: tuple[Callable[[Tensor], Tensor] | None, ...]
    norm: Callable[[Tensor], Tensor]
    pool: Callable[[Tensor], Tensor]
    head: Callable[[Tensor], Tensor]
    grids: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Seam:
    """Modules of one site: of its attention, or of the MLP whose neurons are its units.

    point: its first input is the heads' outputs side by side, (rows, tokens, H * D), head 0 first.
        Gates and taps are pre-hooks of it. Often it is ``output``, or a norm in front of that.
        output: W_O.
    weights: its first input is the softmaxed attention weights (rows, H, queries, keys), while they
        are ``visible``, by default without the fused path; None where no module has them, for the
        reason ``hidden``.
    behind: from the input of ``point`` to the output of ``attention``; None for ``point`` itself.
    met_at: gives the function of torch at which rows of the weights can be met just now, with nothing
    switched:
        scaled_dot_product_attention, which queries and keys (rows, H, tokens, D) enter after norms
        and rotary positions, with biases and windows as its mask (or H behind rows, in one
        dimension); or softmax, whose result is the weights. None: weights pass ``weights`` only.
        By default the former while the module is ``fused_attn``.
    """

    attention: nn.Module
    point: nn.Module
    output: nn.Linear
    weights: nn.Module | None = None
    hidden: str = ""
    visible: Callable[[], AbstractContextManager[None]] | None = None
    behind: Callable[[Tensor], Any] | None = None
    met_at: Callable[[], Callable[..., Tensor] | None] | None = None

    def rest(self, heads: Tensor) -> Any:
        """Return the output of ``attention`` in eval mode, from the input of ``point`` on."""
        return (self.behind or self.point)(heads)

    def meeting(self) -> Callable[..., Tensor] | None:
        """Return the function of ``met_at``."""
        if self.met_at is not None:
            return self.met_at()
        fused = getattr(self.attention, "fused_attn", False)
        return F.scaled_dot_product_attention if fused else None

    @contextlib.contextmanager
    def watched(self, hook: Callable[..., Any]) -> Iterator[None]:
        """Register ``hook`` as a pre-hook of ``weights`` for a while. UserError without them."""
        if self.weights is None:
            raise UserError(self.hidden)
        visible = self.visible() if self.visible else units.unfused([self.attention])
        with visible, self.weights.register_forward_pre_hook(hook):
            yield


class Family(ABC):
    """A group of models whose heads are found in the same way.

    slice_heads(model, site, keep) removes the heads of ``site`` but ``keep`` (ascending, may be
    empty), in place; the model's forward runs on, and ``sites`` names the site only if it has
    heads. None: they can be masked, not removed.

    tests/library/contracts/test_backbones.py zeroes a head's rows of W_V in every family: its channels
    alone become zero.
    """

    title: ClassVar[str]
    model: ClassVar[Any] = ()  # the class of its models
    embedding: ClassVar[str] = (
        "patch_embed"  # the name of the module whose output embeds the patches
    )
    head: ClassVar[str | None] = (
        ""  # the name of the classifier, without get_classifier; None: it is around the model
    )
    slice_heads: ClassVar[Callable[..., None] | None] = None
    whole: ClassVar[str] = ""  # the reason why no head of its models can be removed, if known

    # where heads are

    def claims(self, model: nn.Module) -> bool:
        """Return True if the model belongs to this family."""
        return isinstance(model, self.model)

    @abstractmethod
    def sites(self, model: Any) -> Iterator[HeadSite]:
        """The model's sites from input to output; UserError with module and reason where a head is not private."""

    def neurons(self, model: Any) -> Iterator[HeadSite]:
        """The model's MLPs from input to output, as sites of neurons; UserError where a neuron is not private."""
        raise UserError(
            f"units: mhprobe does not know where neurons of a {self.title} are, expected "
            f"units={{'head'}}."
        )

    @abstractmethod
    def blocks(self, model: Any) -> Iterator[Block]:
        """The model's residual blocks from input to output."""

    def segments(self, model: Any) -> Segments | None:
        """The model's forward in pieces, which masks can share; None where it cannot be taken apart."""
        return None

    def direct_path(self, model: Any) -> DirectPath:
        """The way from the residual stream to the logits, past all later blocks; UserError if it is not known."""
        raise UserError(
            "logit_attribution: mhprobe does not know the direct path to the logits of a "
            f"{self.title}. Its other "
            f"measures work; lrp_relevance also divides a logit among the heads."
        )

    # what stands around a head

    def prepare(self, model: Any) -> None:  # noqa: B027  # most have room
        """Add modules that gates can be pre-hooks of, before every ``attach``.

        Outputs and state dict stay the same.
        """

    def seam(self, model: Any, site: HeadSite) -> Seam:
        attention: Any = submodule(model, site)
        if site.kind == "neuron":
            hidden = f"{site.name} is an MLP: a neuron attends to nothing."
            return Seam(attention, point=attention.fc2, output=attention.fc2, hidden=hidden)
        weights = getattr(attention, "attn_drop", None)
        hidden = f"{site.name} ({type(attention).__name__}) has no attention weights to look at."
        return Seam(attention, attention.proj, attention.proj, weights, hidden)

    def head_weights(self, model: Any, site: HeadSite) -> HeadWeights:
        """Each head's own weights, detached, with the layer scale in ``output``; or each neuron's."""
        attention: Any = submodule(model, site)
        if site.kind == "neuron":
            value = units.rows_of_neurons(attention)
            query = key = value[:, :0]
        else:
            query, key, value = self.query_key_value(attention, site)
        written = units.weight_of(self.seam(model, site).output)
        output, scale = (
            written.mT.unflatten(0, (site.num_heads, site.head_dim)),
            self.layer_scale(model, site),
        )
        return HeadWeights(query, key, value, output if scale is None else output * scale.flatten())

    def query_key_value(self, attention: Any, site: HeadSite) -> units.Parts:
        """Each (H, D, C in), detached, of the module itself."""
        return units.query_key_value(attention, site.num_heads)

    def layer_scale(self, model: Any, site: HeadSite) -> Tensor | None:
        """(C,) factors of the block on the attention's (or the MLP's) output; None without any."""
        return units.layer_scale(model.get_submodule(site.name.rpartition(".")[0]), site.kind)

    def norm_behind(self, model: Any, site: HeadSite) -> tuple[nn.LayerNorm, Tensor] | None:
        """The norm between W_O of a site and the residual stream, and W_O's bias; None without one."""
        block = site.name.rpartition(".")[0]
        if f"{block}.mlp" not in {
            of.middle for of in self.blocks(model)
        }:  # others have a norm in front of the MLP
            return None
        norm = model.get_submodule(f"{block}.norm{2 if site.kind == 'neuron' else 1}")
        return norm, self.seam(model, site).output.bias.detach()

    def materialised(self, model: Any) -> AbstractContextManager[None]:
        """Switch fused attention off in the whole model for a while: its products can then be counted."""
        return units.unfused(model.modules())

    def stem(self, model: Any) -> nn.Module:
        """The module whose output embeds the patches, where relevance arrives.

        UserError without one.
        """
        return model.get_submodule(self.embedding)

    def patches(self, embedded: Tensor) -> Tensor:
        """The output of ``stem``, or slopes along it, -> (B, ..., C) in raster order."""
        return embedded

    # making and training a model

    def builds(self, name: str) -> bool:
        """Return True if this family builds models of this ``name``; families of timm models leave that to timm."""
        return False

    def build(self, name: str, **settings: Any) -> nn.Module:
        """A model with the settings of ``mhprobe.backbones.build``."""
        return timm_models.build_timm(name, **settings)

    def input_spec(self, model: Any) -> dict[str, Any]:
        """Return the input of the model: ``size`` (height, width) in pixels, ``mean`` and ``std`` per channel."""
        return timm_models.timm_input(model)

    def colours(self, model: Any) -> Reading:
        """The mean and deviation of ``input_spec``, and where they are from."""
        return timm_models.colours_from(model)

    def classifier(self, model: Any) -> nn.Module:
        """Return the classifier, which makes logits of features; an Identity if the model only gives features."""
        if self.head is None:
            return nn.Identity()
        return (
            model.get_submodule(self.head)
            if self.head
            else getattr(model, "get_classifier", nn.Sequential)()
        )

    def parameter_groups(
        self, model: Any, weight_decay: float, layer_decay: float | None
    ) -> list[dict[str, Any]]:
        """Groups for the optimizer, with ``weight_decay`` where it is due; "lr_scale" by depth with a layer_decay."""
        return timm_models.parameter_groups(model, weight_decay, layer_decay)

    # taking heads out

    def unprunable(self, model: Any, kinds: Collection[str] = ("head",)) -> str | None:
        """Why no unit of these kinds can be removed from this model, in a sentence; None where they can."""
        if self.slice_heads is not None or "head" not in kinds:
            of_kind = {"head": self.sites, "neuron": self.neurons}
            return units.uncuttable(
                model, [site for kind in kinds for site in of_kind[kind](model)]
            )
        unknown = f"mhprobe does not know how to remove heads of a {self.title}"
        return f"{unknown}{self.whole and f': {self.whole}'}. {units.STILL}"


def blocks_in(
    model: nn.Module, layers: str, middle: Callable[[Any], str], stage: int = 0
) -> Iterator[Block]:
    """Each child of the module ``layers`` as a block.

    middle: name of its part that comes after attention.
    """
    for child, block in model.get_submodule(layers).named_children():
        name = f"{layers}.{child}"
        yield Block(name=name, stage=stage, middle=f"{name}.{middle(block)}")


def submodule(model: nn.Module, site: HeadSite) -> nn.Module:
    gone = f"the model has no module {site.name}; was a block removed after attach()?"
    with refusing(lambda _: gone, (AttributeError,)):
        return model.get_submodule(site.name)
