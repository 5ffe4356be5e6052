"""A target in memory: weights and the peak of activations, against torch's own count of a network that was pruned."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import mhprobe
from mhprobe.backbones import layout_of
from mhprobe.heads import KINDS
from mhprobe.pruning.budget import mask_by, within
from mhprobe.surgery.costs import costs
from models import images_for, tiny_eva, tiny_swin, tiny_vit

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


def allocated(model, image) -> int:
    """Bytes of parameters and buffers, and the most that torch's allocator held during a forward pass.

    Scratch space inside the kernel of attention, which is returned before it ends, is not counted.
    """
    with torch.no_grad():
        model(image)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            model(image)
    events = sorted(seen.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    now, peak, kernel_ends = 0, 0, 0
    for event in events:
        if event.name() == FLASH:
            kernel_ends = event.start_ns() + event.duration_ns()
        if event.name() == "[memory]":
            if event.start_ns() > kernel_ends:
                peak = max(peak, now, now + event.nbytes())
            now += event.nbytes()
    return peak + sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin, tiny_eva])
def test_memory_is_what_torch_allocates_for_the_pruned_network(build):
    model = build()
    layout, image = layout_of(model, KINDS), images_for(model, 1)
    left, whole = costs(model, layout, image, {"memory"})["memory"], allocated(model, image)
    shares = []
    for share in (0.0, 0.3, 0.6):
        mask = torch.rand(layout.num_heads, generator=torch.Generator().manual_seed(1)) < share
        shares.append(float(left(mask[None])))
        small = mhprobe.prune_heads(model, mask, units=KINDS)
        assert shares[-1] == pytest.approx(allocated(small, image) / whole, rel=1e-12)
    assert shares[0] == 1 and shares[0] > shares[1] > shares[2]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_memory_never_grows_as_units_go():
    model = tiny_vit(num_heads=1)  # layers without heads, too
    layout = layout_of(model, KINDS)
    left = costs(model, layout, images_for(model, 1), {"memory"})["memory"]
    order = torch.randperm(layout.num_heads, generator=torch.Generator().manual_seed(0))
    going = torch.zeros(layout.num_heads, layout.num_heads, dtype=torch.bool)
    for step, mask in enumerate(going):
        mask[order[: step + 1]] = True
    assert (left(going).diff() < 0).all()  # by its weights, where it is not at the peak


def test_heads_and_neurons_go_until_a_target_in_memory_is_met():
    model = tiny_vit()
    layout, image = mhprobe.attach(model, units=KINDS).layout, images_for(model, 1)
    scores = torch.rand(layout.num_heads, generator=torch.Generator().manual_seed(0))
    mask = mask_by(scores, within(model, {"memory": 0.7}))
    small = mhprobe.prune_heads(model, mask)
    bare = mhprobe.prune_heads(model, mask & False)
    assert 0.65 < allocated(small, image) / allocated(bare, image) <= 0.7
    assert mask[: layout.of("head").num_heads].any()


def test_a_curve_stops_at_a_target_in_memory():
    model = tiny_vit()
    loader = [(images_for(model, 8), torch.arange(8) % 5)]
    rows = mhprobe.masking_curve(
        model, loader, units="head", order="keep_best", target={"memory": 0.9}
    )
    layout = layout_of(model)
    masks = torch.stack(
        [layout.mask([int(head) for head in row["masked"].split()]) for row in rows]
    )
    left = costs(model, layout, images_for(model, 1), {"memory"})["memory"](masks)
    assert left[-1] <= 0.9 < left[-2]
    with pytest.raises(mhprobe.UserError, match="latency, memory with its value"):
        mhprobe.masking_curve(model, loader, target={"gigabytes": 0.9})
