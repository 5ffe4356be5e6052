"""Network A beside itself: what nothing looks like, where a correct export or no training may differ.

For an export: A one image at a time, with another number of threads, and with its sums in float64
(which shows A's own rounding); where B is of half precision, A in that precision, too. For a
training: A on another image. Each is compared with A as B is.

Shapes: B images, L blocks, A heads.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mhprobe.differences.errors import (
    Own,
    Pairs,
    counted,
    divergence,
    own,
    ratio,
    relative,
    squared,
    written,
)
from mhprobe.differences.passes import Pass
from mhprobe.differences.sides import Pair, Torch, paired, refuse_unlike
from mhprobe.errors import UserError
from mhprobe.heads import Stream, wide
from mhprobe.recording.record import in_raster_order

IMAGES = 8  # of which the rounding is taken: it hardly varies from image to image
OTHER_THREADS = {1: 2}  # else one


def rounding(a: Torch, pairs: Pairs, images: Tensor, dtype: torch.dtype | None) -> Own:
    """The largest error of A beside itself over all variants, its mean over images: fields of ``Own``, without images.

    dtype: of B, where it is half precision.
    """
    first, pairs = a.run(images), Pairs(*(list(map(_with_itself, of)) for of in pairs))
    variants: list[Callable[[], Pass]] = [
        lambda: _one_at_a_time(a, images, first),
        lambda: _other_threads(a, images, first),
        lambda: _in(a, images, first, torch.float64),
    ]
    if dtype is not None:
        variants.append(lambda: _in(a, images, first, dtype))
    # one variant's pass at a time: each takes as much room as a batch
    found = [own(a, a, pairs, first, variant()) for variant in variants]
    return Own(*(_largest([one[at] for one in found]) for at in range(len(Own._fields))))


def _with_itself(pair: Pair) -> Pair:
    """Pair all units of a site of A with themselves."""
    every = list(range(len(pair.numbers)))
    return pair._replace(other=pair.number, mine=every, theirs=every)


def _largest(errors: list[Tensor]) -> Tensor:
    return torch.stack([error.mean(0) for error in errors]).amax(0)


def _one_at_a_time(a: Torch, images: Tensor, first: Pass) -> Pass:
    parts = [
        a.run(images[at : at + 1], fed=first._replace(streams=_part(first, at)))
        for at in range(len(images))
    ]
    return joined(parts)


def _part(first: Pass, at: int) -> tuple[Stream, ...]:
    return tuple(Stream(*(place[at : at + 1] for place in stream)) for stream in first.streams)


def joined(parts: list[Pass]) -> Pass:
    """Join passes over parts of a batch."""
    streams = zip(*(part.streams for part in parts), strict=True)
    return Pass(
        _cat([part.arrived for part in parts]),
        tuple(Stream(*_cat(list(of_block))) for of_block in streams),
        _cat([part.heads for part in parts]),
        _cat([part.neurons for part in parts]),
        tuple(
            None if rows[0] is None else torch.cat(rows)
            for rows in zip(*(part.attention for part in parts), strict=True)
        ),
        torch.cat([part.logits for part in parts]),
    )


def _cat(parts: list[Any]) -> tuple[Tensor, ...]:
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def _other_threads(a: Torch, images: Tensor, first: Pass) -> Pass:
    threads = torch.get_num_threads()
    torch.set_num_threads(OTHER_THREADS.get(threads, 1))
    try:
        return a.run(images, fed=first)
    finally:
        torch.set_num_threads(threads)


def _in(a: Torch, images: Tensor, first: Pass, dtype: torch.dtype) -> Pass:
    with computing_in(a.backbone, [block.name for block in a.layout.blocks], dtype):
        return a.run(images, fed=first)


@contextlib.contextmanager
def computing_in(model: nn.Module, blocks: list[str], dtype: torch.dtype) -> Iterator[None]:
    """Compute in another precision inside a with block, with at most one block's weights in it at a time.

    The weights are put back as they were, not converted back.
    """
    inside = [model.get_submodule(name) for name in blocks]
    of_blocks = {id(tensor) for block in inside for tensor in _numbers(block)}
    outer = [tensor for tensor in _numbers(model) if id(tensor) not in of_blocks]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_converted(outer, dtype))
        for block in inside:
            local = stack.enter_context(contextlib.ExitStack())
            enter, leave = _entering(block, local, dtype), _leaving(local)
            stack.enter_context(
                block.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
            )
            stack.enter_context(block.register_forward_hook(leave, always_call=True))
        yield


def _entering(
    block: nn.Module, local: contextlib.ExitStack, dtype: torch.dtype
) -> Callable[..., Any]:
    def enter(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        local.enter_context(_converted(_numbers(block), dtype))
        return (
            tuple(_cast(value, dtype) for value in args),
            {key: _cast(value, dtype) for key, value in kwargs.items()},
        )

    return enter


def _leaving(local: contextlib.ExitStack) -> Callable[..., None]:
    def leave(*_: Any) -> None:
        local.close()

    return leave


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _numbers(module: nn.Module) -> list[Tensor]:
    tensors = [*module.parameters(), *module.buffers()]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


@contextlib.contextmanager
def _converted(tensors: list[Tensor], dtype: torch.dtype) -> Iterator[None]:
    before = [(tensor, tensor.data) for tensor in tensors]
    try:
        for tensor, data in before:
            tensor.data = data.to(dtype)
        yield
    finally:
        for tensor, data in before:
            tensor.data = data


def other_image(a: Torch, pairs: Pairs, first: Pass) -> tuple[Tensor, Tensor, Tensor]:
    """(B, L), (B, A), (B, A): how A differs on the next image of the batch, in blocks' writes, heads' and attention."""
    images, blocks = len(first.logits), []
    for stream in first.streams:
        write = written(stream)
        blocks.append(relative(write.roll(-1, 0), write))
    heads, attention = [], []
    for pair in pairs.heads:
        z = wide(in_raster_order(pair.site, first.heads[pair.number], images))
        out = a.output(pair.site)
        heads.append(_of_others(z, out))
        rows = first.attention[pair.number]
        if rows is None:
            attention.append(torch.full_like(heads[-1], torch.nan))
            continue
        windows = rows.shape[0] // images
        counts = counted(pair.site, rows, images)
        attention.append(divergence(rows, rows.roll(-windows, 0), counts))
    return torch.stack(blocks, 1), torch.cat(heads, 1), torch.cat(attention, 1)


def _of_others(z: Tensor, out: Tensor | None) -> Tensor:
    assert out is not None, "A is a PyTorch network"
    return ratio(squared(z.roll(-1, 0) - z, out.to(z)), squared(z, out.to(z)))


def other_network(
    a: Torch, other: Torch, images: Tensor, first: Pass
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, L), (B, A), (B, A) as of ``other_image``: how another network, of another seed, differs from A."""
    refuse_unlike(a, other)
    pairs = Pairs(paired(a, other, "head"), [])
    natural, fed = other.run(images), other.run(images, fed=first)
    counts = [one.logits.shape[-1] for one in (first, natural)]
    if counts[0] != counts[1]:
        raise UserError(
            f"diff: null: {a.name} gives {counts[0]} numbers per image and {other.name} {counts[1]}. "
            "Give a network of the same classes, as another seed of the same training."
        )
    blocks = own(a, other, pairs, first, fed).blocks
    found = own(a, other, pairs, first, natural)
    return blocks, found.heads, found.attention
