"""Blocks that are compiled, checkpointed or merely subclassed are looked into; others are called what they are."""

from __future__ import annotations

import copy
import functools

import pytest
import timm
import torch
from timm.layers import Attention
from timm.models.vision_transformer import Block
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import mhprobe

SIZES = dict(img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=4)


class Mine(Block):
    """A block of one's own, with nothing else in it."""


class Own(Block):
    """A block with a forward of its own."""

    def forward(self, x, *args, **kwargs):
        return super().forward(x) * 1.0


class Heads(Attention):
    """Attention of one's own, with nothing else in it."""


class Other(Attention):
    """Attention with a forward of its own."""

    def forward(self, x, *args, **kwargs):
        return super().forward(x).flip(0).flip(0)


class Adapter(nn.Module):
    """What stands around a block and adds to it."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block, self.more = block, nn.Linear(24, 24)

    def forward(self, x, *args, **kwargs):
        x = self.block(x)
        return x + self.more(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **SIZES).eval()


def as_kind(kind, module):
    module.__class__ = kind
    return module


COMPUTE_ALIKE = {
    "compiled": functools.partial(torch.compile, backend="eager"),
    "a subclass": functools.partial(as_kind, Mine),
}


@pytest.mark.parametrize("how", COMPUTE_ALIKE)
def test_heads_are_found_inside_what_computes_alike(model, how):
    plain, x, y = copy.deepcopy(model), torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
    for number in range(2):
        model.blocks[number] = COMPUTE_ALIKE[how](model.blocks[number])
    measures = [mhprobe.measures.GateImportance, mhprobe.measures.Entropy]
    found, expected = (mhprobe.measure(one, [(x, y)], measures) for one in (model, plain))
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-6)
    masked, right = (mhprobe.attach(one).layout.mask([(0, 1)]) for one in (model, plain))
    assert torch.equal(masked, right)
    with mhprobe.attach(model).masked([1]), mhprobe.attach(plain).masked([1]), torch.no_grad():
        torch.testing.assert_close(model(x), plain(x))


@pytest.mark.parametrize("compiled", [True, False])
def test_a_checkpointed_block_is_masked_and_recording_says_why_it_cannot(model, compiled):
    plain, x = copy.deepcopy(model), torch.randn(4, 3, 16, 16)
    for number in range(2):
        block = checkpoint_wrapper(model.blocks[number])
        model.blocks[number] = torch.compile(block, backend="eager") if compiled else block
    with mhprobe.attach(model).masked([1]), mhprobe.attach(plain).masked([1]), torch.no_grad():
        torch.testing.assert_close(model(x), plain(x))
    with pytest.raises(mhprobe.UserError, match=r"blocks\.0.*is wrapped for activation checkpoint"):
        mhprobe.measure(model, [(x, torch.arange(4))], [mhprobe.measures.GateImportance])


def test_attention_that_is_merely_subclassed_is_taken(model):
    model.blocks[0].attn.__class__ = Heads
    assert mhprobe.attach(model).layout.num_heads == 6


REFUSED = {
    "own forward": (functools.partial(as_kind, Own), r"blocks\.0 is a Own, a subclass of timm's Block with a forward"),
    "adapter": (Adapter, r"blocks\.0 is a Adapter around a Block \(blocks\.0\.block\).*merge_and_unload"),
    "sequence": (lambda block: nn.Sequential(block, nn.Identity()), r"blocks\.0 is a Sequential around a Block"),
    "compiled adapter": (
        lambda block: torch.compile(Adapter(block), backend="eager"), r"blocks\.0 is a Adapter around a Block"
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", REFUSED)
def test_a_block_that_may_do_more_is_called_what_it_is(model, how):
    change, says = REFUSED[how]
    model.blocks[0] = change(model.blocks[0])
    with pytest.raises(mhprobe.UserError, match=says) as error:
        mhprobe.attach(model)
    assert "share one projection" not in str(error.value)


def test_attention_with_a_forward_of_its_own_is_called_what_it_is(model):
    model.blocks[1].attn.__class__ = Other
    with pytest.raises(
        mhprobe.UserError, match=r"blocks\.1\.attn is a Other, a subclass of timm's"
    ):
        mhprobe.attach(model)
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224",
        img_size=32,
        window_size=4,
        embed_dim=12,
        depths=(1,),
        num_heads=(2,),
    )
    attention = swin.layers[0].blocks[0].attn
    attention.__class__ = type("Windows", (type(attention),), {"forward": lambda self, x: x})
    with pytest.raises(
        mhprobe.UserError, match="a subclass of timm's WindowAttention with a forward"
    ):
        mhprobe.attach(swin)
