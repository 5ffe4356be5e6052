"""ONNX and torch.export compute what the network computes, or are not given out."""

from __future__ import annotations

import io
import warnings

import pytest
import torch

import mhprobe
import mhprobe.prune
from mhprobe.backbones import layout_of
from mhprobe.heads import KINDS
from mhprobe.surgery import export as export_module
from mhprobe.surgery.export import export_bytes, onnx_bytes, torch_export_bytes
from models import TWINS, images_for
from pruned import BACKBONES, EMPTIED, logits, network


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*BACKBONES, "swinv2", "eva_mixed", "relpos_shared"])
def test_exports_give_the_same_logits_for_any_batch(kind):
    """Of a mix: a block without heads and one with some, an MLP without neurons; modules of timm, and those of ours."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    dense = network(kind) if kind in BACKBONES else TWINS[kind]()
    layout = layout_of(dense, KINDS)
    mask = layout.mask(EMPTIED["swin" if "swin" in kind else "vit"])
    neurons = layout.of("head").num_heads
    mask[neurons::2] = True
    mask[layout.span(len(layout.sites) - 1)] = True
    pruned = mhprobe.prune_heads(dense, mask, units=KINDS)
    whole, kept = (
        layout.sites,
        {site.name: site.num_heads for site in layout_of(pruned, KINDS).sites},
    )
    assert len(kept) < len(whole) and any(
        0 < kept.get(site.name, 0) < site.num_heads for site in whole
    )
    if export_module.OLDER and kind == "eva_mixed":
        with pytest.raises(mhprobe.UserError, match=r"does not run .* Take torch 2\.7"):
            onnx_bytes(pruned, images_for(pruned, 2))
        pytest.skip(f"torch {torch.__version__} writes no rotations that are learned; 2.7 does")
    files = export_bytes(pruned, images_for(pruned, 2), onnx=True, torch_export=True)
    session = onnxruntime.InferenceSession(files["onnx"])
    data = io.BytesIO(files["pt2"])
    with warnings.catch_warnings(action="ignore"):  # torch 2.6 warns about names of its own
        program = torch.export.load(data).module()
    for count in (1, 5):
        images = images_for(pruned, count, seed=9)
        (found,) = session.run(["logits"], {"images": images.numpy()})
        torch.testing.assert_close(
            torch.from_numpy(found), logits(pruned, images), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(
            logits(program, images), logits(pruned, images), rtol=1e-5, atol=1e-6
        )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_before_torch_2_7_the_older_exporter_writes_batches_of_any_size(monkeypatch):
    """The newer one of that torch fails beside onnxscript 0.5, and the older one of today stands for its own."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model = TWINS["vit"]()
    monkeypatch.setattr(export_module, "OLDER", True)
    newer = []
    export = torch.onnx.export
    monkeypatch.setattr(
        torch.onnx, "export", lambda *a, **k: (newer.append(k["dynamo"]), export(*a, **k))[1]
    )
    session = onnxruntime.InferenceSession(onnx_bytes(model, images_for(model, 2)))
    images = images_for(model, 5, seed=9)
    (found,) = session.run(["logits"], {"images": images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), logits(model, images), rtol=1e-4, atol=1e-5)
    assert newer == [False]


@pytest.mark.slow
def test_an_export_that_computes_something_else_is_not_given_out(monkeypatch):
    pruned = mhprobe.prune_heads(network("vit"), [1])
    load = torch.export.load

    def wrong(file):
        program = load(file)
        with torch.no_grad():
            program.state_dict["head.bias"].add_(1e-3)
        return program

    monkeypatch.setattr(torch.export, "load", wrong)
    with pytest.raises(RuntimeError, match=r"torch\.export.*differ"):
        torch_export_bytes(pruned, images_for(pruned, 2))
