"""What is shared comes back the same, with mhprobe and without, and nothing is uploaded but on request."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import mhprobe
import pruned
from mhprobe.backbones import build, input_spec, layout_of
from mhprobe.report.report import Report, Result
from mhprobe.report.tables import Table
from mhprobe.weights.checkpoint import save_weights
from mhprobe.weights.hub import save_for_hub


class Hub:
    """A folder in the place of the Hub."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.created = folder, []

    def create_repo(self, repo, private, exist_ok):
        self.created.append((repo, private))

    def upload_folder(self, repo_id, folder_path, revision, commit_message):
        if repo_id not in [name for name, _ in self.created]:
            raise RuntimeError("no such repository")
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)
        return f"https://hub.example/{repo_id}"

    def hf_hub_download(self, repo, file, revision=None):
        if not (self.folder / repo / file).is_file():
            raise RuntimeError(f"404: {repo}/{file}\nmore lines")
        return str(self.folder / repo / file)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    made = Hub(tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: made)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", made.hf_hub_download)
    return made


def pictures(kind: str) -> torch.Tensor:
    size = pruned.BACKBONES[kind]["img_size"]
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(0))


def run_of(tmp_path, kind, removed) -> Path:
    """A folder as mhprobe.prune leaves it."""
    folder = tmp_path / "run"
    about = {**pruned.description(kind), "made": {"seed": 7, "by": "mhprobe.prune"}}
    pruned.save_pruned(pruned.network(kind), removed, folder / "pruned.safetensors", about)
    report = Report(folder)
    stages = [["dense", 6, 0.9, 0.85, 0.93, 1000, 2000], ["pruned", 3, 0.8, 0.74, 0.85, 900, 1500]]
    columns = ["stage", "heads", "accuracy", "low", "high", "parameters", "flops"]
    report.add({"pruning": Result(Table(columns, stages, "stages"))})
    speeds = [["this mask", 64, 1.31, 1.2, 1.4, 1.35], ["50 % removed", 64, 9.9, 9, 10, 9]]
    columns = ["removed", "batch", "speedup", "speedup_low", "speedup_high", "predicted"]
    report.add({"speed": Result(Table(columns, speeds, "speed"))})
    report.add_metrics({"test/accuracy": 0.8, "test/images": 200})
    return folder


@pytest.mark.parametrize("kind", ["vit", "swin"])
@pytest.mark.parametrize("heads", ["some", "a whole layer"])
def test_a_pruned_run_comes_back_and_its_card_rebuilds_it_in_plain_timm(
    tmp_path, hub, monkeypatch, kind, heads
):
    removed = (pruned.REMOVED if heads == "some" else pruned.EMPTIED)[kind]
    folder = run_of(tmp_path, kind, removed)
    assert not hub.created  # nothing is uploaded by itself
    assert mhprobe.push_to_hub(folder, "me/small") == "https://hub.example/me/small"
    assert hub.created == [("me/small", True)]

    x = pictures(kind)
    expected = pruned.logits(mhprobe.load(folder), x)
    torch.testing.assert_close(
        pruned.logits(mhprobe.load("hf-hub:me/small"), x), expected, rtol=0, atol=0
    )
    card = (hub.folder / "me/small/README.md").read_text()
    monkeypatch.chdir(hub.folder / "me/small")
    monkeypatch.syspath_prepend("")
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", card, re.S):
        exec(compile(block, "card", "exec"), names)
    torch.testing.assert_close(pruned.logits(names["model"], x), expected, rtol=0, atol=1e-6)


def test_the_line_in_the_docs_uploads_a_run(tmp_path, hub, monkeypatch):
    run_of(tmp_path, "vit", pruned.REMOVED["vit"])
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs" / "tutorials" / "engineer.md"
    (block,) = re.findall(r"<!-- uploads -->\n```python\n(.*?)```", page.read_text(), re.S)
    exec(compile(block, page.name, "exec"), {})
    assert hub.created == [("owner/name", True)]


def test_the_card_says_what_was_measured(tmp_path):
    folder = run_of(tmp_path, "vit", pruned.REMOVED["vit"])
    card = (save_for_hub(folder, tmp_path / "shared") / "README.md").read_text()
    for said in (
        *(
            "3 heads are left, in 2 layers",
            "| accuracy | 80.0 % (95 % interval 73.9 to 85.0, 200 test images) |",
        ),
        *(
            "| seed | 7 |",
            "| data | letters, 5 classes |",
            "| pruned | 3 | 80.0 % | 74.0 to 85.0 | 900 | 1,500 |",
        ),
        *(
            "| 64 | 1.31 | 1.20 to 1.40 | 1.35 |",
            "| blocks.0.attn | 0, 2 |",
            "| blocks.1.attn | 2 |",
        ),
    ):
        assert said in card, said
    assert "9.90" not in card and "{{" not in card
    assert card.startswith("---\nlibrary_name: timm\n") and "- pruned\n---\n" in card


def test_the_card_does_not_take_neurons_for_heads(tmp_path):
    model = pruned.network("vit")
    layout = mhprobe.attach(model, units={"head", "neuron"}).layout
    first, second = layout.of("neuron").sites
    mask = torch.cat([torch.full((site.num_heads,), site == second) for site in layout.sites])
    mask[[0, 1, 2, 6]] = True  # all heads of the first block, and a neuron
    pruned.save_pruned(
        model, mask, tmp_path / "run" / "pruned.safetensors", pruned.description("vit")
    )
    columns = ["stage", "heads", "neurons", "accuracy", "low", "high", "parameters", "flops"]
    stages = [
        ["dense", 6, 192, 0.9, 0.85, 0.93, 1000, 2000],
        ["pruned", 3, 95, 0.8, 0.74, 0.85, 900, 1500],
    ]
    Report(tmp_path / "run").add({"pruning": Result(Table(columns, stages, "stages"))})
    card = (save_for_hub(tmp_path / "run", tmp_path / "shared") / "README.md").read_text()
    for said in (
        *(
            "3 heads and 95 neurons are left, in 2 layers",
            "| blocks.0.attn | none: the layer adds a bias |",
        ),
        *(
            "| blocks.1.attn | 0, 1, 2 |",
            f"| {first.name} | 95 neurons |",
            f"| {second.name} | none: the layer adds",
        ),
        *("| stage | heads | neurons | test accuracy |", "\n|---|---|---|---|---|---|---|\n"),
        "| pruned | 3 | 95 | 80.0 % |",
    ):
        assert said in card, said


def test_the_card_tells_mlps_of_one_block_apart(tmp_path):
    about = {"name": "vit_small_patch16_18x2_224", "img_size": 16, "patch_size": 4}
    about |= {"embed_dim": 24, "depth": 1, "num_heads": 3}
    model = build(**about, num_classes=5).eval()
    layout = layout_of(model, {"head", "neuron"})
    small = mhprobe.prune_heads(model, layout.mask([0, 6, 7, 110]), units={"head", "neuron"})
    card = (save_for_hub(small, tmp_path, backbone=about) / "README.md").read_text()
    for said in (
        *("5 heads and 189 neurons are left, in 4 layers", "| blocks.0.attns.0.attn | 1, 2 |"),
        *("| blocks.0.ffns.0.mlp | 94 neurons |", "| blocks.0.ffns.1.mlp | 95 neurons |"),
    ):
        assert said in card, said


def test_a_model_in_memory_is_shared_as_it_is(tmp_path, hub):
    model = pruned.network("vit")
    small = mhprobe.prune_heads(
        mhprobe.prune_heads(model, [(0, 1)]), [(0, 1)]
    )  # of the dense one 1 and then 2
    backbone = pruned.BACKBONES["vit"]
    mhprobe.push_to_hub(small, "me/memory", private=False, backbone=backbone)
    assert hub.created == [("me/memory", False)]
    assert json.loads((hub.folder / "me/memory/model.json").read_text())["kept"][
        "blocks.0.attn"
    ] == [0]
    x = pictures("vit")
    torch.testing.assert_close(
        pruned.logits(mhprobe.load("hf-hub:me/memory"), x), pruned.logits(small, x)
    )
    mhprobe.push_to_hub(small, "me/inferred")  # its sizes are read from its modules
    torch.testing.assert_close(
        pruned.logits(mhprobe.load("hf-hub:me/inferred"), x), pruned.logits(small, x)
    )
    small.norm.eps = 0.5  # which no argument of timm's says
    with pytest.raises(mhprobe.UserError, match="give its arguments: backbone="):
        mhprobe.push_to_hub(small, "me/other")
    assert len(hub.created) == 2


def test_a_model_that_was_loaded_names_its_heads_by_the_dense_one(tmp_path):
    """Loaded, pruned again and shared: the numbers in the file are those of the network before any pruning."""
    path, about = tmp_path / "pruned.safetensors", {"backbone": pruned.BACKBONES["vit"]}
    once = pruned.save_pruned(pruned.network("vit"), [(0, 0)], path, pruned.description("vit"))
    loaded = mhprobe.load_pruned(path)
    twice, x = mhprobe.prune_heads(loaded, [(0, 0)]), pictures("vit")
    for model, same, left in (
        (loaded, once, [1, 2]),
        (twice, mhprobe.prune_heads(once, [(0, 0)]), [2]),
    ):
        folder = save_for_hub(model, tmp_path / f"{len(left)}", **about)
        assert json.loads((folder / "model.json").read_text())["kept"]["blocks.0.attn"] == left
        assert (
            f"| blocks.0.attn | {', '.join(map(str, left))} |" in (folder / "README.md").read_text()
        )
        assert torch.equal(pruned.logits(mhprobe.load(folder), x), pruned.logits(same, x))


@pytest.mark.parametrize("tag", ["dino", "of_nobody"])
def test_a_model_in_memory_keeps_the_input_of_its_weights(tmp_path, tag):
    """A tag of timm's list stays in the name; another, as the Hub has them, does not."""
    model = build("vit_small_patch16_224.dino", num_classes=2)
    model.pretrained_cfg = {**model.pretrained_cfg, "tag": tag}
    folder = save_for_hub(model, tmp_path)
    assert input_spec(mhprobe.load(folder)) == input_spec(model)
    assert (
        input_spec(model)["mean"]
        == (0.485, 0.456, 0.406)
        != input_spec(build("vit_small_patch16_224"))["mean"]
    )
    name = json.loads((folder / "model.json").read_text())["backbone"]["name"]
    assert name == f"vit_small_patch16_224{'.dino' if tag == 'dino' else ''}"


def test_gates_are_shared(tmp_path, hub, monkeypatch):
    model = pruned.network("vit")
    gates = mhprobe.attach(model)
    with torch.no_grad():
        gates.values[1] = 0.25
    save_weights(model, tmp_path / "model.safetensors", pruned.description("vit"))
    mhprobe.push_to_hub(tmp_path / "model.safetensors", "me/gated")
    x = pictures("vit")
    torch.testing.assert_close(
        pruned.logits(mhprobe.load("hf-hub:me/gated"), x), pruned.logits(model, x)
    )
    assert "6 of 6 gates are open" in (hub.folder / "me/gated/README.md").read_text()
    assert (
        pruned.logits(model, x).ne(pruned.logits(pruned.network("vit"), x)).any()
    )  # the gate does something


def test_what_the_hub_refuses_is_one_line(tmp_path, hub):
    with pytest.raises(
        mhprobe.UserError, match=r"hub: no/where: 404: no/where/model\.json\. Is the name"
    ) as refused:
        mhprobe.load("hf-hub:no/where")
    assert "\n" not in str(refused.value)
    with pytest.raises(
        mhprobe.UserError, match=r"holds no pruned\.safetensors and no model\.safetensors"
    ):
        mhprobe.push_to_hub(tmp_path, "me/nothing")
    assert not hub.created


def test_names_from_data_are_no_markup(tmp_path):
    about = {**pruned.description("vit"), "data": "<script>|x`"}
    save_weights(pruned.network("vit"), tmp_path / "model.safetensors", about)
    card = (save_for_hub(tmp_path, tmp_path / "shared") / "README.md").read_text()
    assert "<script>" not in card and "| data |  script  x , 5 classes |" in card


def test_the_snippet_of_the_card_loads_a_network_with_a_stem_of_convolutions(tmp_path, monkeypatch):
    about = {
        **pruned.description("vit"),
        "backbone": {**pruned.BACKBONES["vit"], "conv_stem": [8, 16]},
    }
    torch.manual_seed(0)
    model = build(**about["backbone"], num_classes=5).eval()
    save_weights(model, tmp_path / "model.safetensors", about)
    folder = save_for_hub(tmp_path, tmp_path / "shared")
    (block,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    monkeypatch.chdir(folder)
    exec(compile(block, "card", "exec"), names := {})
    x = pictures("vit")
    torch.testing.assert_close(
        pruned.logits(names["model"], x), pruned.logits(model, x), rtol=1e-5, atol=1e-5
    )
