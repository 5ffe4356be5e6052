"""What a notebook calls: any supported timm model and any loader of (images, labels)."""

from __future__ import annotations

import functools

import pytest
import timm
import torch

import mhprobe
import oracles.gate_importance
import oracles.svcca
from mhprobe.data.batch import Batch
from models import BUILDERS, images_for, labels_for, tiny_swin, tiny_vit

COUNT = 9


def batches(images, labels, size):
    return [(images[i : i + size], labels[i : i + size]) for i in range(0, len(images), size)]


def sites_of(model):
    return [(site.name, site.num_heads) for site in mhprobe.attach(model).layout.sites]


def accuracy(model, images, labels, mask) -> float:
    """With the masked heads' columns of the output projection at zero: no gate is involved."""
    state = {key: value.clone() for key, value in model.state_dict().items()}
    head = 0
    with torch.no_grad():
        for site in mhprobe.attach(model).layout.sites:
            for number in range(site.num_heads):
                if mask[head]:
                    columns = slice(number * site.head_dim, (number + 1) * site.head_dim)
                    model.get_submodule(f"{site.name}.proj").weight[:, columns] = 0
                head += 1
        right = int((model(images).argmax(1) == labels).sum())
    model.load_state_dict(state)
    return right / len(images)


# a grid of whole windows: the oracle of SVCCA also counts the rows that only pad a window, record() drops them
WHOLE = {**BUILDERS, "swin": functools.partial(tiny_swin, img_size=16)}


@pytest.mark.parametrize("build", WHOLE.values(), ids=WHOLE.keys())
def test_measures_equal_their_oracles(build):
    model = build().double()
    images, labels = images_for(model, COUNT, dtype=torch.float64), labels_for(COUNT)
    sites = sites_of(build().double())
    found = mhprobe.measure(
        model, batches(images, labels, 4), [mhprobe.measures.GateImportance, mhprobe.measures.SVCCA]
    )
    assert set(found) == {"gate_importance", "svcca"}
    importance = oracles.gate_importance.value(build().double(), images, labels, sites)
    # both float64, sums in another order
    torch.testing.assert_close(found["gate_importance"], importance, rtol=1e-9, atol=0)
    similarity = oracles.svcca.value(build().double(), images, labels, sites)
    torch.testing.assert_close(found["svcca"], similarity, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_a_dataloader_will_do_and_images_that_only_pad_do_not_count():
    model = tiny_vit()
    images, labels = images_for(model, COUNT), labels_for(COUNT)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=2)
    plain = mhprobe.measure(model, loader, [mhprobe.measures.GateImportance])["gate_importance"]
    index = torch.arange(COUNT)
    padded = torch.cat([images, 5 * images[:3]]), torch.cat([labels, labels[:3]]), torch.cat([index, index[:3]])
    batch = Batch(*padded, valid=torch.arange(COUNT + 3) < COUNT)
    flagged = mhprobe.measure(model, [batch], [mhprobe.measures.GateImportance])["gate_importance"]
    counted = mhprobe.measure(model, [padded[:2]], [mhprobe.measures.GateImportance])["gate_importance"]
    torch.testing.assert_close(flagged, plain, rtol=1e-4, atol=0)  # float32 forward passes of other batch sizes
    assert not torch.allclose(counted, plain, rtol=1e-2)  # the padding would have shown


def test_measuring_leaves_the_model_as_it_was():
    model = tiny_vit().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    mhprobe.measure(model, batches(images_for(model, 4), labels_for(4), 2), [mhprobe.measures.GateImportance])
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(("order", "best"), [("keep_best", max), ("hurt_most", min)])
def test_greedy_curves_equal_brute_force(order, best):
    model = tiny_vit()
    images, labels = images_for(model, 40), labels_for(40)
    rows = mhprobe.masking_curve(model, batches(images, labels, 16), units="head", order=order)
    heads = mhprobe.attach(model).layout.num_heads
    assert [row["step"] for row in rows] == list(range(heads + 1))
    off: set[int] = set()
    for row in rows:
        masked = {int(head) for head in row["masked"].split()}
        assert row["heads_masked"] == len(masked)
        assert row["accuracy"] == accuracy(model, images, labels, [head in masked for head in range(heads)])
        if row["step"]:
            tried = [
                accuracy(model, images, labels, [head in off | {new} for head in range(heads)])
                for new in range(heads)
                if new not in off
            ]
            assert row["accuracy"] == best(tried)
        off = masked
    assert len({row["accuracy"] for row in rows}) > 2  # the curve moves


def test_orders_are_chosen_on_one_loader_and_reported_on_another():
    model = tiny_vit()
    select = batches(images_for(model, 30), labels_for(30), 16)
    report = batches(images_for(model, 20, seed=5), labels_for(20, seed=6), 16)
    rows = mhprobe.masking_curve(model, report, units="layer", order="keep_best", select_loader=select)
    assert {row["split"] for row in rows} == {"validation", "test"}
    masked = {split: [row["masked"] for row in rows if row["split"] == split] for split in ("validation", "test")}
    assert masked["validation"] == masked["test"]


def test_random_curves_take_their_options_and_repeat():
    model = tiny_vit()
    loader = batches(images_for(model, 12), labels_for(12), 6)
    rows = mhprobe.masking_curve(model, loader, units="head", order="random", repeats=3, seed=1, steps=2)
    assert {row["seed"] for row in rows} >= {"mean"} and len({row["seed"] for row in rows}) == 4
    assert rows == mhprobe.masking_curve(model, loader, units="head", order="random", repeats=3, seed=1, steps=2)


def test_what_cannot_be_answered_is_said_in_a_line():
    model = tiny_vit()
    loader = batches(images_for(model, 4), labels_for(4), 2)
    for call, words in [
        (lambda: mhprobe.masking_curve(model, iter(loader)), "iterator"),
        (lambda: mhprobe.masking_curve(model, loader, units="limb"), "limb"),
        (lambda: mhprobe.masking_curve(model, loader, order="alphabet"), "keep_best"),
        (lambda: mhprobe.measure(model, loader, [mhprobe.measures.SVCCA] * 2), "name"),
        (lambda: mhprobe.measure(model, [(*loader[0], "more")], [mhprobe.measures.SVCCA]), "images, labels"),
        (lambda: mhprobe.measure(model, [], [mhprobe.measures.GateImportance]), "no images"),
        (lambda: mhprobe.masking_curve(model, []), "no images"),
        (lambda: mhprobe.attach(timm.create_model("resnet18")), "ResNet"),
        (lambda: mhprobe.load("nowhere.safetensors"), "nowhere"),
    ]:
        with pytest.raises(mhprobe.UserError, match=words) as error:
            call()
        assert "\n" not in str(error.value)


def test_the_public_names_are_there():
    assert set(mhprobe.__all__) <= set(dir(mhprobe))
    for name in mhprobe.__all__:
        assert getattr(mhprobe, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'probing'"):
        mhprobe.probing  # noqa: B018
