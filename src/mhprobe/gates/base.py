"""Gates: one multiplier xi_h on every head's output.

Hooks are installed once; only the values change.

Michel, Levy & Neubig, 2019, arXiv 1905.10650, eq. 2: MHAtt(x) = sum_h xi_h Att_h(x). A head owns a
slice of the channels that enter the output projection, and xi_h multiplies that slice. A gate of
one leaves every bit as it was. Hooks are objects that hold the gates, no closures: a deep copy or a
pickle of the model takes its own gates along.

Shapes: B images (or windows), T tokens, H heads of one site, A heads of all sites.
"""

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError, quoted
from mhprobe.gates.fill import Fill, Filling
from mhprobe.gates.meanwhile import meanwhile
from mhprobe.gates.reentrant import again_and_again
from mhprobe.heads import HeadLayout
from mhprobe.stats.agreement import lowest


class Instead(NamedTuple):
    """Replacements for outputs of heads, before their gates, while R versions of the gates share a batch.

    heads: per site (B or windows, T, H * D), inputs of the projection. mask: (R, A) bool on the
    CPU, True: replaced.
    """

    heads: tuple[Tensor, ...]
    mask: Tensor


class HeadGates(nn.Module):
    """Gates for every head of ``model``; ``mhprobe.attach`` makes and installs them.

    values: (A,) float32, the factor on each head's output: 1 changes nothing, 0 switches the head
        off. Edit them in place; compiled models need no recompilation. They follow the model's
        device and stay float32 in half precision.
    learnable: True lets the optimizer train ``values``.
    low, high: limits of the gates, applied by ``project``; with low = 0 an L1 penalty brings gates
        to exactly 0. UserError unless low < high.

    >>> import mhprobe, timm
    >>> size = dict(img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=3)
    >>> gates = mhprobe.attach(timm.create_model("vit_tiny_patch16_224", **size))
    >>> with gates.masked(gates.layout.mask([0, 4])):  # off inside ...
    ...     gates.values.tolist()
    [0.0, 1.0, 1.0, 1.0, 0.0, 1.0]
    >>> gates.values.tolist()                          # ... and on again outside
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """

    beside: Tensor | None = None  # (R, A), while R versions of the gates share a batch
    instead: Instead | None = None  # replacements for heads meanwhile
    filling: Filling | None = None  # replacement for the share of heads that gates leave out
    form: tuple[Any, ...] | None = None  # of the model that they were made for, by ``sizes_in``

    def __init__(
        self,
        model: nn.Module,
        layout: HeadLayout,
        learnable: bool = False,
        low: float | None = None,
        high: float | None = None,
    ) -> None:
        super().__init__()
        if low is not None and high is not None and not low < high:
            raise UserError(f"low: expected low < high, got low={low}, high={high}.")
        self.layout, self.low, self.high = layout, low, high
        first = next(model.parameters())
        self.values = nn.Parameter(
            torch.ones(layout.num_heads, device=first.device), requires_grad=learnable
        )
        self._unshared()

    def _unshared(self) -> None:
        """Set what no copy and no pickle takes along: lock, open blocks, and the model that was last seen."""
        self.lock = (
            threading.RLock()
        )  # held while gates are changed for a while, and while a model is recorded
        self._model: weakref.ref[nn.Module] | None = None  # the model holds the gates, not they it
        self._changes: list[Callable[[Tensor], Tensor]] = []  # of the open blocks, in their order
        self._before = self.values.detach()  # values before the first of them

    def __getstate__(self) -> dict[str, Any]:
        unshared = ("lock", "_model", "_changes", "_before")
        return {name: value for name, value in vars(self).items() if name not in unshared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._unshared()

    def learn(self, learnable: bool) -> None:
        """Set whether an optimizer may train these gates."""
        self.values.requires_grad_(learnable)

    def like(self, model: nn.Module, layout: HeadLayout) -> "HeadGates":
        """Make open gates with these options for another layout: plain ones, unless a class says how to make its."""
        return HeadGates(model, layout, self.values.requires_grad, self.low, self.high)

    @torch.no_grad()
    def hand_over(self, new: "HeadGates", learned: bool) -> None:
        """Copy the factors of sites of one name and heads to ``new``.

        learned: if of one class, all tensors as is.
        """
        whole = learned and type(new) is type(self)
        for name in (
            [name for name, _ in (*new.named_parameters(), *new.named_buffers())]
            if whole
            else ["values"]
        ):
            values, theirs = getattr(self, name) if whole else self.effective(), getattr(new, name)
            parts = zip(self.layout.sites, self.layout.split(values), strict=True)
            before = {(site.name, site.num_heads, site.head_dim): part for site, part in parts}
            for site, part in zip(new.layout.sites, new.layout.split(theirs), strict=True):
                part.copy_(before.get((site.name, site.num_heads, site.head_dim), part))
            if whole:
                theirs.requires_grad_(values.requires_grad)

    def missing(self, model: nn.Module) -> list[str]:
        """Return the names of the sites in ``model`` whose projection has none of these gates."""
        hooks = (hook for _, _, hook in gate_hooks(model.modules()))
        gated = {hook.number for hook in hooks if isinstance(hook, Gate) and hook.gates is self}
        return [site.name for number, site in enumerate(self.layout.sites) if number not in gated]

    def check(self, model: nn.Module | None = None) -> None:
        """Raise UserError if a block or a projection was replaced since ``attach``: masks would have no effect there.

        model: with these gates; None for the model of the last check, if it still exists.
        """
        if model is not None:
            self._model = weakref.ref(model)
        elif self._model is None or (model := self._model()) is None:
            return
        if self.form is not None and self.form != sizes_in(model):
            raise UserError(
                f"{type(model).__name__}: its input size was changed after attach() (set_input_size), "
                "and these gates know the places of the old one. Attach again: mhprobe.attach(model)."
            )
        if names := self.missing(model):
            raise UserError(
                f"{names[0]}: its output projection has no gate (nor has that of {len(names) - 1} "
                "more of "
                f"{len(self.layout.sites)} sites). Was the block or the projection replaced after "
                "attach()? Attach "
                f"again: mhprobe.attach(model)."
            )

    def forward(self, number: int, z: Tensor, training: bool = False) -> Tensor:
        """Multiply one site's heads by their gates: (..., H * D) -> (..., H * D).

        UserError if the block was pruned.
        """
        site = self.layout.sites[number]
        if z.shape[-1] != site.channels:
            raise UserError(
                f"{site.name}: projection input has {z.shape[-1]} channels, expected num_heads * "
                "head_dim = "
                f"{site.num_heads} * {site.head_dim} = {site.channels}. Was the block pruned after "
                f"attach()? Attach again."
            )
        span, width = self.layout.span(number), site.head_dim
        if self.beside is None:
            z = z * self.factors(span, training).to(z.dtype).repeat_interleave(width)
        else:
            gate_RC = self.beside[:, span].to(z.dtype).repeat_interleave(width, dim=1)
            z = z.unflatten(0, (len(gate_RC), -1))
            row = (
                len(gate_RC),
                *[1] * (z.dim() - 2),
                -1,
            )  # tokens of a row may lie in a line or a grid
            if self.instead is not None and self.instead.mask[:, span].any():  # in few sites
                replaced_RC = (
                    self.instead.mask[:, span].to(z.device).repeat_interleave(width, dim=1)
                )
                z = torch.where(replaced_RC.view(row), self.instead.heads[number], z)
            z = (z * gate_RC.view(row)).flatten(0, 1)
        if self.filling is None:
            return z
        left_RC = self.filling.left_out[:, span].to(z.dtype).repeat_interleave(width, dim=1)
        fill = self.filling.fill.rows(number).to(z.dtype)
        parts = z.unflatten(0, (len(left_RC), -1, len(fill)))
        left = left_RC.view(len(left_RC), *[1] * (parts.dim() - 2), -1)
        filled: Tensor = parts + left * fill
        return filled.flatten(0, 2)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> nn.Module:
        # follows the model's device, not its precision: the factor is rounded once, where it
        # multiplies
        def to_device(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor.new_empty(0)).device)

        moved: nn.Module = super()._apply(to_device, *args)  # type: ignore[no-untyped-call]
        return moved

    def factors(self, heads: slice, training: bool) -> Tensor:
        """(H,) factors of these heads, in training or in evaluation."""
        return self.values[heads]

    def effective(self) -> Tensor:
        """(A,) factors of all heads in evaluation, detached; a saved model keeps them."""
        with self.lock:  # another thread may have masked heads for a while
            return self.factors(slice(None), training=False).detach().clone()

    def amount(self) -> Tensor:
        """(A,) amount of each head for a penalty, with gradients. Here |gate|."""
        return self.values.abs()

    @torch.no_grad()
    def threshold(self, rule: float | str) -> float:
        """Return the amount above which a head is kept.

        UserError for "likelier", which needs hard-concrete gates.
        """
        if isinstance(rule, str):
            raise UserError(
                f"threshold: {quoted(rule)} compares the chances of a gate that is exactly 0 and "
                "exactly 1, "
                f"which only hard-concrete gates have. Give a number."
            )
        return rule

    def kept(self, keep: int | None = None, threshold: float | str = 0.5) -> Tensor:
        """(A,) bool, True for kept heads: the ``keep`` heads of largest amount, or all above ``threshold``.

        Ties go to the lower index. UserError if a gate is not finite, or the model has not ``keep``
        heads.
        """
        amount = self.amount()
        if not amount.isfinite().all():
            number, head, site = list(self.layout)[int((~amount.isfinite()).nonzero()[0])]
            raise UserError(
                f"gates: head {head} of {site.name} has the gate "
                f"{self.effective()[self.layout.flat(number, head)]}, "
                f"expected a finite one. Lower the gates' lr and train again."
            )
        if keep is None:
            return amount > self.threshold(threshold)
        nearest_target(keep, self.layout.num_heads, "keep")
        return lowest(-amount, keep)

    @torch.no_grad()
    def project(self) -> None:
        """Clamp the gates to [low, high]; call it after every optimizer step."""
        if self.low is not None or self.high is not None:
            for learned in (part for part in self.parameters(recurse=False) if part.requires_grad):
                learned.clamp_(self.low, self.high)

    @torch.no_grad()
    def close(self, mask: Tensor) -> None:
        """Switch heads off permanently: ``mask`` is (A,) bool, True means off.

        Learned gates stay off, too.

        Raises UserError for plain learnable gates: training would open them again.
        """
        if self.values.requires_grad:
            raise UserError(
                "mask: training would open these learnable gates again; use fixed or hard_concrete "
                "gates."
            )
        self.values[self.layout.mask(mask).to(self.values.device)] = 0.0

    @property
    def held(self) -> bool:
        """True inside a with block of ``masked`` or ``fixed``."""
        return bool(self._changes)

    @again_and_again
    def masked(self, mask: Tensor) -> Iterator[None]:
        """Switch heads off inside a with block: ``mask`` is (A,) bool, True means off; blocks can be nested.

        Blocks may also end in another order: a head is off as long as one that masks it is open.

        ``mask`` can also be a list of heads, as for ``HeadLayout.mask``. Learned gates go on
        multiplying the others. Other threads that mask or measure the same model wait; a plain
        forward pass in another thread does not. UserError if the model has lost gates (see
        ``check``).
        """
        self.check()
        mask = self.layout.mask(mask).to(self.values.device)
        with self._holding(lambda values: values.masked_fill(mask, 0.0)):
            yield

    @again_and_again
    def fixed(self, values: Tensor) -> Iterator[None]:
        """Multiply the heads by ``values`` (A,) inside a with block, instead of by the gates.

        Raises UserError for another shape, for NaN or infinity, for bool (True means off in a mask,
        but 1 means on here), and if the model has lost gates (see ``check``).
        """
        fits = (
            isinstance(values, Tensor)
            and values.shape == (self.layout.num_heads,)
            and values.dtype != torch.bool
        )
        if not fits or not values.isfinite().all():
            raise UserError(
                f"gates.fixed: values: expected a tensor of {self.layout.num_heads} finite "
                "numbers, a factor for each "
                f"head, got {quoted(values)}. A mask (True: off) goes to gates.masked."
            )
        self.check()
        with self._holding(lambda _: values):
            yield

    @contextlib.contextmanager
    def _holding(self, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Apply ``change`` to the values inside a with block, on top of the blocks that are open."""
        with self.lock:  # another thread may change values
            if not self._changes:
                self._before = self.values.detach().clone()
            self._changes.append(change)
            try:
                self._set()
                yield
            finally:
                self._changes.remove(change)
                self._set()

    @torch.no_grad()
    def _set(self) -> None:
        """Set the values to those before the first open block, changed by every open one in turn."""
        values = self._before
        for change in self._changes:
            values = change(values)
        self.values.copy_(values)

    @contextlib.contextmanager
    def side_by_side(
        self, values: Tensor, instead: Instead | None = None, fill: Fill | None = None
    ) -> Iterator[None]:
        """Use ``values`` (R, A) inside a with block as the gates of a batch of R equal parts, a row for each part.

        instead: replacements for some heads of each part. fill: as for ``filled``.
        """
        with self.filled(fill, values), meanwhile([self], beside=values, instead=instead):
            yield

    @contextlib.contextmanager
    def filled(self, fill: Fill | None, values: Tensor) -> Iterator[None]:
        """Add ``fill`` times (gates - ``values``), (R, A), inside a with block, entered before ``values`` are set."""
        with self.lock:
            filling = None if fill is None else Filling(fill, self.effective() - values)
            with meanwhile([self], filling=filling):
                yield

    def __repr__(self) -> str:
        closed = int((self.effective() == 0).sum())
        return f"{type(self).__name__}({self.layout.counted} in {len(self.layout.sites)} sites, {closed} closed)"

    def get_extra_state(self) -> dict[str, list[Any]]:
        """Describe the layout, so that gates are never loaded into another model."""
        return {"sites": [[site.name, site.num_heads, site.head_dim] for site in self.layout.sites]}

    def set_extra_state(self, state: dict[str, list[Any]]) -> None:
        """Raises UserError if the gates were made for another layout."""
        expected = self.get_extra_state()["sites"]
        got = [list(site) for site in state["sites"]]
        if got != expected:
            pairs = zip(expected, got, strict=False)
            different = (
                f"[name, heads, head_dim] = {ours}, got {theirs}"
                for ours, theirs in pairs
                if ours != theirs
            )
            where = next(different, f"{len(expected)} sites, got {len(got)}")
            raise UserError(
                f"gates: made for another layout: expected {where}. Load them where they came from."
            )


class GateHook:
    """Base of hooks that hold the gates of a model, so that pickles and deep copies include them."""

    def __init__(self, gates: HeadGates) -> None:
        self.gates = gates


class Gate(GateHook):
    """Forward pre-hook of a site's projection that multiplies the outputs of its heads."""

    def __init__(self, gates: HeadGates, number: int) -> None:
        super().__init__(gates)
        self.number = number

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # the mode of the backbone: gates are no child of it, so model.eval() does not reach them
        return (self.gates(self.number, args[0], module.training), *args[1:])


class Follower(nn.Module):
    """Child module of the backbone by which gates follow it to another device, into copies and pickles.

    The gates themselves are no child: the backbone's parameters, state and files stay those of
    timm.
    """

    NAME = "head_gates"  # of the child

    def __init__(self, gates: HeadGates) -> None:
        super().__init__()
        self.hook = GateHook(
            gates
        )  # in an object that is no module: else gates would be a child of this one

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``: a backbone can be a Sequential, which calls every child."""
        return x

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> nn.Module:
        self.hook.gates._apply(fn, *args)
        return self

    def extra_repr(self) -> str:
        return repr(self.hook.gates)


def modules_of(model: nn.Module) -> list[nn.Module]:
    """``list(model.modules())``, which takes ten times as long in a deep model."""
    found: dict[nn.Module, None] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            children = reversed(module._modules.values())
            waiting.extend(child for child in children if child is not None)
    return list(found)


def sizes_in(model: nn.Module) -> tuple[Any, ...]:
    """Return the sizes of images, grids and windows in the model that has gates, or in the whole.

    timm's set_input_size changes them.
    """
    named, every = ("img_size", "grid_size", "window_size"), modules_of(model)
    holds = (part for part in every if isinstance(getattr(part, Follower.NAME, None), Follower))
    inside = modules_of(next(holds, model))
    parts = (tuple(getattr(part, name, None) for name in named) for part in inside)
    return tuple(part for part in parts if any(of is not None for of in part))


def put_on(model: nn.Module, gates: HeadGates, points: Sequence[nn.Module]) -> None:
    """Install gates on ``model``. points: the output projection of each site."""
    for number, point in enumerate(points):
        point.register_forward_pre_hook(Gate(gates, number))
    model.add_module(Follower.NAME, Follower(gates))
    gates.form = sizes_in(model)


def remove_gates(model: nn.Module) -> None:
    """Remove the gates of ``model``.

    What torch.compile has made is dropped: it does not notice hooks that change.
    """
    modules = modules_of(model)
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    for module, key, _ in list(gate_hooks(modules)):
        del module._forward_pre_hooks[key]
    for module in modules:
        if isinstance(getattr(module, Follower.NAME, None), Follower):
            delattr(module, Follower.NAME)


def nearest_target(heads: int, num_heads: int, where: str) -> None:
    """Refuse a number of heads that the model cannot keep, and say the nearest that it can."""
    if not 1 <= heads <= num_heads:
        nearest = min(max(heads, 1), num_heads)
        raise UserError(
            f"{where}: expected 1 to {num_heads} heads, got {heads}; the nearest is {nearest}."
        )


def gate_hooks(modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, int, GateHook]]:
    """Hooks of gates on these modules: (module, key of the hook, hook)."""
    for module in modules:
        for key, hook in module._forward_pre_hooks.items():
            if isinstance(hook, GateHook):
                yield module, key, hook


def find_gates(model: nn.Module) -> HeadGates | None:
    """Return the gates that ``attach`` installed on ``model`` or a module inside it; None if there are none.

    UserError for a model that FSDP has sharded.
    """
    modules = modules_of(model)
    if fsdp := sys.modules.get("torch.distributed.fsdp"):  # not imported: no model is sharded by it
        sharded = (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)
        if (
            part := next((module for module in modules if isinstance(module, sharded)), None)
        ) is not None:
            raise UserError(
                f"{type(part).__name__}: FSDP gives each process a part of every weight, but heads "
                "need whole "
                f"weights. Use DistributedDataParallel, or a model before it is sharded."
            )
    return next((hook.gates for _, _, hook in gate_hooks(modules)), None)


def gates_of(model: nn.Module) -> HeadGates:
    """Return the gates of ``model``; UserError if it has none or has lost some."""
    gates = find_gates(model)
    if gates is None:
        neurons = "units={'neuron'} if all its heads were removed"
        raise UserError(
            f"{type(model).__name__} has no gates: call mhprobe.attach(model) first, with "
            f"{neurons}."
        )
    gates.check(model)
    return gates
