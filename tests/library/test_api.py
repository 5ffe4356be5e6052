"""What a notebook calls: any supported timm model and any loader of (images, labels)."""

from __future__ import annotations

import copy
import functools
import pickle
import sys

import pytest
import timm
import torch
from torch.utils.data import DataLoader, TensorDataset

import mhprobe
import oracles.gate_importance
import oracles.svcca
from located import LOCATED
from mhprobe.backbones import input_spec
from mhprobe.data.batch import Batch
from mhprobe.measures.base import MeasureWarning
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


# a grid of whole windows: the oracle of SVCCA also counts the rows that only pad a window, record()
# drops them
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
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, labels), batch_size=2
    )
    plain = mhprobe.measure(model, loader, [mhprobe.measures.GateImportance])["gate_importance"]
    index = torch.arange(COUNT)
    padded = (
        torch.cat([images, 5 * images[:3]]),
        torch.cat([labels, labels[:3]]),
        torch.cat([index, index[:3]]),
    )
    batch = Batch(*padded, valid=torch.arange(COUNT + 3) < COUNT)
    flagged = mhprobe.measure(model, [batch], [mhprobe.measures.GateImportance])["gate_importance"]
    counted = mhprobe.measure(model, [padded[:2]], [mhprobe.measures.GateImportance])[
        "gate_importance"
    ]
    torch.testing.assert_close(
        flagged, plain, rtol=1e-4, atol=0
    )  # float32 forward passes of other batch sizes
    assert not torch.allclose(counted, plain, rtol=1e-2)  # the padding would have shown


def test_measuring_leaves_the_model_as_it_was():
    model = tiny_vit().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    mhprobe.measure(
        model, batches(images_for(model, 4), labels_for(4), 2), [mhprobe.measures.GateImportance]
    )
    assert model.training
    assert all(
        parameter.requires_grad and parameter.grad is None for parameter in model.parameters()
    )
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
        assert row["accuracy"] == accuracy(
            model, images, labels, [head in masked for head in range(heads)]
        )
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
    rows = mhprobe.masking_curve(
        model, report, units="layer", order="keep_best", select_loader=select
    )
    assert {row["split"] for row in rows} == {"validation", "test"}
    masked = {
        split: [row["masked"] for row in rows if row["split"] == split]
        for split in ("validation", "test")
    }
    assert masked["validation"] == masked["test"]


@pytest.mark.parametrize("score", [None, "top1"])
def test_accuracy_means_the_same_on_both_loaders_though_one_has_no_labels(score):
    model = tiny_vit()
    images, labels, others = images_for(model, 12), labels_for(12), images_for(model, 12, seed=5)
    for loaders in (([(images, labels)], [others]), ([images], [(others, labels)])):
        rows = mhprobe.masking_curve(
            model, loaders[0], units="layer", select_loader=loaders[1], score=score
        )
        assert {(row["split"], row["score"]) for row in rows} == {
            ("validation", "top1"),
            ("test", "top1"),
        }
        assert [row["accuracy"] for row in rows if row["step"] == 0] == [1, 1]
        with pytest.raises(
            mhprobe.UserError, match="score=labels: needs labels, and the images have none"
        ):
            mhprobe.masking_curve(
                model, loaders[0], units="layer", select_loader=loaders[1], score="labels"
            )
    assert {
        row["score"] for row in mhprobe.masking_curve(model, [(images, labels)], units="layer")
    } == {"labels"}


@pytest.mark.parametrize("score", [None, "labels", "top1"])
def test_labels_in_some_batches_alone_are_refused(score):
    model = tiny_vit()
    images, labels = images_for(model, 12), labels_for(12)
    for loader in ([(images[:4], labels[:4]), images[4:]], [images[:4], (images[4:], labels[4:])]):
        with pytest.raises(
            mhprobe.UserError, match=r"^masking_curve: loader: expected labels in all batches or in"
        ):
            mhprobe.masking_curve(model, loader, units="layer", score=score)


def test_more_labels_than_images_are_refused_whatever_the_size_of_a_piece():
    model = tiny_vit()
    for looks in (
        [mhprobe.measures.GateImportance],
        [mhprobe.measures.GateImportance, mhprobe.measures.Entropy],
    ):
        for labels in (labels_for(18), labels_for(9)):
            with pytest.raises(
                mhprobe.UserError, match=r"labels: expected \(12,\) int64, one class per image, got"
            ):
                mhprobe.measure(model, [(images_for(model, 12), labels)], looks)


def test_labels_of_a_network_with_one_logit_are_refused_and_what_needs_none_is_answered():
    """All importances were 0, and the accuracy 100 % whatever was masked."""
    model, delta = tiny_vit(num_classes=1), mhprobe.measures.AblationDelta
    images, labels = images_for(model, 12), torch.zeros(12, dtype=torch.long)
    for call in (
        lambda: mhprobe.measure(model, [(images, labels)], [mhprobe.measures.GateImportance]),
        lambda: mhprobe.measure(model, [(images, labels)], [delta]),
        lambda: mhprobe.masking_curve(model, [(images, labels)], units="layer"),
        lambda: mhprobe.masking_curve(
            model, [(images, labels)], units="layer", fill="optimal", score="cosine"
        ),
    ):
        with pytest.raises(
            mhprobe.UserError, match=r"^labels: expected a model of at least two classes, got one l"
        ):
            call()
    assert (
        mhprobe.measure(model, [images], [mhprobe.measures.GateImportance])["gate_importance"] > 0
    ).all()
    assert mhprobe.masking_curve(model, [images], units="layer", score="difference")
    for score in (None, "top1", "kl"):  # of which none can tell one class from another
        with pytest.raises(
            mhprobe.UserError, match=r"^score=(top1|kl): one logit is always right, expected more"
        ):
            mhprobe.masking_curve(model, [images], units="layer", score=score)
    features = tiny_vit(num_classes=0)
    assert (
        mhprobe.masking_curve(features, [(images, labels)], units="layer")[0]["score"] == "cosine"
    )
    assert (
        len(
            mhprobe.measure(
                features, [(images, labels)], [mhprobe.measures.GateImportance], target="norm"
            )
        )
        == 1
    )


def test_images_that_chose_the_heads_are_not_taken_for_others():
    model = tiny_vit()
    images, labels, other = images_for(model, 12), labels_for(12), images_for(model, 12, seed=5)
    loader = batches(images, labels, 4)
    alone = mhprobe.masking_curve(model, loader, units="layer")
    assert {(row["split"], row["chosen_on"], row["p"]) for row in alone} == {("test", "test", "")}
    for same in (
        loader,
        batches(images, labels, 12),
        batches(images.flip(0), labels.flip(0), 5),
        [images],
    ):
        assert mhprobe.masking_curve(model, loader, units="layer", select_loader=same) == alone
    some = [(torch.cat([images[:3], other]), torch.cat([labels[:3], labels]))]
    with pytest.warns(
        MeasureWarning,
        match="^masking_curve: 3 of the 12 images of loader are in select_loader, too",
    ):
        rows = mhprobe.masking_curve(model, loader, units="layer", select_loader=some)
    assert {row["split"] for row in rows} == {"validation", "test"}
    mhprobe.masking_curve(
        model, loader, units="layer", select_loader=[(other, labels)]
    )  # nothing to warn of


def test_random_curves_take_their_options_and_repeat():
    model = tiny_vit()
    loader = batches(images_for(model, 12), labels_for(12), 6)
    rows = mhprobe.masking_curve(
        model, loader, units="head", order="random", repeats=3, seed=1, steps=2
    )
    assert {row["seed"] for row in rows} >= {"mean"} and len({row["seed"] for row in rows}) == 4
    assert rows == mhprobe.masking_curve(
        model, loader, units="head", order="random", repeats=3, seed=1, steps=2
    )
    for row, mask in zip(rows, rows.masks, strict=True):  # a mean over paths has no heads to remove
        assert (mask is None) == (row["seed"] == "mean")
        assert mask is None or int(mask.sum()) == row["heads_masked"]
    with pytest.raises(mhprobe.UserError, match="None"):
        mhprobe.prune_heads(model, rows.masks[-1])


def test_a_loader_that_shuffles_is_refused_where_images_are_compared_over_several_walks():
    model = tiny_vit()
    images, labels = images_for(model, 40), labels_for(40)

    def loader(shuffle: bool) -> DataLoader:
        seeded = torch.Generator().manual_seed(0)
        return DataLoader(
            TensorDataset(images, labels), batch_size=16, shuffle=shuffle, generator=seeded
        )

    for options in ({}, {"select_loader": loader(False)}):
        with pytest.raises(mhprobe.UserError, match=r"the same order.*shuffle=False"):
            mhprobe.masking_curve(model, loader(True), steps=1, **options)
    rows = mhprobe.masking_curve(model, loader(False), steps=1)
    assert rows == mhprobe.masking_curve(model, batches(images, labels, 16), steps=1)


def test_a_loader_that_changes_its_images_is_refused_though_labels_and_order_stay():
    model = tiny_vit()
    images, labels = images_for(model, 12), labels_for(12)

    class Changing:
        def __init__(self, change):
            self.walks, self.change = 0, change

        def __iter__(self):
            self.walks += 1
            yield (images if self.walks == 1 else self.change(images)), labels

    for change in (
        lambda x: x.flip(-1),
        lambda x: x + 1e-3,
        lambda x: x[:, [1, 0, 2]],
    ):  # the first keeps every sum
        for options in ({}, {"score": "top1"}, {"select_loader": [(images, labels)]}):
            with pytest.raises(mhprobe.UserError, match=r"same images .*no random augmentation"):
                mhprobe.masking_curve(model, Changing(change), steps=1, **options)
    assert mhprobe.masking_curve(model, Changing(lambda x: x.clone()), steps=1)


def test_a_loader_that_gives_fewer_images_later_is_refused():
    model = tiny_vit()
    batch = (images_for(model, 4), labels_for(4))

    class Ending:
        walks = 0

        def __iter__(self):
            self.walks += 1
            yield batch
            if self.walks == 1:
                yield batch

    with pytest.raises(
        mhprobe.UserError, match="expected the same images and labels in the same order"
    ):
        mhprobe.masking_curve(model, Ending(), steps=1)


def test_valid_marks_that_are_numbers_are_refused():
    model = tiny_vit()
    batch = Batch(images_for(model, 4), labels_for(4), torch.arange(4), torch.tensor([1, 1, 1, 0]))
    with pytest.raises(mhprobe.UserError, match=r"Batch\.valid: expected bool"):
        mhprobe.measure(model, [batch], [mhprobe.measures.GateImportance])
    mhprobe.attach(model)
    with pytest.raises(mhprobe.UserError, match=r"record: valid: expected \(B,\) bool"):
        mhprobe.record(model, batch.images, batch.labels, {"grad"}, valid=batch.valid)


def test_what_cannot_be_answered_is_said_in_a_line():
    model = tiny_vit()
    loader = batches(images_for(model, 4), labels_for(4), 2)
    for call, words in [
        (lambda: mhprobe.masking_curve(model, iter(loader)), "iterator"),
        (lambda: mhprobe.masking_curve(model, loader, units="limb"), "limb"),
        (lambda: mhprobe.masking_curve(model, loader, order="alphabet"), "keep_best"),
        (lambda: mhprobe.measure(model, loader, [mhprobe.measures.SVCCA] * 2), "name"),
        (lambda: mhprobe.measure(model, ["more"], [mhprobe.measures.SVCCA]), "images, labels"),
        (
            lambda: mhprobe.measure(model, [], [mhprobe.measures.GateImportance]),
            "one image, got none",
        ),
        (lambda: mhprobe.masking_curve(model, []), "one image, got none"),
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


def test_detaching_gives_back_the_model_as_it_was():
    model = tiny_vit()
    images = images_for(model, 2)
    with torch.no_grad():
        before = model(images)
        gates = mhprobe.attach(torch.nn.Sequential(model))  # or of a module that holds it
        gates.values[:] = 0
        assert not torch.equal(model(images), before)
        mhprobe.detach(model)
        assert torch.equal(model(images), before) and mhprobe.attach(model) is not gates
    with pytest.raises(
        mhprobe.UserError, match=r"^detach: expected a model, .* got NoneType 'None'\.$"
    ):
        mhprobe.detach(None)


def test_what_is_no_batch_no_measure_or_no_model_is_said_in_a_line():
    model, other = tiny_vit(), tiny_vit()
    images, labels = images_for(model, 4), labels_for(4)
    with torch.device("meta"):
        empty = tiny_vit()
    with torch.inference_mode():
        frozen = tiny_vit()
    gates = [mhprobe.measures.GateImportance]
    wrapped = torch.nn.DataParallel(other)
    look, curve = (
        functools.partial(mhprobe.measure, model),
        functools.partial(mhprobe.masking_curve, model),
    )
    good = [(images, labels)]
    for call, words in [
        (
            lambda: look([{"photo": images, "kind": labels}], gates),
            r"got a dict with 'photo' \(\(4, 3, 16, 16\)\), 'kind'",
        ),
        (lambda: look([(["a.png"] * 4, labels)], gates), r"got a tuple of 2: list of str, \(4,\)"),
        (
            lambda: look([(images, ["cat"] * 4)], gates),
            r"labels: expected one class per image as int64, got texts, e.g. 'cat'",
        ),
        (
            lambda: look([{"image": [images[0], images[1, :, 1:]]}], gates),
            r"'image' \(list of Tensor\)",
        ),
        (
            lambda: look([{"image": images, "label": ["cat"] * 4}], gates),
            r"got texts, e.g. 'cat'. .*names.index\(name\) for name in item\['label'\]",
        ),
        (lambda: look(good, "svcca"), "measures: expected a list, .* got 'svcca'; put"),
        (lambda: look(good, gates[0]), "expected a list, .* got GateImportance; put"),
        (
            lambda: look(good, ["js_distance"]),
            "'js_distance' .* mhprobe.measures.JSDistance",
        ),
        (lambda: look(good, [torch.nn.Linear]), "Linear is no measure"),
        (lambda: look(good, [mhprobe.measures.Measure]), "Measure is no measure"),
        (lambda: look(good, []), "measures: expected at least one, .* got none"),
        (lambda: look(good, [torch.nn.Linear(1, 1)]), "Linear is no measure"),
        (lambda: look(good, [lambda layout: 3]), "<lambda> is no measure"),
        (
            lambda: look([(images, labels + 4)], gates),
            "labels: expected 0 to 4, .* got [5-8] for image",
        ),
        (lambda: curve([(images, labels + 4)]), "labels: expected 0 to 4, .* got [5-8] for image"),
        (
            lambda: curve([(images, labels + 4)], fill="optimal"),
            "labels: expected 0 to 4, .* got [5-8] for image",
        ),
        (
            lambda: look([(images, labels.float())], gates),
            r"\(4,\) int64, .* got \(4,\) torch.float32",
        ),
        (
            lambda: look([(images.to(torch.uint8), labels)], gates),
            "floating-point .* got torch.uint8",
        ),
        (
            lambda: mhprobe.record(model, images[0], labels),
            r"expected a tensor \(B, 3, .* got \(3, 16, 16\)",
        ),
        (lambda: mhprobe.record(model, "cat.png", labels), "expected a tensor .* got str"),
        (
            lambda: mhprobe.record(model, images.to("meta"), labels),
            "images are on meta, the model is on cpu; give images.to",
        ),
        (
            lambda: mhprobe.attach("deit_tiny_patch16_224"),
            "expected a model, .* got str 'deit_tiny_patch16_224'",
        ),
        (
            lambda: mhprobe.prune_heads(wrapped, [0]),
            "DataParallel: it wraps a supported VisionTransformer; pass model",
        ),
        (lambda: mhprobe.measure(empty, good, gates), "meta device"),
        (lambda: mhprobe.measure(frozen, good, gates), "inference_mode"),
    ]:
        with pytest.raises(mhprobe.UserError, match=words) as error:
            call()
        assert "\n" not in str(error.value)
    mhprobe.attach(other)
    with pytest.raises(mhprobe.UserError, match=r"pass model\.module"):
        mhprobe.record(wrapped, images, labels)


def test_a_network_of_grey_images_says_how_many_channels_it_takes():
    torch.manual_seed(0)
    grey = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=8,
        patch_size=2,
        embed_dim=24,
        depth=1,
        num_heads=3,
        in_chans=1,
    )
    for size in ((3, 8, 8), (1, 12, 12)):
        got = " x ".join(map(str, size))
        with pytest.raises(
            mhprobe.UserError,
            match=f"^images: expected 1 x 8 x 8 for this VisionTransformer, got {got}: ",
        ):
            mhprobe.measure(grey, [torch.rand(2, *size)], [mhprobe.measures.Entropy])
    assert (
        len(mhprobe.measure(grey, [torch.rand(2, 1, 8, 8)], [mhprobe.measures.Entropy])["entropy"])
        == 3
    )
    coloured = LOCATED["csatv2"]()  # its first convolution is behind a transform of 64 channels
    with pytest.raises(mhprobe.UserError, match=r"^images: expected 3 x "):
        mhprobe.measure(
            coloured,
            [torch.rand(2, 1, *input_spec(coloured)["size"])],
            [mhprobe.measures.ActivationNorm],
        )


def test_images_of_another_size_are_said_to_be():
    model, gate = tiny_vit(), [mhprobe.measures.Entropy]
    for images, got in (
        (torch.zeros(2, 3, 30, 32), "3 x 30 x 32"),
        (torch.zeros(2, 1, 32, 32), "1 x 32 x 32"),
    ):
        for call in (
            lambda: mhprobe.measure(model, [images], gate),  # noqa: B023
            lambda: mhprobe.masking_curve(model, [images], units="layer"),  # noqa: B023
            lambda: mhprobe.masking_curve(
                model,
                [(images, torch.zeros(2, dtype=torch.long))],  # noqa: B023
                units="layer",
            ),
        ):
            with pytest.raises(
                mhprobe.UserError, match=f"^images: expected 3 x .* for this Vis.*, got {got}: "
            ):
                call()
    with pytest.raises(mhprobe.UserError, match=r"images: expected at least one, got \(0, 3"):
        mhprobe.attention(model, images_for(model, 1)[:0])


def test_an_empty_batch_among_others_changes_nothing():
    model, images = tiny_vit(), images_for(tiny_vit(), 4)
    with_it, without = (
        mhprobe.measure(model, loader, [mhprobe.measures.Entropy])["entropy"]
        for loader in ([images[:0], images, images[:0]], [images])
    )
    assert torch.equal(with_it, without)
    with pytest.raises(mhprobe.UserError, match="expected at least one image, got none"):
        mhprobe.measure(model, [images[:0]], [mhprobe.measures.Entropy])


def test_where_a_head_looks_in_images_of_another_size_is_refused_and_of_many_takes_few_at_a_time(
    monkeypatch,
):
    model = tiny_vit(dynamic_img_size=True)
    images = images_for(model, 20)
    wide = torch.cat([images, images], 3)
    for look in (
        lambda: mhprobe.attention(model, wide),
        lambda: mhprobe.maps.rollout.Rollout()(model, wide),
        lambda: mhprobe.measure(model, [wide], [mhprobe.measures.Entropy]),
        lambda: mhprobe.measure(model, [wide], [mhprobe.measures.OutputFrequency]),
    ):
        with pytest.raises(
            mhprobe.UserError, match=r" expected .* Feed images of the size the model was made for"
        ):
            look()
    whole, seen = mhprobe.attention(model, images[:8]), []
    monkeypatch.setattr("mhprobe.maps.attention.MOST", 8)
    model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    every = mhprobe.attention(model, images)
    assert max(seen) < 20 == sum(seen) == len(every)
    torch.testing.assert_close(every[:8], whole)


def test_a_wrapper_is_not_pruned_and_says_what_is():
    with pytest.raises(
        mhprobe.UserError, match=r"^prune_heads: Sequential: it wraps .*; pass model\.0\.$"
    ):
        mhprobe.prune_heads(torch.nn.Sequential(tiny_vit()), [0])
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(12, 2, 12, batch_first=True), 2
    )
    with pytest.raises(mhprobe.UserError, match=r"^prune_heads: ") as error:
        mhprobe.prune_heads(torch.nn.Sequential(encoder), [0])
    assert "instead" not in str(error.value)  # the encoder alone would be refused, too


def measured(*measures):
    model = tiny_vit()
    return mhprobe.measure(model, batches(images_for(model, COUNT), labels_for(COUNT), 4), measures)


def test_a_value_is_a_tensor_that_has_its_other_columns_beside_it():
    found = measured(mhprobe.measures.GateImportance, mhprobe.measures.JSDistance)
    value = found["gate_importance"]
    assert torch.equal(value, value.columns["value"]) and type(value + 0) is torch.Tensor
    assert torch.equal(value.argsort(), value.columns["value"].argsort())
    assert (value.columns["low"] < value).all() and (value.columns["high"] > value).all()
    assert (value.name, value.kind) == ("gate_importance", "per_head") and "nats" in value.label
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert torch.equal(again["gate_importance"].columns["high"], value.columns["high"])
        assert set(again) == set(found)


def test_values_show_themselves_as_a_table():
    found = measured(mhprobe.measures.GateImportance, mhprobe.measures.JSDistance)
    text, page = repr(found["gate_importance"]), found["gate_importance"]._repr_html_()
    head, *rows = text.splitlines()[1:7]
    assert "gate_importance: " in text and head.split()[:3] == ["head", "site", "value"]
    assert [float(row.split()[2]) for row in rows] == pytest.approx(
        found["gate_importance"][:5].tolist(), rel=1e-3
    )
    assert "<td>blocks.1.attn</td>" in page and "&lt;" not in page
    pairs = repr(found["js_distance"])
    assert "head_a" in pairs and "3 more" not in pairs and len(pairs) < 2000


def test_values_become_a_frame_where_pandas_is_there():
    pandas = pytest.importorskip("pandas")
    found = measured(mhprobe.measures.GateImportance, mhprobe.measures.JSDistance)
    frame = found["gate_importance"].to_frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 6
    assert frame["value"].tolist() == found["gate_importance"].tolist()
    pairs = found["js_distance"].to_frame()
    a, b = pairs[["head_a", "head_b"]].iloc[0]
    assert pairs["value"][0] == found["js_distance"][a, b]


def test_all_that_was_found_is_one_frame_with_a_row_per_measure_and_head_or_pair():
    pandas = pytest.importorskip("pandas")
    found = measured(
        mhprobe.measures.GateImportance, mhprobe.measures.Entropy, mhprobe.measures.JSDistance
    )
    frame = found.to_frame()
    assert frame.columns[0] == "measure" and frame["measure"].value_counts().to_dict() == {
        "gate_importance": 6,
        "entropy": 6,
        "js_distance": len(found["js_distance"].to_frame()),
    }
    for name in found:
        own = frame[frame["measure"] == name].dropna(axis=1, how="all").reset_index(drop=True)
        alone = found[name].to_frame().dropna(axis=1, how="all")
        pandas.testing.assert_frame_equal(own[alone.columns], alone, check_dtype=False)
        assert set(own) == {"measure", *alone.columns}
    assert list(mhprobe.report.values.Found({}, {}).to_frame()) == ["measure"]


def test_all_that_was_found_shows_itself_and_what_was_not():
    with pytest.warns(MeasureWarning, match="object_attention"):
        found = measured(
            mhprobe.measures.GateImportance,
            mhprobe.measures.Entropy,
            mhprobe.measures.ObjectAttention,
        )
    text, page = repr(found), found._repr_html_()
    assert (
        text.index("gate_importance: ")
        < text.index("entropy: ")
        < text.index("object_attention: not measured. ")
    )
    assert page.count("<table>") == 2 and "<p>object_attention: not measured. " in page


def test_without_pandas_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = measured(mhprobe.measures.GateImportance)
    for asked in (found, found["gate_importance"]):
        with pytest.raises(mhprobe.UserError, match="pandas is not installed"):
            asked.to_frame()


def test_a_measure_that_refuses_is_left_out_and_asking_for_it_says_why():
    with pytest.warns(MeasureWarning, match="object_attention: .* the others were measured"):
        found = measured(mhprobe.measures.GateImportance, mhprobe.measures.ObjectAttention)
    assert set(found) == {"gate_importance"}
    with pytest.raises(mhprobe.UserError, match="object_attention"):
        found["object_attention"]
    with pytest.raises(
        mhprobe.UserError, match="'svcca' was not measured; there are gate_importance"
    ):
        found["svcca"]
    with pytest.raises(mhprobe.UserError, match="object_attention"):
        measured(mhprobe.measures.ObjectAttention)


@pytest.mark.parametrize(
    "given", [lambda item: item[0], lambda item: (*item, 3), lambda item: None]
)
def test_what_a_function_makes_of_an_item_is_two_parts_or_refused(given):
    """A tensor of two images was once taken for images and labels, and of more a ValueError."""
    model = tiny_vit()
    item = torch.randn(2, 3, 16, 16), torch.tensor([0, 1])
    with pytest.raises(
        mhprobe.UserError, match=r"batch: expected a function that gives \(images, labels"
    ):
        mhprobe.measure(model, [item], [mhprobe.measures.Entropy], batch=given)
