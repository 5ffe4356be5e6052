"""timm's models of stages, mixed with convolutions: attention modules are found by class, their grids by a trial.

The heads always enter an output projection side by side. So a family is a table: its classes of
attention, and names of their parts. One trial run on torch's meta device gives the grids, and the
order of the sites. Residual streams are not read, since convolutions stand between blocks.
Shapes: H heads, D head width, N tokens of a row (an image or a window), C channels.
"""

import copy
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mhprobe.backbones.base import Family, Seam, submodule
from mhprobe.backbones.parts.units import Parts, first_channels, pixels, weight_of
from mhprobe.backbones.parts.units import query_key_value as packed
from mhprobe.errors import UserError, first_line, refusing
from mhprobe.heads import Block, HeadSite, Windows

CHANNELS = "its attention is between channels, not between tokens"
COARSER = "its keys are on a coarser grid than its queries, or are no tokens of the image"
NO_MODULE = "timm passes its attention weights through no module"


def by_head(attention: Any, heads: int) -> Parts:
    """Weights of one layer, head by head: queries, keys, values, which may be wider."""
    weight = weight_of(attention.qkv).unflatten(0, (heads, -1))
    width = getattr(attention, "key_dim", weight.shape[1] // 3)
    return weight.tensor_split((width, 2 * width), dim=1)


def apart(*names: str) -> Callable[[Any, int], Parts]:
    """Read queries, keys and values from a layer each, or two of them from one layer ("kv")."""

    def parts(attention: Any, heads: int) -> Parts:
        layers = (
            (weight_of(getattr(attention, name)), 2 if name in ("kv", "qk") else 1)
            for name in names
        )
        return [
            part for weight, count in layers for part in weight.unflatten(0, (count, heads, -1))
        ]

    return parts


@dataclass(frozen=True)
class MetaRun:
    """One attention module in the run on the meta device.

    entered: shape of the heads' outputs, (rows, ..., H * D) or, channels first, (rows, H * D,
    height, width).
    block: the module that holds the attention; outer: shape of its input.
    """

    name: str
    attention: Any
    block: Any
    entered: tuple[int, ...]
    outer: tuple[int, ...]

    def grid(self, channels_first: bool = False) -> tuple[int, int]:
        """(rows, columns) of the block's input."""
        rows, columns = self.outer[2:] if channels_first else self.outer[1:3]
        return rows, columns


@dataclass(frozen=True)
class PartNames:
    """Names of the parts of a class of attention.

    point: W_O, which the heads enter side by side, or a module around it that calls it ``linear``.
    parts: (module, H) -> weights of queries, keys, values, (H, D, C) each, themselves and no
    copies.
    weights: the module that softmaxed weights (rows, H, queries, keys) enter; None without one, for
        the reason ``hidden``. windows: of a trial; None: all tokens. heads: name of their number.
        prepare: adds a module for ``weights``. refuse: UserError where heads are no slices of the
        input of ``point``.
    """

    point: str = "proj"
    parts: Callable[[Any, int], Parts] = packed
    weights: Callable[[Any], nn.Module | None] | None = lambda attention: attention.attn_drop
    hidden: str = NO_MODULE
    windows: Callable[[MetaRun], Windows | None] | None = None
    heads: str = "num_heads"
    prepare: Callable[[Any], None] = lambda attention: None
    refuse: Callable[[MetaRun], None] = lambda trial: None

    def output(self, attention: nn.Module) -> Any:
        """Return W_O."""
        point = attention.get_submodule(self.point)
        return getattr(point, "linear", point)


class ChannelsFirst(nn.Conv2d):
    """A projection by single pixels. joined: its input passes this as (rows, N, C)."""

    joined: nn.Identity

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.joined(x.flatten(2).mT).mT.reshape(x.shape))


class Located(Family):
    """A family that is a table of names.

    model: its class or classes, by module and name (``path_of``). kinds: by class of attention, of
    timm's by the name alone. aside: classes of attention without gates. title: by default timm's
    name. before: the number of tokens before the grid, its name in the model, or a function of a
    trial.
    """

    model: ClassVar[str | tuple[str, ...]] = ()
    kinds: ClassVar[Mapping[str, PartNames]]
    aside: ClassVar[tuple[str, ...]] = ()
    before: ClassVar[int | str | Callable[[MetaRun], int]] = 0

    def __init_subclass__(cls) -> None:
        if "model" in vars(cls):
            cls.model = (cls.model,) if isinstance(cls.model, str) else cls.model
            cls.title = vars(cls).get("title") or f"timm {cls.model[0].rpartition('.')[2]}"

    def claims(self, model: nn.Module) -> bool:
        return not _paths(type(model)).isdisjoint(self.model)  # type: ignore[arg-type]  # mypy doubts its hash

    def kind(self, attention: nn.Module) -> Any:
        """Return the Kind of a module; None of what is no attention."""
        path = path_of(type(attention))
        return self.kinds.get(path.rpartition(".")[2] if path.startswith("timm.") else path)

    def sites(self, model: Any) -> Iterator[HeadSite]:
        points = {
            name: f"{name}.{kind.point}"
            for name, module in model.named_modules()
            if (kind := self.kind(module))
        }
        if not points:
            raise UserError(
                f"{type(model).__name__}: this one has no attention modules, so no heads."
            )
        self._look_at_others(model, points)
        size = self.input_spec(model)["size"]
        grids: list[Any] = []  # a stage is what has one grid
        for number, trial in enumerate(_trials(model, points, size)):
            self.kind(trial.attention).refuse(trial)
            site = self._site(model, trial, size, number)
            grids += [] if site.grid in grids else [site.grid]
            yield dataclasses.replace(site, stage=grids.index(site.grid))

    def _look_at_others(self, model: nn.Module, names: Iterable[str]) -> None:
        """Refuse attention of an unknown class, which would get no gates."""
        for name, module in model.named_modules():
            kind = type(module).__name__
            heads = hasattr(module, "num_heads") and re.search("Att|MHSA|XCA", kind)
            supported = kind in self.aside or any(
                f"{other}.".startswith(f"{name}.") for other in names
            )
            if heads and not supported:
                raise UserError(
                    f"{name} is a {kind}: mhprobe does not know where its heads are. Supported in "
                    f"{self.title}: "
                    f"{', '.join(sorted(self.kinds))}."
                )

    def _site(self, model: Any, trial: MetaRun, image: tuple[int, int], block: int) -> HeadSite:
        # of self a function would be a method
        kind = self.kind(trial.attention)
        before = type(self).before
        prefix = (
            before(trial)
            if callable(before)
            else getattr(model, before)
            if isinstance(before, str)
            else before
        )
        heads = getattr(trial.attention, kind.heads)
        output = kind.output(trial.attention)
        windows = None if kind.windows is None else kind.windows(trial)
        grid = (
            windows.grid
            if windows
            else grid_of(trial.entered, prefix, image, isinstance(output, nn.Conv2d))
        )
        return HeadSite(
            *(
                trial.name,
                0,
                block,
                heads,
                output.weight[0].numel() // heads,
                prefix,
                windows,
                grid,
            ),
            pixels=pixels(image, grid),
            class_token=prefix > 0,
            pooled=prefix == 0,
        )

    def blocks(self, model: Any) -> Iterator[Block]:
        return iter(())

    def prepare(self, model: Any) -> None:
        for module in list(model.modules()):
            if (kind := self.kind(module)) is None:
                continue
            kind.prepare(module)
            if type(output := kind.output(module)) is nn.Conv2d:
                output.__class__, output.joined = ChannelsFirst, nn.Identity()

    def seam(self, model: Any, site: HeadSite) -> Seam:
        attention: Any = submodule(model, site)
        kind = self.kind(attention)
        output = kind.output(attention)
        point = (
            output.joined
            if isinstance(output, ChannelsFirst)
            else attention.get_submodule(kind.point)
        )
        weights = kind.weights(attention) if kind.weights else None
        hidden = f"{site.name} ({type(attention).__name__}): no attention weights to look at, {kind.hidden}."
        return Seam(attention, point, output, weights, hidden)

    def query_key_value(self, attention: Any, site: HeadSite) -> Parts:
        return self.kind(attention).parts(attention, site.num_heads)

    def stem(self, model: Any) -> nn.Module:
        raise UserError(
            "relevance: its rules are for attention, linear layers and norms, and mhprobe does "
            "not know what else a "
            f"{self.title} has. Use gate_importance, which needs only slopes."
        )


def row(
    *names: str, kinds: Mapping[str, PartNames], title: str = "", **attributes: Any
) -> type[Located]:
    """A family without a method of its own.

    names: of classes in timm.models; others as in ``Located``.
    """
    name = names[0].rpartition(".")[2]
    model = tuple(f"timm.models.{name}" for name in names)
    return type(
        name,
        (Located,),
        {"model": model, "kinds": kinds, "title": f"timm {title or name}", **attributes},
    )


def path_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _paths(kind: type) -> frozenset[str]:
    """Paths of a class and its bases, cached: every family asks for them for every module."""
    return frozenset(map(path_of, kind.__mro__))


def grid_of(
    entered: tuple[int, ...], prefix: int, image: tuple[int, int], first: bool
) -> tuple[int, int] | None:
    """(rows, columns) of the tokens; of tokens in a line those of the image's form, None if they do not fit."""
    if len(entered) == 4:
        return (entered[2], entered[3]) if first else (entered[1], entered[2])
    tokens = math.prod(entered[1:-1]) - prefix
    rows = round(math.sqrt(tokens * image[0] / image[1]))
    return (rows, tokens // rows) if rows and tokens % rows == 0 else None


def _trials(model: nn.Module, points: Mapping[str, str], size: tuple[int, int]) -> list[MetaRun]:
    """Attention modules in the order in which they run; UserError if the model does not take images of ``size``."""
    ghost, entered, outer = _ghost(model), {}, {}
    for name, point in points.items():

        def at_point(_module: nn.Module, args: Any, name: str = name) -> None:
            if name in entered:
                raise UserError(
                    f"{name} runs more than once per image, so one gate would control several "
                    "heads."
                )
            entered[name] = tuple(args[0].shape)

        def at_block(_module: nn.Module, args: Any, name: str = name) -> None:
            outer[name] = tuple(args[0].shape) if args and isinstance(args[0], Tensor) else ()

        ghost.get_submodule(point).register_forward_pre_hook(at_point)
        ghost.get_submodule(name.rpartition(".")[0]).register_forward_pre_hook(at_block)
    fails = f"{type(model).__name__}: a trial run on images of {size[0]} x {size[1]} fails"
    channels = first_channels(model)
    todo = (
        "give their size: model.pretrained_cfg = {**model.pretrained_cfg, 'input_size': "
        f"({channels}, 64, 64)}}."
    )
    kinds = (AssertionError, RuntimeError, ValueError, IndexError)
    images = torch.empty(1, channels, *size, device="meta", dtype=next(ghost.parameters()).dtype)
    trouble = refusing(
        lambda error: f"{fails} ({first_line(error)}). If it was built for others, {todo}", kinds
    )
    with trouble, torch.no_grad():
        ghost(images)
    return [
        MetaRun(
            name,
            model.get_submodule(name),
            model.get_submodule(name.rpartition(".")[0]),
            shape,
            outer.get(name, ()),
        )
        for name, shape in entered.items()
    ]


def _ghost(model: nn.Module) -> nn.Module:
    """A copy of the model in eval mode on the meta device, without hooks."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        # beside hooks, tensors in a module's caches (as biases of positions): results, which cannot
        # be copied
        cached = (
            part
            for held in vars(module).values()
            if isinstance(held, dict)
            for part in held.values()
        )
        results = (part for part in cached if type(part) is Tensor)
        memo |= {id(part): part for part in (*module._forward_pre_hooks.values(), *results)}
    with torch.no_grad():
        tensors = (*model.parameters(), *model.buffers())
        memo |= {id(tensor): torch.empty_like(tensor, device="meta") for tensor in tensors}
    ghost = copy.deepcopy(model, memo)
    for module in ghost.modules():
        module._forward_pre_hooks.clear()
        module._forward_hooks.clear()
    return ghost.eval()
