"""A pretend accelerator: tensors that hold real numbers, claim another device, and refuse what a GPU refuses.

torch keeps a device type free for others, PrivateUse1; here it is called "pretend". A tensor of it
is a ``Pretended`` around one on the CPU, which does the work. Every operation comes through
``run``. It raises, in torch's words, where tensors of two devices meet, or a tensor and a random
generator. ``collectives`` raises where one of the CPU is sent, as NCCL does. What it cannot show:
speed, memory, other rounding, kernels that are not deterministic, autocast's choices.

``start`` is for good, and once backward ran torch cannot be told of another device: so it belongs
in a fork.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning.pytorch.accelerators import Accelerator, AcceleratorRegistry
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector
from torch import Tensor
from torch.utils import backend_registration

import forks

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    reason = f"torch {torch.__version__} has no devices that are written in Python"
    pytest.skip(reason, allow_module_level=True)

NAME = "pretend"
CPU = torch.device("cpu")
NUMBERS = {
    int,
    float,
    bool,
    type(None),
    torch.dtype,
}  # most arguments, and quickly told from tensors
BY_ITSELF = (
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional
)  # torch's own work on a tensor's shape

# between devices these copy; of the indexed and the indexing tensor only the first has to be on the
# device
CROSSING = {"_to_copy", "copy_", "_copy_from", "_copy_from_and_resize"}
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
# a number on the CPU is taken for a number only by what works element by element
NO_NUMBERS = {
    "cat",
    "stack",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "gather",
    "scatter",
    "scatter_",
    "scatter_add_",
}
NO_NUMBERS |= {
    "index_select",
    "index_add",
    "index_add_",
    "index_copy_",
    "embedding",
    "convolution",
    "bucketize",
}


class Pretended(torch.Tensor):
    """A tensor on the pretend device. held: the one on the CPU that has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Pretended:
        if (
            torch.is_inference_mode_enabled() and not held.is_inference()
        ):  # a view of what was there before
            with torch.inference_mode(False):
                return cls(held)
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # where nothing has slopes, in inference mode, torch leaves it to the device what an
        # operation is composed of
        return (func.decompose if _composed(func) else functools.partial(run, func))(
            *args, **(kwargs or {})
        )

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Pretended({self.held!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Files hold it as one of the CPU: whoever reads them says where it goes."""
        return self.cpu().__reduce_ex__(protocol)

    def __getitem__(self, where: Any) -> Tensor:
        return super().__getitem__(_lists_as_tensors(where))

    def __setitem__(self, where: Any, value: Any) -> None:
        super().__setitem__(_lists_as_tensors(where), value)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def new_tensor(self, data: Any, *args: Any, **kwargs: Any) -> Tensor:
        return torch.tensor(data, *args, **{"device": self.device, "dtype": self.dtype, **kwargs})


def _lists_as_tensors(where: Any) -> Any:
    """torch turns lists into tensors of the device below the dispatcher, where nobody of Python is asked."""
    if isinstance(where, tuple):
        return tuple(_lists_as_tensors(part) for part in where)
    return (
        torch.tensor(where, dtype=None if where else torch.long)
        if isinstance(where, list)
        else where
    )


@functools.cache
def _composed(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """One operation: checked as a GPU would check it, done on the CPU, its results wrapped again."""
    seen = _Seen()
    held, named = (
        [seen.strip(arg) for arg in args],
        {key: seen.strip(arg) for key, arg in kwargs.items()},
    )
    there = bool(seen.pretended)
    if (device := named.get("device")) is not None and (there := device.type == NAME):
        named["device"] = CPU
    if named.get("pin_memory"):
        named["pin_memory"] = False
    if there or seen.pretended:
        _check(func, args, seen)
    result = func(*held, **named)
    writes = _writes(func)
    if seen.pretended and (
        not there
        or (writes and seen.written_on_cpu(held))
        or not isinstance(result, Tensor | list | tuple)
    ):
        waits.append(func)
    for leaf in seen.pretended if writes else ():
        if (
            leaf.shape != leaf.held.shape or leaf.stride() != leaf.held.stride()
        ):  # unsqueeze_ and its like
            shaped = (leaf.held.size(), leaf.held.stride(), leaf.held.storage_offset())
            torch.ops.aten.as_strided_.default._op_dk(BY_ITSELF, leaf, *shaped)
    return _wrapped(result, seen.pretended, there)


@functools.cache
def _writes(func: Any) -> bool:
    """Whether it works in place."""
    return bool(func._schema.is_mutable)


class _Seen:
    """What the arguments of an operation hold."""

    def __init__(self) -> None:
        self.pretended: list[Pretended] = []
        self.plain: list[Tensor] = []
        self.generators: list[torch.Generator] = []

    def written_on_cpu(self, held: list[Any]) -> bool:
        """Whether what is written to, the first, is a tensor of the CPU."""
        return bool(self.plain) and held[0] is self.plain[0]

    def strip(self, leaf: Any) -> Any:
        if type(leaf) in NUMBERS:
            return leaf
        if isinstance(leaf, Pretended):
            self.pretended.append(leaf)
            return leaf.held
        if isinstance(leaf, Tensor):
            self.plain.append(leaf)
        elif isinstance(leaf, torch.Generator):
            self.generators.append(leaf)
        elif isinstance(leaf, list | tuple):
            return [self.strip(part) for part in leaf]
        return leaf


def _wrapped(leaf: Any, inputs: list[Pretended], there: bool) -> Any:
    if isinstance(leaf, list | tuple):
        return type(leaf)([_wrapped(part, inputs, there) for part in leaf])
    if not isinstance(leaf, Tensor) or isinstance(leaf, Pretended):
        return leaf
    for outer in inputs:
        if leaf is outer.held:  # what worked in place gives back what it was given
            return outer
    return Pretended(leaf) if there else leaf


def _check(func: Any, args: Any, seen: _Seen) -> None:
    if not seen.generators and not (seen.pretended and seen.plain):
        return
    name = func._schema.name.removeprefix("aten::")
    if seen.generators:
        raise RuntimeError(f"{name}: Expected a '{NAME}' device type for generator but found 'cpu'")
    if name in CROSSING:
        return
    first = args[0] if args else None
    if name in INDEXING and isinstance(first, Pretended):
        values = args[2] if len(args) > 2 else None
        if not isinstance(values, Tensor) or isinstance(values, Pretended) or not values.dim():
            return
    elif all(leaf.dim() == 0 for leaf in seen.plain) and name not in NO_NUMBERS | INDEXING:
        written = name.endswith("_") and first is seen.plain[0]
        if not written:
            return
    raise RuntimeError(
        f"{name}: Expected all tensors to be on the same device, but found at least two devices, "
        f"{NAME}:0 and cpu!"
    )


class _Module:
    """torch.pretend, as torch asks for it."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None: ...

    def synchronize(self, device: Any = None) -> None: ...

    def manual_seed_all(self, seed: int) -> None: ...

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


waits: list[
    Any
] = []  # operations whose result the CPU wants to know: it has to wait for a device that is far behind
_libraries: list[torch.library.Library] = []  # what they registered ends with them


@functools.cache
def start() -> torch.device:
    """From now on there is a device "pretend".

    Lightning knows it as an accelerator of that name.
    """
    backend_registration._setup_privateuseone_for_python_backend(NAME, _Module())
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(run, "PrivateUse1")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    factories = torch.library.Library("aten", "IMPL")
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and _makes(schema):
            packet = getattr(torch.ops.aten, schema.name.removeprefix("aten::"))
            op = getattr(packet, schema.overload_name or "default")
            with contextlib.suppress(RuntimeError):  # composed of others: they are asked
                factories.impl(op, functools.partial(run, op), "PrivateUse1")
    _libraries.extend([everything, factories])
    for module, name in ((torch, "tensor"), (torch, "as_tensor"), (torch, "asarray")):
        setattr(module, name, _built(getattr(module, name)))
    AcceleratorRegistry.register(NAME, _Accelerator)
    whole = _AcceleratorConnector._choose_strategy

    def chosen(self: Any) -> Any:
        if self._accelerator_flag != NAME:
            return whole(self)
        return SingleDeviceStrategy(device=torch.device(NAME, 0))  # Lightning would take the CPU

    _AcceleratorConnector._choose_strategy = chosen
    return torch.device(NAME, 0)


def _makes(schema: Any) -> bool:
    """Whether it makes a tensor out of none."""
    kinds = {argument.name: str(argument.type) for argument in schema.arguments}
    return "device" in kinds and not any("Tensor" in kind for kind in kinds.values())


def _built(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch.tensor and its like put their result together below the dispatcher."""

    @functools.wraps(make)
    def built(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if isinstance(data, Pretended):
            return data if device is None and not kwargs else data.to(device=device, **kwargs)
        made = make(data, *args, **kwargs)
        return (
            made if device is None else made.detach().to(device).requires_grad_(made.requires_grad)
        )

    return built


class _Accelerator(Accelerator):
    def setup_device(self, device: torch.device) -> None:
        assert device.type == NAME

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    def teardown(self) -> None: ...

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return 1

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device(NAME, 0)]

    @staticmethod
    def auto_device_count() -> int:
        return 1

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def name() -> str:
        return NAME


def collectives() -> None:
    """From now on only tensors of the device may be sent to other ranks, as with NCCL; objects are sent as they are."""
    for name in (
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "all_gather_into_tensor",
        "gather",
        "scatter",
    ):
        setattr(dist, name, _sent(getattr(dist, name)))


def _sent(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def sent(*args: Any, **kwargs: Any) -> Any:
        seen = _Seen()
        held = [seen.strip(arg) for arg in args]
        named = {key: seen.strip(arg) for key, arg in kwargs.items()}
        if seen.plain:
            raise RuntimeError("No backend type associated with device type cpu")
        return send(*held, **named)

    return sent


def alone(work: Callable[..., None], folder: Path, *told: Any) -> None:
    """``work(*told)`` in a fork that has the device, in ``folder``.

    What it printed is raised where it fails.
    """
    pickled = base64.b64encode(pickle.dumps((work, told))).decode()
    end = forks.ask("pretend.obey", folder, forks.environment(), sys.path, pickled)
    assert end.code == 0, end.out + end.err


def obey(path: list[str], pickled: str) -> None:
    """In a fork."""
    sys.path[:] = path  # where the module of ``work`` lies
    start()
    work, told = pickle.loads(base64.b64decode(pickled))
    work(*told)
