"""Rollouts as products of whole T x T matrices, one image at a time; areas as loops over patches."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from oracles.lrp_relevance import cut


def weights(
    model: nn.Module, image: Tensor, along: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Per attention (H, T, T) over the tokens of the image, and the slopes of the largest logit along them."""
    seen, names = [], [name for name, _ in model.named_modules() if name.endswith(".attn")]
    handles, fused = [], []
    for name in names:
        module = model.get_submodule(name)
        fused.append(module.fused_attn)
        module.fused_attn = False

        def keep(_module, args):
            args[0].retain_grad()
            seen.append(args[0])

        handles.append(module.attn_drop.register_forward_pre_hook(keep))
    logits = model(image[None])
    for handle in handles:
        handle.remove()
    for name, before in zip(names, fused, strict=True):
        model.get_submodule(name).fused_attn = before
    logits.max().backward()
    whole = [unwindow(model, name, a.detach()) for name, a in zip(names, seen, strict=True)]
    slopes = [unwindow(model, name, a.grad) for name, a in zip(names, seen, strict=True)]
    model.zero_grad()
    return whole, slopes


def unwindow(model: nn.Module, name: str, attn: Tensor) -> Tensor:
    """(windows, H, K, K) -> (H, T, T), zeros between windows; what goes to padding is lost."""
    if not hasattr(model, "layers"):
        return attn[0]
    block = model.get_submodule(name.rpartition(".")[0])
    height, width = block.input_resolution
    full = torch.zeros(attn.shape[1], height * width, height * width, dtype=attn.dtype)
    for window, places in enumerate(cut((height, width), block.window_size, block.shift_size)):
        for i, query in enumerate(places):
            for j, key in enumerate(places):
                if query >= 0 and key >= 0:
                    full[:, query, key] = attn[window, :, i, j]
    return full


def rollout(model: nn.Module, fused: list[Tensor]) -> Tensor:
    """(T of the last block, T of the first): the chain of (0.5 A + 0.5 I) with rows at 1, and of mergings."""
    chain = None
    grid = None
    names = [name for name, _ in model.named_modules() if name.endswith(".attn")]
    for name, matrix in zip(names, fused, strict=True):
        mixed = 0.5 * matrix + 0.5 * torch.eye(len(matrix), dtype=matrix.dtype)
        mixed = mixed / mixed.sum(1, keepdim=True)
        if hasattr(model, "layers"):
            now = model.get_submodule(name.rpartition(".")[0]).input_resolution
            if grid is not None and now != grid:
                chain = merging(grid).to(chain.dtype) @ chain
            grid = now
        chain = mixed if chain is None else mixed @ chain
    return chain


def merging(grid: tuple[int, int]) -> Tensor:
    """Each row averages the tokens that one merged token is made of."""
    height, width = grid
    rows = []
    for r in range(0, height, 2):
        for c in range(0, width, 2):
            row = torch.zeros(height * width, dtype=torch.float64)
            children = [(a, b) for a in (r, r + 1) for b in (c, c + 1) if a < height and b < width]
            for a, b in children:
                row[a * width + b] = 1 / len(children)
            rows.append(row)
    return torch.stack(rows)


def read(model: nn.Module, chain: Tensor) -> Tensor:
    """The row of a class token that logits are read from, or the mean over the grid's; prefix columns left out."""
    prefix = getattr(model, "num_prefix_tokens", 0)
    reads_class_token = (
        getattr(model, "cls_token", None) is not None and model.global_pool == "token"
    )
    row = chain[0] if reads_class_token else chain[prefix:].mean(0)
    return row[prefix:]


def area(
    model: nn.Module, start: Tensor, end: Tensor, map_: Tensor, target: int, steps: int
) -> float:
    """Trapezoids under the probability as squares of ``start`` become those of ``end``, largest first."""
    height, width = map_.shape
    tall, wide = start.shape[-2] // height, start.shape[-1] // width
    order = sorted(range(height * width), key=lambda p: (-float(map_.flatten()[p]), p))
    points = []
    for step in range(steps + 1):
        count = round(step * height * width / steps)
        picture = start.clone()
        for patch in order[:count]:
            r, c = divmod(patch, width)
            here = (slice(None), slice(r * tall, (r + 1) * tall), slice(c * wide, (c + 1) * wide))
            picture[here] = end[here]
        with torch.no_grad():
            probability = model(picture[None])[0].softmax(0)[target].item()
        points.append((count / (height * width), probability))
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(points))


def segmentation(maps: list[list[list[float]]], masks: list[list[list[bool]]]) -> list[float]:
    """Pixel accuracy, mean IoU and mean average precision, pixel by pixel; the last by scikit-learn."""
    from sklearn.metrics import average_precision_score

    counts, pixels, precisions = {True: [0, 0], False: [0, 0]}, 0, []
    right = 0
    for map_, mask in zip(maps, masks, strict=True):
        values = [
            [_between(map_, y, x, len(mask), len(mask[0])) for x in range(len(mask[0]))]
            for y in range(len(mask))
        ]
        flat, shown = [v for row in values for v in row], [s for row in mask for s in row]
        mean = math.fsum(flat) / len(flat)
        hot = [value > mean + 1e-12 for value in flat]
        for is_hot, is_shown in zip(hot, shown, strict=True):
            right, pixels = right + (is_hot == is_shown), pixels + 1
            for of, (both, one) in counts.items():
                counts[of] = [both + (is_hot == of == is_shown), one + (of in (is_hot, is_shown))]
        precisions.append(average_precision_score(shown, [round(value, 12) for value in flat]))
    iou = [both / one for both, one in counts.values()]
    return [right / pixels, sum(iou) / 2, sum(precisions) / len(precisions)]


def _between(map_: list[list[float]], y: int, x: int, height: int, width: int) -> float:
    """The map where the pixel's centre lies, linearly between the centres of patches, and flat beyond the last."""
    (low_y, high_y, down), (low_x, high_x, along) = (
        _neighbours(at, pixels, patches)
        for at, pixels, patches in ((y, height, len(map_)), (x, width, len(map_[0])))
    )
    top = map_[low_y][low_x] * (1 - along) + map_[low_y][high_x] * along
    bottom = map_[high_y][low_x] * (1 - along) + map_[high_y][high_x] * along
    return top * (1 - down) + bottom * down


def _neighbours(at: int, pixels: int, patches: int) -> tuple[int, int, float]:
    place = min(max((at + 0.5) * patches / pixels - 0.5, 0), patches - 1)
    low = min(int(place), patches - 1)
    return low, min(low + 1, patches - 1), place - low
