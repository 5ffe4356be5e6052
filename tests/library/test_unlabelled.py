"""No labels, no classifier: slopes of what the model says itself, and masks judged by what it said unmasked."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

import mhprobe
from mhprobe.measures.base import MeasureWarning
from mhprobe.scoring.cosine import Cosine
from models import images_for, labels_for, make_loud, tiny_swin, tiny_vit

COUNT = 12


def loud(build=tiny_vit, **settings) -> nn.Module:
    model = build(**settings).double()
    make_loud(model, 0.3)
    return model


def pictures(model, count=COUNT):
    return images_for(model, count, dtype=torch.float64)


def slopes(model, images, of):
    """(B, A) by finite differences along the gates."""
    gates = mhprobe.attach(model)
    step, found = 1e-5, []
    for head in range(gates.layout.num_heads):
        sides = []
        for sign in (1, -1):
            values = torch.ones(gates.layout.num_heads, dtype=torch.float64)
            values[head] += sign * step
            with torch.no_grad(), gates.fixed(values):
                sides.append(of(model(images)))
        found.append((sides[0] - sides[1]) / (2 * step))
    return torch.stack(found, 1)


@pytest.mark.parametrize("build", [tiny_vit, tiny_swin])
@pytest.mark.parametrize(
    ("target", "classes", "of"),
    [
        (None, 5, lambda out: out.amax(1)),
        ("norm", 5, lambda out: out.norm(dim=1)),
        (None, 0, lambda out: out.norm(dim=1)),
    ],
)
def test_importance_without_labels_is_the_slope_of_what_was_asked_for(build, target, classes, of):
    model = loud(build, num_classes=classes)
    gates = mhprobe.attach(model)
    gates.values.data = gates.values.data.double()
    images = pictures(model, 4)
    found = mhprobe.measure(model, [images], [mhprobe.measures.GateImportance], target=target)[
        "gate_importance"
    ]
    expected = slopes(model, images, of).abs().mean(0)
    torch.testing.assert_close(
        torch.Tensor(found), expected, rtol=1e-4, atol=1e-8, check_dtype=False
    )
    assert expected.std() > 0.1 * expected.mean()
    assert found.label.endswith(f"of the {'norm' if target or not classes else 'top1'}")


def test_a_feature_extractor_s_features_are_no_logits():
    model = loud(num_classes=0)
    with pytest.raises(mhprobe.UserError, match=r"gives features, no logits.*target='norm'"):
        mhprobe.measure(
            model, [(pictures(model), labels_for(COUNT))], [mhprobe.measures.GateImportance]
        )


def test_features_of_a_compiled_model_are_no_logits_either():
    model = loud(num_classes=0)
    images, measures = pictures(model), [mhprobe.measures.GateImportance]
    expected = mhprobe.measure(model, [images], measures)["gate_importance"]
    compiled = torch.compile(model, backend="eager")
    found = mhprobe.measure(compiled, [images], measures)["gate_importance"]
    assert torch.equal(found, expected) and found.label == expected.label
    curves = [
        mhprobe.masking_curve(either, [images], "layer", steps=1) for either in (model, compiled)
    ]
    assert curves[1][1]["loss"] == pytest.approx(curves[0][1]["loss"], rel=1e-9)


def test_measures_that_need_labels_are_left_out_with_a_word():
    model = loud()
    wanted = [
        mhprobe.measures.GateImportance,
        mhprobe.measures.AblationDelta,
        mhprobe.measures.Entropy,
    ]
    with pytest.warns(MeasureWarning, match="has no labels"):
        found = mhprobe.measure(model, [pictures(model)], wanted)
    assert set(found) == {"gate_importance", "entropy"} and set(found.refused) == {"ablation_delta"}


def test_what_cannot_be_recorded_for_one_measure_does_not_hold_up_the_others():
    model = loud(num_classes=0)
    wanted = [
        mhprobe.measures.Entropy,
        mhprobe.measures.LRPRelevance,
        mhprobe.measures.ActivationPatching,
    ]
    with pytest.warns(MeasureWarning) as said:
        found = mhprobe.measure(
            model, [pictures(model)], [*wanted, mhprobe.measures.GateImportance]
        )
    assert set(found) == {"entropy", "gate_importance"} and len(said) == 2
    assert "gives features, no logits" in str(found.refused["lrp_relevance"])
    assert "has no labels" in str(found.refused["activation_patching"])
    alone = mhprobe.measure(model, [pictures(model)], [mhprobe.measures.GateImportance])
    for name, column in alone["gate_importance"].columns.items():  # nothing was counted twice
        torch.testing.assert_close(
            found["gate_importance"].columns[name], column, rtol=1e-9, atol=1e-12
        )
    with pytest.raises(mhprobe.UserError, match="NaN or infinite"):  # that concerns all
        mhprobe.measure(model, [pictures(model) * torch.nan], wanted[:2])


def judged(score, out, whole, labels):
    """(right, loss) per image, one at a time."""
    right, losses = [], []
    for i in range(len(out)):
        alike = [float(F.cosine_similarity(out[i], other, dim=0)) for other in whole]
        before, after = whole[i].softmax(0), out[i].softmax(0)
        if score in ("top1", "kl"):
            right.append(int(out[i].argmax()) == int(whole[i].argmax()))
        if score == "top1":
            losses.append(-math.log(after[whole[i].argmax()]))
        elif score == "kl":
            losses.append(sum(float(p * (p / q).log()) for p, q in zip(before, after, strict=True)))
        elif score == "cosine":
            right.append(max(range(len(whole)), key=lambda n: alike[n]) == i)
            losses.append(1 - alike[i])
        else:
            near = sorted((n for n in range(len(whole)) if n != i), key=lambda n: -alike[n])[:5]
            theirs = [int(labels[n]) for n in near]
            vote = max(sorted(set(theirs)), key=theirs.count)
            right.append(vote == int(labels[i]))
            losses.append(sum(label != int(labels[i]) for label in theirs) / 5)
    return sum(right) / len(right), sum(losses) / len(losses)


@pytest.mark.parametrize(
    ("score", "classes"), [("top1", 5), ("kl", 5), ("cosine", 5), ("cosine", 0), ("knn", 0)]
)
def test_curves_are_agreement_with_the_unmasked_model(score, classes):
    model = loud(num_classes=classes)
    images, labels = pictures(model), labels_for(COUNT, num_classes=3)
    loader = [(images[:5], labels[:5]), (images[5:], labels[5:])]
    rows = mhprobe.masking_curve(
        model, loader, units="head", order="keep_best", score=score, steps=3
    )
    gates = mhprobe.attach(model)
    with torch.no_grad():
        whole = model(images)
        for row in rows:
            mask = gates.layout.mask([int(head) for head in row["masked"].split()])
            with gates.masked(mask):
                accuracy, loss = judged(score, model(images), whole, labels)
            assert row["accuracy"] == pytest.approx(accuracy)
            assert row["loss"] == pytest.approx(loss, rel=1e-6, abs=1e-9)
    assert rows[0]["accuracy"] == 1 or score == "knn"
    assert len({row["loss"] for row in rows}) > 2


def test_a_photograph_that_stands_twice_in_the_folder_is_found_either_way():
    """Of two equal pictures only the first was ever found: the unmasked network did not agree with itself."""
    model = loud(num_classes=0).float()
    images = images_for(model, COUNT)
    images[8] = images[1]
    loader = [images[:5], images[5:]]  # which round differently
    row, *_ = mhprobe.masking_curve(model, loader, units="head", score="cosine", steps=1)
    assert row["accuracy"] == 1
    outputs = torch.eye(4)[[0, 1, 1, 2]]
    right, _ = Cosine(outputs)(
        outputs[None, [1, 2, 0, 2]], torch.tensor([2, 1, 3, 0]), torch.zeros(4)
    )
    assert right.tolist() == [[True, True, False, False]]  # another's output is a mistake as before


def test_the_default_is_what_the_loader_and_the_model_allow():
    model, features = loud(), loud(num_classes=0)
    images = pictures(model)
    first = mhprobe.masking_curve(model, [images], units="layer")
    assert first == mhprobe.masking_curve(model, [images], units="layer", score="top1")
    third = mhprobe.masking_curve(features, [images], units="layer")
    assert (
        third == mhprobe.masking_curve(features, [images], units="layer", score="cosine")
        and third != first
    )
    # orders that take slopes take them of the model's own classes
    rows = mhprobe.masking_curve(model, [images], units="head", order="fisher", steps=2)
    own = [(images, model(images).argmax(1))]
    expected = mhprobe.masking_curve(model, own, units="head", order="fisher", steps=2)
    assert [row["masked"] for row in rows] == [row["masked"] for row in expected]


@pytest.mark.parametrize(("score", "classes"), [("top1", 5), ("kl", 5), ("cosine", 0)])
def test_heads_go_by_an_unlabelled_curve_and_the_smaller_model_agrees_as_the_curve_said(
    score, classes
):
    model = loud(num_classes=classes)
    images = pictures(model)
    rows = mhprobe.masking_curve(
        model, [images], units="head", order="keep_best", score=score, steps=3
    )
    assert (
        [int(mask.sum()) for mask in rows.masks]
        == [row["heads_masked"] for row in rows]
        == [0, 1, 2, 3]
    )
    small = mhprobe.prune_heads(model, rows.masks[-1])
    with torch.no_grad():
        accuracy, loss = judged(score, small(images), model(images), None)
    assert accuracy == pytest.approx(rows[-1]["accuracy"]) and loss == pytest.approx(
        rows[-1]["loss"], rel=1e-6
    )
    # negative control: three others leave another loss
    others = (~rows.masks[-1]).nonzero().flatten()[:3].tolist()
    with torch.no_grad():
        assert judged(score, mhprobe.prune_heads(model, others)(images), model(images), None)[
            1
        ] != pytest.approx(loss)


@pytest.mark.parametrize("values", ["closed", "fractional"])
@pytest.mark.parametrize(("score", "classes"), [("kl", 5), ("cosine", 0), ("knn", 0)])
def test_under_gates_that_are_not_one_the_model_as_it_is_is_what_masks_are_held_against(
    score, classes, values
):
    model = loud(tiny_swin, num_classes=classes)
    gates, images, labels = mhprobe.attach(model), pictures(model), labels_for(COUNT, num_classes=3)
    gates.values.data = torch.linspace(0.2, 1.5, gates.layout.num_heads, dtype=torch.float64)
    if values == "closed":
        gates.values.data[::4] = 0
    loader = [(images[:5], labels[:5]), (images[5:], labels[5:])]
    rows = mhprobe.masking_curve(model, loader, units="head", order="fisher", score=score, steps=3)
    with torch.no_grad():
        whole, small = model(images), mhprobe.prune_heads(model, rows.masks[-1])(images)
        accuracy, loss = judged(score, small, whole, labels)
        gates.values.data.fill_(1)
        opened = model(images)
    assert rows[-1]["accuracy"] == pytest.approx(accuracy) and rows[-1]["loss"] == pytest.approx(
        loss, rel=1e-6, abs=1e-9
    )
    assert rows[0]["loss"] == pytest.approx(judged(score, whole, whole, labels)[1], abs=1e-9)
    assert (
        opened - whole
    ).abs().max() > 1e-3  # negative control: it is another model with all gates at one


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"score": "labels"}, "score=labels: needs labels.* there is top1"),
        ({"score": "knn"}, "score=knn: needs labels"),
        (
            {"score": "mood"},
            r"score: expected one of cosine, difference, kl, knn, knn_train, labels, top1, got 'mood'",
        ),
        ({"score": int}, r"score: expected one of cosine, difference, .*, got <class 'int'>"),
        ({"fill": "optimal"}, "fill=optimal: it minimises the loss, so it needs labels"),
    ],
)
def test_what_cannot_be_had_without_labels_is_said(options, reason):
    model = loud()
    with pytest.raises(mhprobe.UserError, match=reason):
        mhprobe.masking_curve(model, [pictures(model)], units="layer", **options)


def test_neighbours_of_too_few_images_are_refused_with_what_to_do():
    features = loud(num_classes=0)
    loader = [(pictures(features)[:5], labels_for(5))]
    with pytest.raises(
        mhprobe.UserError, match=r"needs 6 images .* got 5\. Give more .* or take cosine"
    ):
        mhprobe.masking_curve(features, loader, units="layer", score="knn")


def test_neighbours_among_training_images_are_refused_where_there_are_none():
    features = loud(num_classes=0)
    loader = [(pictures(features), labels_for(COUNT))]
    with pytest.raises(
        mhprobe.UserError, match=r"score=knn_train: .* 21 training images, got 0\. .* take knn"
    ):
        mhprobe.masking_curve(features, loader, units="layer", score="knn_train")


def test_features_are_not_judged_as_logits_where_there_are_labels():
    features = loud(num_classes=0)
    loader = [(pictures(features), labels_for(COUNT))]
    rows = mhprobe.masking_curve(features, loader, units="head", order="fisher", steps=2)
    assert rows == mhprobe.masking_curve(
        features, loader, units="head", order="fisher", steps=2, score="cosine"
    )
    for score in ("labels", "top1", "kl"):
        with pytest.raises(
            mhprobe.UserError,
            match=f"score={score}: the model gives features.*one of cosine, difference, knn",
        ):
            mhprobe.masking_curve(features, loader, units="head", score=score)


def test_a_loader_without_labels_that_shuffles_is_seen():
    model = loud()
    images = pictures(model)

    class Shuffled:
        walks = 0

        def __iter__(self):
            self.walks += 1
            yield images.roll(self.walks, 0)

    with pytest.raises(mhprobe.UserError, match=r"the same order.*shuffle=False"):
        mhprobe.masking_curve(model, Shuffled(), units="layer")


FORMS = {
    "tuples of more": lambda images, labels: (images, labels, ["a.png"] * len(images)),
    "a dict": lambda images, labels: {"image": images, "label": labels, "path": "x"},
    "Hugging Face's": lambda images, labels: {"pixel_values": images, "labels": labels},
    "Hugging Face's iter": lambda images, labels: {"image": list(images), "label": labels.tolist()},
    "with the pictures they were made of": lambda images, labels: {
        "image": ["a picture"] * len(images),
        "pixel_values": images,
        "label": labels,
    },
    "WebDataset's": lambda images, labels: {
        "jpg": images,
        "cls": labels,
        "__key__": ["0"] * len(images),
    },
    "WebDataset's lists": lambda images, labels: {
        "__key__": ["0"] * len(images),
        "jpg": list(images.numpy()),
        "cls": labels.tolist(),
    },
    "WebDataset's tuples": lambda images, labels: [images, labels.numpy()],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_batches_of_common_forms_are_understood(form):
    model = loud()
    images, labels = pictures(model), labels_for(COUNT)
    plain = mhprobe.measure(model, [(images, labels)], [mhprobe.measures.GateImportance])[
        "gate_importance"
    ]
    found = mhprobe.measure(model, [form(images, labels)], [mhprobe.measures.GateImportance])[
        "gate_importance"
    ]
    assert torch.equal(found, plain)


@pytest.mark.filterwarnings("ignore")  # what the library warns of itself
def test_shards_of_web_dataset_are_walked_as_they_are(tmp_path):
    wds = pytest.importorskip("webdataset")
    model, images, labels = loud(), pictures(loud()), labels_for(COUNT)
    with wds.TarWriter(str(tmp_path / "shard.tar")) as shard:
        for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
            shard.write({"__key__": f"{number:03d}", "npy": image.numpy(), "cls": label})
    plain = mhprobe.measure(model, [(images, labels)], [mhprobe.measures.GateImportance])[
        "gate_importance"
    ]
    shards = wds.WebDataset(str(tmp_path / "shard.tar"), shardshuffle=False).decode()
    for loader in (shards.to_tuple("npy", "cls").batched(5), shards.rename(jpg="npy").batched(5)):
        found = mhprobe.measure(model, loader, [mhprobe.measures.GateImportance])["gate_importance"]
        torch.testing.assert_close(
            found, plain, rtol=1e-9, atol=0
        )  # the same numbers in other batches


@pytest.mark.filterwarnings("ignore")  # what the library warns of itself
def test_hugging_face_s_data_sets_are_walked_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    datasets = pytest.importorskip("datasets")
    model, images, labels = loud().float(), pictures(loud()).float(), labels_for(COUNT)
    plain = mhprobe.measure(model, [(images, labels)], [mhprobe.measures.GateImportance])[
        "gate_importance"
    ]
    held = datasets.Dataset.from_dict({"pixel_values": images.numpy(), "label": labels.tolist()})
    typed = datasets.Features(
        {**held.features, "pixel_values": datasets.Array3D(images.shape[1:], "float32")}
    )
    held = held.cast(typed)
    torch_s, numpy_s, streamed = (
        held.with_format("torch"),
        held.with_format("numpy"),
        held.to_iterable_dataset(),
    )
    loaders = {
        "DataLoader": DataLoader(torch_s, batch_size=5),
        "DataLoader of arrays": DataLoader(numpy_s, batch_size=5),
        "iter": torch_s.iter(batch_size=5),
        "batch": torch_s.batch(5),
        "streamed": DataLoader(streamed.with_format("torch"), batch_size=5),
    }
    for form, loader in loaders.items():
        found = mhprobe.measure(model, loader, [mhprobe.measures.GateImportance])["gate_importance"]
        torch.testing.assert_close(
            found, plain, rtol=1e-4, atol=0, msg=form
        )  # the same numbers in other batches
    with pytest.raises(mhprobe.UserError, match="One image at a time"):
        mhprobe.measure(model, torch_s, [mhprobe.measures.GateImportance])


def test_a_loader_that_does_not_know_its_length_and_channels_at_the_end():
    model = loud()

    class Streamed(IterableDataset):
        def __iter__(self):
            return iter(pictures(model))

    streamed = DataLoader(Streamed(), batch_size=5)
    with pytest.raises(TypeError):
        len(streamed)
    assert len(mhprobe.masking_curve(model, streamed, units="layer")) == 3
    assert (
        mhprobe.measure(model, streamed, [mhprobe.measures.GateImportance])["gate_importance"]
        .isfinite()
        .all()
    )
    with pytest.raises(
        mhprobe.UserError, match=r"channels come last; give images\.permute\(0, 3, 1, 2\)"
    ):
        mhprobe.measure(
            model, [pictures(model).permute(0, 2, 3, 1)], [mhprobe.measures.GateImportance]
        )


@pytest.mark.parametrize("labelled", [True, False])
def test_a_stream_that_can_be_read_once_loses_no_batch(labelled):
    """Its first batch was taken to see whether there are labels."""
    model = loud()
    images, labels = pictures(model), labels_for(COUNT)
    items = list(zip(images, labels.tolist(), strict=True)) if labelled else list(images)

    class Once(IterableDataset):
        def __init__(self):
            self.items = iter(items)

        def __iter__(self):
            return self.items

    whole = [(images, labels)] if labelled else [images]
    expected = mhprobe.measure(model, whole, [mhprobe.measures.GateImportance])["gate_importance"]
    for stream in (DataLoader(Once(), batch_size=4), iter(DataLoader(Once(), batch_size=4))):
        got = mhprobe.measure(model, stream, [mhprobe.measures.GateImportance])["gate_importance"]
        assert int(got.columns["images"]) == COUNT and got.label == expected.label
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
    if labelled:  # one that reads images twice, and one that has others to choose on
        chooses = [mhprobe.measures.Interaction]
        with pytest.raises(
            mhprobe.UserError, match=r"expected at least one image, got none\. A generator"
        ):
            mhprobe.measure(model, DataLoader(Once(), batch_size=4), chooses)
        got = mhprobe.measure(
            model, DataLoader(Once(), batch_size=4), chooses, select_loader=whole
        )["interaction"]
        assert int(got.columns["images"]) == COUNT


def test_batches_of_any_form_are_taken_apart_by_a_function():
    model = loud()
    images, labels = pictures(model), labels_for(COUNT)
    plain = mhprobe.measure(model, [(images, labels)], [mhprobe.measures.GateImportance])[
        "gate_importance"
    ]
    odd = [{"left": {"photo": images}, "right": labels}]
    with pytest.raises(
        mhprobe.UserError, match=r"got a dict with 'left' .*'right'.*batch=lambda item"
    ):
        mhprobe.measure(model, odd, [mhprobe.measures.GateImportance])
    split = lambda item: (item["left"]["photo"], item["right"])  # noqa: E731
    found = mhprobe.measure(model, odd, [mhprobe.measures.GateImportance], batch=split)[
        "gate_importance"
    ]
    assert torch.equal(found, plain)
    assert mhprobe.masking_curve(model, odd, units="layer", batch=split)


IMPORTANCE = [mhprobe.measures.GateImportance]


@pytest.mark.parametrize("key", ["fine_label", "class", "lbl", "gt", "category_id"])
@pytest.mark.parametrize("held", ["tensor", "column", "list", "narrow"])
def test_labels_under_another_key_are_asked_for_and_named_by_label(key, held):
    model = loud()
    images, labels = pictures(model), labels_for(COUNT)
    forms = {
        "tensor": labels,
        "column": labels[:, None],
        "list": labels.tolist(),
        "narrow": labels.short(),
    }
    item = {"img": images, "path": ["a.png"] * COUNT, key: forms[held]}
    with pytest.raises(
        mhprobe.UserError, match=rf"under '{key}'.*give label='{key}'.*item\['img'\]"
    ):
        mhprobe.measure(model, [item], IMPORTANCE)
    with pytest.raises(mhprobe.UserError, match=rf"give label='{key}'"):
        mhprobe.masking_curve(model, [item], units="layer")
    if held in ("tensor", "list"):
        plain = mhprobe.measure(model, [(images, labels)], IMPORTANCE)["gate_importance"]
        found = mhprobe.measure(model, [item], IMPORTANCE, label=key)["gate_importance"]
        assert torch.equal(found, plain) and found.label == plain.label
        curve = mhprobe.masking_curve(model, [item], units="layer", label=key)
        right = mhprobe.masking_curve(model, [(images, labels)], units="layer")
        assert [row["accuracy"] for row in curve] == [row["accuracy"] for row in right]


def test_a_dict_that_has_labels_or_nothing_like_them_is_taken_without_a_word():
    model = loud()
    images, labels = pictures(model), labels_for(COUNT)
    with_other_numbers = {"image": images, "label": labels, "coarse_label": labels // 2}
    assert mhprobe.measure(model, [with_other_numbers], IMPORTANCE)
    boxes, shares = torch.zeros(COUNT, 4), torch.rand(COUNT)
    nothing_like_them = {"image": images, "path": ["x"] * COUNT, "box": boxes, "share": shares}
    assert mhprobe.measure(model, [nothing_like_them], IMPORTANCE)


def test_a_key_of_labels_that_is_not_there_or_has_no_use_is_refused():
    model = loud()
    images, labels = pictures(model), labels_for(COUNT)
    item = {"image": images, "fine": labels}
    with pytest.raises(
        mhprobe.UserError, match=r"expected dicts with 'fin', got a dict with 'image'"
    ):
        mhprobe.measure(model, [item], IMPORTANCE, label="fin")
    with pytest.raises(mhprobe.UserError, match=r"expected dicts with 'fine', got a tuple of 2"):
        mhprobe.measure(model, [(images, labels)], IMPORTANCE, label="fine")
    with pytest.raises(mhprobe.UserError, match=r"label: batch= already says"):
        split = lambda item: (item["image"], item["fine"])  # noqa: E731
        mhprobe.measure(model, [item], IMPORTANCE, batch=split, label="fine")
    with pytest.raises(mhprobe.UserError, match=r"masking_curve: label: expected the key"):
        mhprobe.masking_curve(model, [item], label=3)


LABELS = {  # of 4 images and 5 classes: what the line calls them, and what it says would do
    "multi-hot": (torch.eye(5)[:4] + torch.eye(5)[4], "multi-hot", r"\(item\[.*\], None\)"),
    "one-hot": (torch.eye(5)[:4], "one-hot", r"\.argmax\(1\)\)"),
    "one-hot of whole numbers": (torch.eye(5)[:4].long(), "one-hot", r"\.argmax\(1\)\)"),
    "a column": (torch.arange(4)[:, None], "a column", r"\.squeeze\(1\)\)"),
    "a narrow column": (torch.arange(4)[:, None].byte(), "a column", r"\.squeeze\(1\)\.long\(\)\)"),
    "soft": (torch.full((4, 5), 0.2), "soft", r"\.argmax\(1\)\)"),
    "segmentation": (torch.zeros(4, 8, 8).long(), "a class per pixel", r", None\)"),
    "boxes": (torch.full((4, 4), 7.5), "none of a class", r", None\)"),
}


@pytest.mark.parametrize(("labels", "called", "then"), LABELS.values(), ids=LABELS.keys())
def test_labels_of_another_form_are_called_what_they_are(labels, called, then):
    model = loud()
    images = pictures(model, 4)
    for item in ((images, labels), {"image": images, "label": labels}):
        with pytest.raises(mhprobe.UserError, match=rf"labels: expected \(4,\).*{called}.*{then}"):
            mhprobe.measure(model, [item], IMPORTANCE)
    split = lambda item: item  # noqa: E731
    with pytest.raises(mhprobe.UserError, match=rf"record: labels: expected \(4,\).*{called}"):
        mhprobe.measure(model, [(images, labels)], IMPORTANCE, batch=split)


@pytest.mark.parametrize("kind", [torch.float32, torch.int32, torch.uint8])
def test_classes_of_another_type_come_with_the_call_that_converts_them(kind):
    model = loud()
    images, labels = pictures(model, 4), labels_for(4).to(kind)
    with pytest.raises(mhprobe.UserError, match=r"which is classes as .*; give labels\.long\(\)"):
        mhprobe.measure(model, [(images, labels)], IMPORTANCE)
