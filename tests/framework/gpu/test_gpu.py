"""What only a GPU can show; skipped without one. The other tests hold on a machine without."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import mhprobe
from mhprobe.backbones import layout_of
from mhprobe.data.batch import Batch
from mhprobe.framework.training.classifier import GatedClassifier
from mhprobe.recording.replay import Replay
from models import BUILDERS, images_for, labels_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(autouse=True)
def whole_float32(monkeypatch):
    """Not TF32, which torch leaves on for convolutions: it rounds the factors to 10 bits, the CPU to 24."""
    for kind in (torch.backends.cuda.matmul, torch.backends.cudnn.conv):
        monkeypatch.setattr(kind, "fp32_precision", "ieee")


@pytest.fixture(params=sorted(BUILDERS))
def twins(request):
    """The same network on the CPU and on the GPU."""
    return BUILDERS[request.param](), BUILDERS[request.param]().cuda()


def loader(model, device):
    return [(images_for(model, 16).to(device), labels_for(16).to(device))]


@pytest.mark.parametrize("measure", ["GateImportance", "SVCCA", "AblationDelta", "Entropy"])
def test_measures_are_those_of_the_cpu(twins, measure):
    cpu, gpu = (
        mhprobe.measure(model, loader(model, device), [getattr(mhprobe.measures, measure)])
        for model, device in zip(twins, ("cpu", "cuda"), strict=True)
    )
    for name in cpu:
        # float32 kernels add up in another order; pairs in different blocks are nan
        there, here = torch.as_tensor(gpu[name]), torch.as_tensor(cpu[name])
        torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-4, equal_nan=True)


def test_masks_side_by_side_give_the_logits_of_one_by_one(twins):
    model = twins[1]
    gates, layout = mhprobe.attach(model), layout_of(model)
    images = images_for(model, 6).cuda()
    masks = torch.eye(layout.num_heads, dtype=torch.bool)
    with torch.inference_mode():
        together = Replay(model, masks)(images)
        for mask, logits in zip(masks, together, strict=True):
            with gates.masked(mask):
                torch.testing.assert_close(logits, model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_bf16_supported(), reason="needs bfloat16")
def test_a_step_in_bfloat16_moves_the_weights_and_keeps_gates_at_one(twins):
    model = GatedClassifier(twins[1].train(), {"backbone": {}}).cuda()
    model.log = lambda *args, **kwargs: None
    optimizer = torch.optim.AdamW(model.backbone.parameters(), lr=1e-3)
    images, labels = images_for(model.backbone, 8).cuda(), labels_for(8).cuda()
    batch = Batch(images, labels, torch.arange(8).cuda(), torch.ones(8, dtype=torch.bool).cuda())
    before = [parameter.detach().clone() for parameter in model.backbone.parameters()]
    with torch.autocast("cuda", torch.bfloat16):
        loss = model.training_step(batch, 0)
    loss.backward()
    optimizer.step()
    assert loss.dtype == torch.float32 and bool(torch.isfinite(loss))
    assert any(
        not torch.equal(a, b) for a, b in zip(before, model.backbone.parameters(), strict=True)
    )
    assert bool((model.gates.effective() == 1).all())


def test_one_rank_of_nccl_gives_the_numbers_of_none(tmp_path):
    model = BUILDERS["vit"]().cuda()
    alone = mhprobe.measure(model, loader(model, "cuda"), [mhprobe.measures.GateImportance])
    dist.init_process_group(
        "nccl", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1
    )
    try:
        ranked = mhprobe.measure(model, loader(model, "cuda"), [mhprobe.measures.GateImportance])
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(
        torch.as_tensor(ranked["gate_importance"]),
        torch.as_tensor(alone["gate_importance"]),
        rtol=0,
        atol=0,
    )
