"""Heads that tuning changed are found, and those that it left alone are not."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file

import mhprobe
from data_sets import Noise
from drawn import assert_nothing_is_clipped
from lab.studies.conftest import Gated, Whole
from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.lab.papers.panels.before_tuning import before_tuning
from mhprobe.measures import CKA, Entropy, GateImportance
from models import make_loud, tiny_vit

IMAGES = 60


def material(folder, backbone, **measures):
    layout = mhprobe.attach(backbone).layout
    data = ImageData(
        Noise((20, IMAGES), 5, 16), 8, eval_batch_size=30, cache_dir=folder, val_fraction=0.5
    )
    data.prepare_data()
    data.setup("test")

    class Same(Gated):
        def untrained(self):
            twin = tiny_vit(1, num_classes=0)
            mhprobe.attach(twin)
            return twin

    built = {name: kind(layout) for name, kind in measures.items()}
    return Same(layout, Whole(backbone).eval(), data, measures=built, names=tuple(built))


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """Head 1 of block 1 reads other values after tuning; nothing else changed."""
    folder = tmp_path_factory.mktemp("tuned")
    before = tiny_vit(num_classes=0)
    make_loud(before, 0.5)
    with torch.no_grad():
        before.norm.weight.uniform_(
            0.2, 2
        )  # else all features are of one length, and have no slope
    save_file(before.state_dict(), folder / "before.safetensors")
    after = copy.deepcopy(before)
    width = after.blocks[1].attn.head_dim
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        qkv = after.blocks[1].attn.qkv.weight.unflatten(0, (3, -1, width))
        qkv[0, 1] *= 0.1  # a wider look
        qkv[2, 1] = torch.randn(width, qkv.shape[-1], generator=generator)
    asked = material(folder, after, entropy=Entropy, gate_importance=GateImportance)
    return (
        folder,
        after,
        before_tuning(asked, folder / "before.safetensors", IMAGES)["before_tuning"],
    )


def test_the_head_that_changed_is_found_and_the_others_are_themselves(answered):
    result = answered[-1]
    rows = [dict(zip(result.table.columns, row, strict=True)) for row in result.table.rows]
    heads = len(rows) // 2
    changed = heads + 1
    assert [n for n, row in enumerate(rows) if row["itself"] < 0.9] == [changed]
    for number, row in enumerate(rows):
        if number != changed:
            assert (
                row["itself"] == pytest.approx(1, abs=1e-6)
                and row["entropy_change"] == 0
                and row["entropy_p"] == 1
            )
    row = rows[changed]
    assert (
        row["itself_low"] < row["itself"] < row["itself_high"] < 0.9
        and 0 < row["itself_null"] < 0.9
    )
    assert (
        0 < row["entropy_low"] < row["entropy_change"] < row["entropy_high"]
        and row["entropy_p"] < 1e-3
    )
    assert row["entropy_change"] == pytest.approx(
        row["entropy_after"] - row["entropy_before"], abs=1e-12
    )
    assert rows[0]["gate_importance_change"] != 0  # what stands behind a head moves its slope
    assert result.of.images == IMAGES
    assert_nothing_is_clipped(result.figure)


def test_weights_of_epochs_give_a_curve_per_head_and_a_figure_per_block(answered, tmp_path):
    """The head changes in the second epoch; weights of epochs may be Lightning's."""
    folder, after, two = answered
    before = folder / "before.safetensors"
    state = {f"backbone.{key}": value for key, value in load_file(before).items()}
    torch.save({"state_dict": state, "epoch": 0}, tmp_path / "epoch_0.ckpt")
    results = before_tuning(
        material(tmp_path, after, entropy=Entropy), [before, tmp_path / "epoch_0.ckpt"], IMAGES
    )
    rows = results["before_tuning"].table.dicts()
    changed = rows[len(rows) // 2 + 1]
    assert (
        changed["itself_before"] == changed["itself_epoch_1"] == pytest.approx(1)
        and changed["itself_after"] < 0.9
    )
    assert changed["entropy_before"] == changed["entropy_epoch_1"] < changed["entropy_after_low"]
    assert changed["entropy_after_low"] < changed["entropy_after"] < changed["entropy_after_high"]
    # changes are from the first to the last, and what stands between them does not matter
    for row, other in zip(rows, two.table.dicts(), strict=True):
        assert row["entropy_change"] == other["entropy_change"] and row["itself"] == other["itself"]
    blocks = [result.figure for name, result in results.items() if name.startswith("tuning_block_")]
    assert len(blocks) == len(after.blocks)
    for number, figure in enumerate(blocks):
        assert_nothing_is_clipped(figure)
        moved = [
            len({round(y, 6) for y in bars.lines[0].get_ydata()}) > 1
            for bars in figure.axes[1].containers
        ]
        assert moved == [number == 1 and head == 1 for head in range(len(moved))]


def test_it_refuses_what_has_no_before(answered, tmp_path):
    folder, model, _ = answered
    file = folder / "before.safetensors"
    with pytest.raises(UserError, match="num_classes=0"):
        before_tuning(material(tmp_path, tiny_vit(), entropy=Entropy), file)
    with pytest.raises(UserError, match="cka is of pairs"):
        before_tuning(material(tmp_path, model, cka=CKA), file)
    with pytest.raises(UserError, match="another architecture"):
        other = tmp_path / "other.safetensors"
        save_file({"unlike": torch.zeros(2)}, other)
        before_tuning(material(tmp_path, model, entropy=Entropy), other)
    with pytest.raises(UserError, match="at least 20 test images, got 7"):
        before_tuning(material(tmp_path, model, entropy=Entropy), file, images=7)
