"""Two networks, head by head: what was planted is found where it is, and nothing is found where nothing is."""

from __future__ import annotations

import base64
import copy
import gc
import html
import json
import math
import re
import shlex
import weakref
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

import mhprobe
import real_heads
from mhprobe import differing
from mhprobe.differences.compare import FACTOR, RATE
from mhprobe.differences.passes import run, units_of
from mhprobe.differences.sides import Torch
from mhprobe.pages.diffing.changes import FOLDS, LEAST
from mhprobe.pages.diffing.opened import Pictures, guessed_null
from mhprobe.report.ledger import Ledger
from mhprobe.stats.intervals import p_of_interval
from mhprobe.stats.significance import holm, t_interval
from models import (
    TWINS,
    images_for,
    make_loud,
    tiny_deit,
    tiny_registers,
    tiny_vit,
    tuned_vits,
)

IMAGES = 4
FAMILIES = ["vit", "deit", "vit_registers", "swin", "swinv2", "eva", "beit", "hf_vit", "hf_dinov2"]


def loud(name: str = "vit") -> nn.Module:
    model = tiny_deit() if name == "deit" else TWINS[name]()
    make_loud(model, 0.2)
    return model


def compared(a, b, **options):
    images = images_for(a, IMAGES)
    return mhprobe.diff(a, b, images, show_progress=False, **options)


def column(found, name):
    return found.heads.column(name)


def disturb(model, site: int, head: int, part: str, size: float = 0.3) -> None:
    """Multiply a head's values, or its columns of W_O, in place."""
    attention = model.blocks[site].attn
    width = attention.proj.in_features // attention.num_heads
    rows = slice(head * width, (head + 1) * width)
    with torch.no_grad():
        if part == "V":
            for tensor in (attention.qkv.weight, attention.qkv.bias):
                tensor[2 * attention.proj.in_features :][rows] *= 1 + size
        else:
            attention.proj.weight[:, rows] *= 1 + size


@pytest.mark.parametrize("part", ["V", "O"])
def test_a_disturbed_head_is_flagged_alone_and_its_block_is_named(part):
    before = loud()
    after = copy.deepcopy(before)
    disturb(after, 1, 2, part)
    found = compared(before, after)
    assert column(found, "flagged") == [0, 0, 0, 0, 0, 1]
    assert found.metrics["diff/first_block"] == 1
    assert "Block 1 is the first that computes differently: head 2, own error 30 %" in str(found)
    value = column(found, "value")
    assert value[5] == pytest.approx(0.3, abs=1e-5) and max(value[:5]) == 0


def test_importance_and_ablation_of_both_networks_are_those_of_each_alone():
    """Head 1 of block 0 writes nothing in B, so nobody misses it there."""
    before = loud()
    after = copy.deepcopy(before)
    disturb(after, 0, 1, "O", -1)
    labels = torch.tensor([0, 1, 2, 0])
    images = images_for(before, IMAGES)
    found = mhprobe.diff(before, after, images, labels, ablation=True, show_progress=False)
    for side, model in (("before", before), ("after", after)):
        wanted = [mhprobe.measures.GateImportance, mhprobe.measures.AblationDelta]
        alone = mhprobe.measure(model, [(images, labels)], wanted)
        assert column(found, f"importance_{side}") == pytest.approx(
            alone["gate_importance"].tolist(), abs=1e-6
        )
        missed = alone["ablation_delta"]
        for ending, values in {
            "": missed,
            **{f"_{end}": missed.columns[end] for end in ("low", "high")},
        }.items():
            assert column(found, f"ablation_{side}{ending}") == pytest.approx(
                values.tolist(), abs=1e-6
            )
    assert column(found, "ablation_after")[1] == pytest.approx(0, abs=1e-6)
    assert abs(column(found, "ablation_before")[1]) > 1e-3


def test_without_labels_ablation_is_of_the_classes_that_the_first_network_gives():
    before = loud()
    after = copy.deepcopy(before)
    disturb(after, 0, 1, "O")
    images = images_for(before, IMAGES)
    classes = before(images).argmax(1)
    given = mhprobe.diff(before, after, images, classes, ablation=True, show_progress=False)
    alone = compared(before, after, ablation=True)
    for side in ("before", "after"):
        assert column(alone, f"ablation_{side}") == column(given, f"ablation_{side}")
    assert "ablation_before" not in compared(before, after).heads.columns


def test_ablation_without_a_classifier_is_refused():
    with pytest.raises(mhprobe.UserError, match="no classifier, so there is no loss"):
        compared(tiny_vit(num_classes=0), tiny_vit(num_classes=0), ablation=True)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_change_is_found_in_its_block_alone_in_every_family(name):
    before = loud(name)
    after = copy.deepcopy(before)
    layout = mhprobe.attach(after).layout
    site = layout.sites[1]
    with torch.no_grad():
        weight = next(p for p in after.get_submodule(site.name).parameters() if p.dim() == 2)
        weight *= 1.2
    found = compared(before, after)
    assert found.metrics["diff/first_block"] == 1
    flagged = {
        site
        for site, one in zip(column(found, "block"), column(found, "flagged"), strict=True)
        if one
    }
    assert flagged == {1}


def test_no_change_flags_nothing():
    before = loud("swin")
    found = compared(before, copy.deepcopy(before))
    assert sum(column(found, "flagged")) == 0 and found.metrics["diff/first_block"] is None
    assert "No block computes differently" in str(found)


def test_errors_of_later_blocks_are_inherited_and_not_their_own():
    before = loud("swin")
    after = copy.deepcopy(before)
    with torch.no_grad():
        after.layers[0].blocks[1].mlp.fc1.weight *= 1.5
    found = compared(before, after)
    rows = {row["block"]: row for row in found.blocks.dicts() if row["part"].startswith("layers")}
    assert rows[1]["value"] > 0.01 and rows[1]["neurons"] > 0.01 and rows[1]["heads"] == 0
    for number in (2, 3):
        assert rows[number]["value"] < 1e-6 < 1e-4 < rows[number]["inherited"]
    assert rows[0]["total"] == 0
    assert sum(column(found, "flagged")) == 0  # no head: the MLP alone


def test_what_a_block_alone_explains_adds_up_to_all_where_it_is_the_only_one():
    before = loud()
    after = copy.deepcopy(before)
    disturb(after, 0, 1, "V", 0.05)
    sentence = next(line for line in compared(before, after).sentences if "alone moves" in line)
    whole, every, part = (float(word) for word in _numbers(sentence))
    assert whole == pytest.approx(every, rel=0.1) and part == pytest.approx(whole, rel=0.1)


def _numbers(sentence: str) -> list[str]:
    return [
        word
        for word, unit in zip(sentence.split(), sentence.split()[1:], strict=False)
        if unit[0] == "%"
    ]


def test_pruned_networks_are_compared_by_the_heads_that_are_left():
    before = loud("vit_registers")
    after = mhprobe.prune_heads(copy.deepcopy(before), [1, 3])
    found = compared(before, after)
    value = column(found, "value")
    assert [number for number, one in enumerate(value) if one != one] == [1, 3]
    assert sum(column(found, "flagged")) == 0  # those that are left compute the same
    rows = {row["block"]: row for row in found.blocks.dicts()}
    assert rows[0]["heads"] > 1e-3 and rows[0]["projection"] < 1e-5
    assert "2 heads of 2 blocks are gone" in str(found)
    assert found.sentences[0].startswith(
        "Block 0 is the first that computes differently: 1 of its 3 heads is gone, own error "
    )
    assert "None of 4 heads that are left computes differently" in str(found)
    data = data_of(found)
    assert data["columns"][0]["name"] == "total"  # own errors are all 0
    assert [head["gone"] for head in data["heads"]] == [False, True, False, True, False, False]
    with pytest.raises(mhprobe.UserError, match=r"has heads of blocks\.0\.attn that"):
        compared(after, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_correct_copy_in_half_precision_flags_nothing(dtype):
    before = loud()
    found = compared(before, copy.deepcopy(before).to(dtype))
    assert sum(column(found, "flagged")) == 0 and found.metrics["diff/first_block"] is None
    assert max(column(found, "value")) > 1e-4  # the control: they do differ


def test_a_disturbed_head_of_a_copy_in_half_precision_is_held_against_what_the_cast_gives():
    """Not against the precision's epsilon, which is twice the error of any rounding."""
    before = loud()
    after = copy.deepcopy(before)
    disturb(after, 1, 2, "V", 0.025)
    found = compared(before, after.to(torch.bfloat16))
    assert column(found, "flagged") == [0, 0, 0, 0, 0, 1]


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore:.*quantiz.*")
def test_dynamically_quantised_layers_are_found_to_compute_differently():
    before = loud()
    after = torch.ao.quantization.quantize_dynamic(copy.deepcopy(before), {nn.Linear}, torch.qint8)
    found = compared(before, after, tolerance={"block": 0.5})
    assert sum(column(found, "flagged")) == 6 and not found.outside
    assert compared(before, after, tolerance=1e-6).outside


def test_trainings_are_held_against_another_photograph():
    before, after = tiny_vit(), tiny_vit(seed=1)
    make_loud(before, 0.2)
    torch.manual_seed(7)
    with torch.no_grad():
        after.load_state_dict(
            {k: v + 1e-4 * torch.randn_like(v) for k, v in before.state_dict().items()}
        )
    little = compared(before, after)
    assert "two trainings" in little.notes[-1] and sum(column(little, "flagged")) == 0
    with torch.no_grad():
        after.load_state_dict(
            {
                k: 2 * torch.randn_like(v) * v.std() if v.dim() > 1 else v
                for k, v in before.state_dict().items()
            }
        )
    assert sum(column(compared(before, after), "flagged")) > 3
    other = tiny_vit(seed=2)
    make_loud(other, 0.3)
    assert sum(column(compared(before, little_like(before), null=other), "flagged")) == 0


def little_like(model):
    after = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in after.parameters():
            parameter += 1e-3 * parameter.abs().mean()
    return after


@pytest.mark.parametrize("size", [1, 2, 3, 8, 32])
def test_no_image_is_left_alone_in_a_batch_where_another_is_the_null(size):
    """Beside itself an image does not differ, so every change of its head would be called more than nothing."""
    for count in range(4, 40):
        read = Pictures(torch.arange(count).float(), torch.arange(count), [], [])
        batches = list(read.batches({}, {})(size))
        lengths = [len(batch.ours) for batch in batches]
        assert torch.cat([batch.labels for batch in batches]).equal(torch.arange(count))
        assert torch.cat([batch.ours for batch in batches]).equal(read.pixels)
        assert max(lengths) <= max(size, 3 if size == 2 else 0)
        assert min(lengths) >= min(size, 2)


def test_a_backbone_and_what_it_was_tuned_to_are_compared_by_their_features():
    before = tiny_vit(num_classes=0)
    after = tiny_vit()
    make_loud(after, 0.2)
    found = compared(before, after)
    assert "The classifier of vit_tiny_patch16_224 is left out" in " ".join(found.notes)
    assert "At the end the features differ" in str(found) and hasattr(after.head, "weight")
    assert re.match(r"(\d heads?|No head) of 6 changed by more than", found.sentences[0])


# real cases: what exports and rewrites have broken, each on a tiny network


def test_softmax_that_overflows_in_half_precision_is_named():
    before = loud()
    with torch.no_grad():
        before.blocks[1].attn.qkv.weight[:48] *= 60
    after = copy.deepcopy(before)

    class Overflowing(nn.Module):
        def forward(
            self, x, **_
        ):  # softmax without its maximum taken off, as in a half precision kernel
            q, k, v = attention.qkv(x).reshape(*x.shape[:2], 3, 3, 8).permute(2, 0, 3, 1, 4)
            raised = (q @ k.mT * 8**-0.5).half().exp()
            weights = attention.attn_drop((raised / raised.sum(-1, keepdim=True)).float())
            return attention.proj((weights @ v).transpose(1, 2).flatten(2))

    attention = after.blocks[1].attn
    attention.fused_attn = False
    attention.forward = Overflowing().forward
    found = compared(before, after)
    assert found.metrics["diff/first_block"] == 1 and "no number" in found.sentences[0]
    assert sum(column(found, "flagged")) > 0


def test_another_epsilon_of_layer_norms_is_named():
    before = tiny_vit()  # small streams, where an epsilon counts
    after = copy.deepcopy(before)
    after.blocks[1].norm1.eps = 1e-3
    assert compared(before, after).metrics["diff/first_block"] == 1


def test_the_other_gelu_is_named_with_its_neurons():
    before = loud()
    after = copy.deepcopy(before)
    after.blocks[0].mlp.act = nn.GELU(approximate="tanh")
    found = compared(before, after)
    assert "Block 0 is the first that computes differently: its neurons" in str(found)


def test_positions_resampled_otherwise_are_named_as_the_embedding():
    from timm.layers import resample_abs_pos_embed

    before = tiny_vit(img_size=32)
    after, small = copy.deepcopy(before), tiny_vit(img_size=24)
    nn.init.normal_(before.pos_embed)
    with torch.no_grad():
        for model, antialias in ((small, True), (after, False)):
            resampled = resample_abs_pos_embed(before.pos_embed, (6, 6), antialias=antialias)
            if model is small:
                whole = resampled
        same = {k: v for k, v in before.state_dict().items() if k != "pos_embed"}
        small.load_state_dict({**same, "pos_embed": whole})
        other = copy.deepcopy(small)
        other.pos_embed.copy_(resampled)
    found = compared(small, other)
    assert (
        found.sentences[0].startswith("The embedding is the first part")
        and found.metrics["diff/first_block"] is None
    )


def test_swapped_mean_and_deviation_are_named_as_other_images():
    before = loud()
    after = copy.deepcopy(before)
    before.pretrained_cfg = {
        **before.pretrained_cfg,
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.3, 0.2),
    }
    after.pretrained_cfg = {
        **before.pretrained_cfg,
        "mean": (0.2, 0.3, 0.2),
        "std": (0.4, 0.5, 0.6),
    }
    images = torch.randint(0, 256, (IMAGES, 3, 16, 16), dtype=torch.uint8)
    found = mhprobe.diff(before, after, images, show_progress=False)
    assert "means and deviations of pixels differ" in found.sentences[0]


def test_a_bias_that_was_dropped_with_a_pruned_head_is_named_as_the_projection():
    before = loud()
    right = mhprobe.prune_heads(copy.deepcopy(before), [4])
    wrong = copy.deepcopy(right)
    with torch.no_grad():
        wrong.blocks[1].attn.proj.bias.zero_()
    found = compared(right, wrong)
    assert "Block 1 is the first that computes differently: its attention's projection" in str(
        found
    )
    assert sum(column(found, "flagged")) == 0


def test_queries_keys_and_values_in_another_order_are_named():
    before = loud()
    after = copy.deepcopy(before)
    attention = after.blocks[1].attn
    with torch.no_grad():
        for tensor in (attention.qkv.weight, attention.qkv.bias):
            q, k, v = tensor.clone().chunk(3)
            tensor.copy_(torch.cat([k, q, v]))
    found = compared(before, after)
    assert found.metrics["diff/first_block"] == 1 and column(found, "flagged") == [0, 0, 0, 1, 1, 1]
    assert min(column(found, "attention_own")[3:]) > 1e-6  # they look elsewhere


def test_an_exchanged_class_token_and_register_are_named_as_the_embedding():
    before = tiny_registers()
    make_loud(before, 0.2)
    after = copy.deepcopy(before)
    with torch.no_grad():
        cls, register = before.cls_token.clone(), before.reg_token[:, :1].clone()
        after.cls_token.copy_(register)
        after.reg_token[:, :1].copy_(cls)
    assert compared(before, after).sentences[0].startswith("The embedding is the first part")


def test_files_follow_the_ledger_and_hold_the_sentences(tmp_path):
    before = loud()
    after = copy.deepcopy(before)
    disturb(after, 0, 0, "V")
    found = compared(before, after)
    found.save(tmp_path)
    book = Ledger.model_validate_json((tmp_path / "diff.json").read_bytes())
    tables = {"diff_heads", "diff_blocks", "diff_neurons", "diff_photographs"}
    assert {"diff", *tables} == set(book.results)
    assert book.results["diff"].about == " ".join(found.sentences)
    assert all((tmp_path / entry.table).exists() for entry in book.results.values() if entry.table)
    assert book.results["diff_heads"].chance == "null" and FACTOR > 1
    inputs = json.loads((tmp_path / "inputs.json").read_text())
    assert len(inputs) == 2  # both networks, whose names are the same
    for network in inputs:
        (read,) = [one for one in network["inputs"] if one["what"] == "mean and std"]
        assert read["taken"] in html.unescape((tmp_path / "diff.html").read_text())


def test_the_network_is_as_it_was_afterwards():
    before = loud().train()
    weights = {key: value.clone() for key, value in before.state_dict().items()}
    storages = [parameter.data_ptr() for parameter in before.parameters()]
    compared(before, copy.deepcopy(before))
    assert before.training and storages == [
        parameter.data_ptr() for parameter in before.parameters()
    ]
    assert all(
        torch.equal(value, weights[key])
        for key, value in before.state_dict().items()
        if key in weights
    )


def test_the_page_shows_blocks_and_heads_and_fetches_nothing(tmp_path):
    before = loud("vit_registers")
    after = mhprobe.prune_heads(copy.deepcopy(before), [1])
    with torch.no_grad():
        after.blocks[1].mlp.fc1.weight.mul_(1.2)
    found = compared(before, after)
    page = found.save(tmp_path).read_text()
    assert "default-src 'none'" in page and page.count('role="cell"') == 2 * 4
    assert all(
        sentence.replace(" %", "\xa0%") in html.unescape(page) for sentence in found.sentences
    )
    data = json.loads(re.search(r'<script [^>]*id="data"[^>]*>(.*?)</script>', page, re.S)[1])
    assert len(data["heads"]) == 6 and len(data["maps"]) == len(data["photos"]) == 3
    gone, there = data["maps"][0][1], data["maps"][0][0]
    assert gone["looks"][0] and gone["looks"][1] is None and all(there["looks"])
    assert len(base64.b64decode(there["gives"][1]["values"])) == 16
    assert "<iframe" in found._repr_html_()


def test_networks_of_one_name_are_told_apart_by_their_place(tmp_path):
    model = loud()
    title = re.search("<h1>(.*)</h1>", compared(model, copy.deepcopy(model)).page())[1]
    first, second = title.split(" and ")
    assert first.endswith("(first)") and second.endswith("(second)")


def data_of(found) -> dict:
    return json.loads(
        re.search(r'<script [^>]*id="data"[^>]*>(.*?)</script>', found.page(), re.S)[1]
    )


def test_the_page_colours_heads_by_what_they_are_tested_by():
    """Of trainings the whole change, as the first sentence does; of copies what a head does of its own."""
    before, after = loud(), loud()
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in after.parameters():
            weight.add_(torch.randn_like(weight))
    found = compared(before, after)
    column_of = data_of(found)["columns"][0]
    assert column_of["name"] == "total" and column_of["share"]
    worst = max(
        range(6), key=lambda at: found.heads.column("flagged")[at] * column_of["values"][at]
    )
    head = found.heads.dicts()[worst]
    assert f"block {head['block']} head {head['number']} most" in found.sentences[0]
    assert data_of(compared(before, copy.deepcopy(before)))["columns"][0]["name"] == "own"


@pytest.mark.parametrize("undone", [True, False])
def test_a_block_that_others_make_up_for_is_not_called_a_part_of_the_whole(undone):
    before = loud()
    after = copy.deepcopy(before)
    moved = 1.5 * torch.randn(24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        after.blocks[0].mlp.fc2.bias.add_(moved)
        if undone:
            after.blocks[1].mlp.fc2.bias.sub_(moved)
    alone = compared(before, after).sentences[1]
    assert alone.startswith("Block 0 alone")
    assert ("more than all differences together" in alone) == undone


def test_accuracy_that_a_block_leaves_alone_is_not_explained_by_it():
    """The whole loses a class of three images; no rounding of a share of three is called an explanation."""
    before = loud()
    after = copy.deepcopy(before)
    disturb(after, 0, 1, "V", 1e-3)
    with torch.no_grad():
        after.head.bias.sub_(10 * torch.eye(5)[int(before(images_for(before, 1)).argmax())])
    images = images_for(before, 7)
    labels = before(images).argmax(1)
    found = mhprobe.diff(before, after, images, labels, show_progress=False)
    assert found.metrics["diff/accuracy_after"] < found.metrics["diff/accuracy_before"] == 1
    assert not [line for line in found.sentences if "points of accuracy;" in line]


def test_the_examples_of_the_docs_are_of_the_command_and_of_the_function(tmp_path, monkeypatch):
    """The blocks <!-- command --> and <!-- diff --> of diff.md."""
    docs = Path(__file__).parents[3] / "docs"
    texts = [(docs / name).read_text() for name in ("diff.md", "before_after.md")]
    text = texts[0]
    commands = re.findall(r"<!-- command -->\n```bash\n(.*?)```", "".join(texts), re.S)
    assert len(commands) == 5
    for line in re.sub(r"<[^>]*>", "given", "".join(commands)).splitlines():
        words = shlex.split(line, comments=True)
        assert words[:2] == ["mhprobe", "diff"] and differing._parsed(words[2:]).photos
    (block,) = re.findall(r"<!-- diff -->\n```python\n(.*?)```", text, re.S)
    monkeypatch.chdir(tmp_path)
    before = loud()
    given = {"mhprobe": mhprobe, "before": before, "after": copy.deepcopy(before)}
    exec(block, {**given, "images": images_for(before, IMAGES)})
    assert (tmp_path / "diff" / "diff.html").exists()


@pytest.mark.parametrize(
    ("make", "options", "expected"),
    [
        (lambda: (loud(), loud("swin")), {}, "are two architectures"),
        (lambda: (loud(), tiny_vit(depth=3)), {}, "are two architectures: 2 and 3 blocks"),
        (lambda: (loud(), tiny_vit(num_heads=2)), {}, "3 heads in one and 2 in the other"),
        (lambda: (loud(), tiny_vit(num_classes=4)), {}, "gives 5 numbers per image and .* 4"),
        (
            lambda: (loud(), tiny_vit(img_size=24)),
            {},
            "takes images of 16 x 16 pixels and .* 24 x 24",
        ),
        (lambda: (loud(), loud()), {"tolerance": {"accuracy": 0.01}}, "accuracy needs labels"),
        (lambda: (loud(), loud()), {"tolerance": {"acuracy": 0.01}}, "did you mean accuracy"),
        (lambda: (loud(), loud()), {"tolerance": -1}, "at least 0"),
        (lambda: (loud(), loud()), {"null": "nothing"}, "null is one of"),
        (lambda: (loud(), 3), {}, "expected a network or its name"),
        (lambda: (TWINS["bert"](), TWINS["bert"]()), {}, "which takes text"),
    ],
)
def test_what_cannot_be_compared_is_one_line(make, options, expected):
    images = torch.randn(IMAGES, 3, 16, 16)
    with pytest.raises(mhprobe.UserError, match=expected) as error:
        mhprobe.diff(*make(), images, show_progress=False, **options)
    assert "\n" not in str(error.value)


def test_few_images_are_refused():
    model = loud()
    with pytest.raises(mhprobe.UserError, match="at least 4 photographs, got 3"):
        mhprobe.diff(model, model, images_for(model, 3))
    with pytest.raises(mhprobe.UserError, match="expected a folder, or a tensor"):
        mhprobe.diff(model, model, [1, 2])


def test_a_pass_is_let_go_of_as_soon_as_nobody_holds_it():
    """Without waiting for Python's collector of cycles, which counts objects and not their bytes."""
    model = loud()
    layout, _ = units_of(model)
    images = images_for(model, 2)
    gc.collect()
    gc.disable()
    try:
        first = run(model, layout, images)
        fed = run(model, layout, images, fed=first)
        of_pass = [weakref.ref(rows) for one in (first, fed) for rows in (*one.heads, *one.neurons)]
        streams = [weakref.ref(stream.after) for one in (first, fed) for stream in one.streams]
        assert all(held() is not None for held in of_pass + streams)
        del first, fed
        assert not [held for held in of_pass + streams if held() is not None]
    finally:
        gc.enable()


def test_a_limit_below_what_tests_need_is_called_the_limit_and_not_the_folder(tmp_path):
    model = loud()
    with pytest.raises(mhprobe.UserError, match=r"diff: limit: expected at least 4 .* got 3"):
        mhprobe.diff(model, model, tmp_path, limit=3)


@pytest.mark.parametrize(("channels", "given"), [(1, 1), (1, 3), (2, 2), (13, 13)])
def test_images_of_any_channels_are_compared_and_colours_turn_grey_for_one(channels, given):
    torch.manual_seed(0)
    before = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=12,
        depth=2,
        num_heads=3,
        in_chans=channels,
        num_classes=5,
    ).eval()
    after = copy.deepcopy(before)
    disturb(after, 1, 2, "V")
    pixels = torch.randint(0, 256, (IMAGES, given, 32, 32), dtype=torch.uint8)
    found = mhprobe.diff(before, after, pixels, show_progress=False)
    assert [row["head"] for row in found.heads.dicts() if row["flagged"]] == [5]
    assert "data:image/jpeg" in found.page()


def test_images_of_other_channels_than_the_networks_take_are_one_line():
    pixels = torch.zeros(IMAGES, 4, 32, 32, dtype=torch.uint8)
    with pytest.raises(mhprobe.UserError, match=r"expected .* a tensor \(N, 3, height, width\)"):
        mhprobe.diff(tiny_vit(), tiny_vit(), pixels, show_progress=False)


@pytest.mark.parametrize("channels", [1, 4])
def test_networks_of_other_channels_are_said_not_to_fit_whatever_the_images_are(channels):
    def made(count):
        return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, in_chans=count)

    pixels = torch.zeros(IMAGES, 3, 32, 32, dtype=torch.uint8)  # which neither takes
    said = (
        rf"the first, .*, takes images of {channels} channels?, the second, .*, of {5 - channels}\."
    )
    with pytest.raises(mhprobe.UserError, match=said) as error:
        mhprobe.diff(made(channels), made(5 - channels), pixels, show_progress=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", FAMILIES)
def test_two_seeds_are_no_copies_though_norms_and_biases_are_alike(name):
    """Negative control: a copy whose matrices are all rounded to eight bits, as fake quantising does."""
    torch.manual_seed(0)
    first, second = (Torch(tiny_deit() if name == "deit" else TWINS[name]()) for _ in range(2))
    for seed, side in enumerate((first, second)):
        torch.manual_seed(seed)
        for parameter in side.model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter.data)
    assert guessed_null(first, second)[0] == "images"
    rounded = copy.deepcopy(first.model)
    for parameter in rounded.parameters():
        parameter.data = parameter.data if parameter.dim() < 2 else parameter.data.round(decimals=1)
    trained = copy.deepcopy(first.model)  # the vectors of a trained network are not one number
    for one in (trained, rounded):
        torch.manual_seed(2)
        for parameter in one.parameters():
            if parameter.dim() < 2:
                nn.init.normal_(parameter.data)
    assert guessed_null(Torch(trained), Torch(rounded))[0] == "rounding"
    assert guessed_null(first, Torch(copy.deepcopy(first.model)))[0] == "rounding"


@pytest.fixture(scope="module")
def tuned():
    """Two backbones of which one head differs, and what diff says of them."""
    before, after = tuned_vits()
    images = images_for(before, LEAST)
    return before, after, mhprobe.diff(before, after, images, null="images", show_progress=False)


def test_of_trainings_likeness_and_measures_tell_the_head_that_changed(tuned):
    before, _after, found = tuned
    rows = found.heads.dicts()
    assert [at for at, row in enumerate(rows) if row["svcca"] < 0.9] == [4]
    for at, row in enumerate(rows):
        if at != 4:
            assert row["svcca"] == pytest.approx(1, abs=1e-6)
            for name in ("entropy", "distance", "sinks", "write"):
                assert row[f"{name}_change"] == 0 and row[f"{name}_p"] == 1
    row = rows[4]
    assert row["svcca_low"] < row["svcca"] < row["svcca_high"] and 0 < row["svcca_null"] < 0.5
    assert 0 < row["entropy_low"] < row["entropy_change"] < row["entropy_high"]
    assert row["entropy_p"] < 0.01 and row["sinks_change"] < 0
    assert row["entropy_change"] == pytest.approx(row["entropy_after"] - row["entropy_before"])
    alone = mhprobe.measure(before, [images_for(before, LEAST)], [mhprobe.measures.Entropy])
    assert column(found, "entropy_before") == pytest.approx(alone["entropy"].tolist(), abs=1e-6)
    said = " ".join(found.sentences)
    assert "entropy of attention in nats rises in 1 head and falls in 0" in said
    assert "distance of attention in pixels changes in no head" in said
    assert "alike (SVCCA) by" in said


def test_the_page_of_a_training_tells_what_each_measure_was_and_is(tuned):
    columns = {one["name"]: one for one in data_of(tuned[-1])["columns"]}
    assert columns["entropy_change"]["texts"][4].startswith("0.2")
    assert "importance_change" in columns and "importance_before" not in columns  # said once
    assert (
        " before, " in columns["entropy_change"]["texts"][4] and columns["svcca"]["texts"][4] == ""
    )


def test_heads_that_are_gone_have_no_likeness_and_no_change():
    before = loud()
    after = mhprobe.prune_heads(copy.deepcopy(before), [5])
    images = images_for(before, 12)
    found = mhprobe.diff(before, after, images, null="images", show_progress=False)
    gone = found.heads.dicts()[5]
    assert all(
        gone[name] != gone[name]
        for name in ("svcca", "entropy_after", "entropy_change", "entropy_low")
    )
    assert gone["entropy_before"] > 0 and found.heads.dicts()[3]["svcca"] == pytest.approx(1)


def test_of_few_images_changes_have_intervals_and_no_head_is_named(tuned):
    before, after, of_enough = tuned
    found = mhprobe.diff(
        before, after, images_for(before, LEAST - 1), null="images", show_progress=False
    )
    assert "entropy_p" not in found.heads.columns and "entropy_low" in found.heads.columns
    (said,) = [line for line in found.sentences if f"is told from {LEAST} photographs on" in line]
    assert f"here are {LEAST - 1}" in said and "rises in" not in " ".join(found.sentences)
    assert "entropy_p" in of_enough.heads.columns  # the control: one image more
    assert data_of(found)["heads"]  # the page is drawn without p


def test_skewed_heads_that_did_not_change_are_seldom_named():
    """Slopes of two shipped networks on 1,000 images, heads of one against heads of the other, without their mean."""
    before, after = (real_heads.columns(name, "slope").abs() for name in real_heads.NETWORKS)
    change = (after / after.mean(0))[:, :22] - (before / before.mean(0))[:, :22]
    change = change - change.mean(0)
    draws, named, uncorrected = 400, 0, 0
    random = torch.Generator().manual_seed(0)
    for _ in range(draws):
        drawn = change[torch.randint(0, len(change), (LEAST,), generator=random)]
        folds = torch.stack([drawn[fold::FOLDS].mean(0) for fold in range(FOLDS)])
        mean, _, high = t_interval(folds)
        p = p_of_interval(mean, high - mean, FOLDS - 1)
        named += bool((holm(p) < RATE).any())
        uncorrected += bool((p < RATE).any())
    assert named / draws <= RATE + 2 * math.sqrt(RATE * (1 - RATE) / draws)
    assert uncorrected / draws > 0.3  # the control: without Holm's correction


def test_copies_are_not_measured_before_and_after():
    before = loud()
    found = compared(before, copy.deepcopy(before))
    assert not {"svcca", "entropy_change"} & set(found.heads.columns)
