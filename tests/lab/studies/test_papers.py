"""What every paper of conf/paper promises: it says what to type, composes, and makes its figures."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import torch
import torchvision

import mhprobe.study
import runs
from data_sets import write_flowers, write_pets
from framework.contracts.test_results import unsaid
from mhprobe.errors import UserError
from mhprobe.framework.questions import plan
from mhprobe.framework.run import image_data, networks
from mhprobe.framework.run.schema import Paper, PaperFigure
from mhprobe.framework.run.sections import CONF
from mhprobe.lab.papers.paper import caption, figures_named, label
from mhprobe.report.figures import style

PAPERS = sorted(path.stem for path in (CONF / "paper").glob("*.yaml"))
SMALL = {
    "vit": (
        "+experiment=digits_vit",
        "backbone.embed_dim=24",
        "backbone.depth=2",
        "backbone.num_heads=2",
    ),
    "swin": (
        *(
            "+experiment=digits_vit",
            "backbone=swin",
            "backbone.img_size=8",
            "backbone.patch_size=1",
        ),
        *(
            "backbone.embed_dim=12",
            "backbone.window_size=4",
            "~backbone.depth",
            "~backbone.mlp_ratio",
        ),
        *("backbone.depths=[1,2]", "backbone.num_heads=[2,3]"),
    ),
}
FEW = ("data.limit_train=64", "data.limit_val=40", "data.limit_test=40", "trainer.accelerator=cpu")


def settings(family, paper, folder, *more):
    few = [
        *SMALL[family],
        *FEW,
        "trainer.precision=32-true",
        f"cache_dir={folder}",
        f"+paper={paper}",
        "control=null",
    ]
    return runs.checked("study", *few, *more)


@pytest.mark.parametrize("name", PAPERS)
def test_its_header_says_what_it_is_and_what_to_type(name):
    header = re.match(
        r"# @package paper\n(#.*\n)+", (CONF / "paper" / f"{name}.yaml").read_text()
    ).group()
    assert f"python -m mhprobe.study +paper={name} weights=" in header
    assert f"docs/papers/{name}.md" in header
    source = runs.composed("study", f"+paper={name}").paper.source
    assert set(re.findall(r"[A-Z][a-z]+", source)) <= set(re.findall(r"[A-Z][a-z]+", header))
    page = (CONF.parent / "docs" / "papers" / f"{name}.md").read_text()
    told_on = set(re.findall(r"weights=weights/(\w+)\.safetensors", page))
    assert len(told_on) > 1
    for weights in told_on:
        assert re.search(rf"^# Minutes of weights/{weights}: \d", header, re.MULTILINE), weights


@pytest.mark.parametrize("name", PAPERS)
def test_nothing_is_drawn_twice(name):
    figures = runs.composed("study", f"+paper={name}").paper.figures.values()
    parts = ("measure", "curves", "kinds", "options", "panel")
    drawn = [
        str([figure.get(part) for part in parts])
        for figure in figures
        if not figure.get("elsewhere")
    ]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    ("name", "key", "begins"),
    [
        ("voita", "figure_1_functions", "Beside Figure 1 of Voita"),
        ("voita", "figure_1_objects", "Beside Figure 1 of Voita"),
        ("michel", "table_2", "Table 2 of Michel"),
    ],
)
def test_a_caption_begins_with_the_figure_of_the_paper(name, key, begins, tmp_path):
    paper = settings("vit", name, tmp_path).paper
    assert figures_named(paper, [key], []) == [key]
    assert caption(paper, key).startswith(begins)


@pytest.mark.parametrize("name", PAPERS)
def test_its_figures_name_what_is_there(name, tmp_path):
    paper = settings("vit", name, tmp_path).paper.model_dump()
    assert paper["name"] == name
    curves = paper["masking"]["curves"] if paper["masking"] else {}
    used = {"measure": set(), "curves": set()}
    for key, figure in paper["figures"].items():
        assert set(figure["measure"]) <= set(paper["measure"]), key
        assert set(figure["curves"]) <= set(curves), key
        makes = figure["measure"] or figure["curves"] or figure["panel"]
        assert bool(makes) != (figure["elsewhere"] is not None), key
        used["measure"] |= set(figure["measure"])
    assert used["measure"] == set(paper["measure"])  # nothing is measured for nobody


def of_figures(*keys):
    figure = PaperFigure(title="it", shows="This.", look="That.")
    return Paper(name="p", source="Who (2020)", figures=dict.fromkeys(keys, figure))


def test_a_caption_names_the_papers_figure_and_what_of_ours_stands_beside_it():
    paper = of_figures("figure_6", "figure_6_noise", "table_1", "heat")
    captions = {key: caption(paper, key) for key in paper.figures}
    assert [label(key) for key in captions] == ["Figure 6", "Figure 6, noise", "Table 1", "Heat"]
    assert captions["figure_6"] == "Figure 6 of Who (2020): This. Look for: That."
    assert captions["figure_6_noise"].startswith("Beside Figure 6 of Who (2020): ")
    assert captions["table_1"].startswith("Table 1 of Who (2020): ")
    assert captions["heat"].startswith("After Who (2020): ")  # the paper has no figure of this


def test_make_papers_makes_every_paper_on_every_model():
    told = [
        "make",
        "-n",
        "papers",
        "WEIGHTS=a.safetensors b.safetensors",
        "ROOT=images.tar",
        "PAPER=figures=[1]",
    ]
    out = subprocess.run(told, cwd=CONF.parent, capture_output=True, text=True, check=True).stdout
    commands = [line for line in out.splitlines() if "mhprobe.study" in line]
    assert sorted(line.split("+paper=")[1].split()[0] for line in commands) == PAPERS
    assert all("data.root=images.tar figures=[1]" in line for line in commands)
    assert out.count("for file in a.safetensors b.safetensors") == len(PAPERS)


def test_michels_scores_are_normalised_as_his_are(tmp_path):
    paper = settings("vit", "michel", tmp_path).paper.model_dump()
    assert paper["masking"]["curves"]["importance"]["order"]["measure"]["normalize"] == "layer_l2"
    assert paper["measure"]["gate_importance"]["normalize"] == "layer_l2"
    settling = runs.composed(
        "train", "+experiment=digits_vit", "+callback=settling"
    ).callback.settling
    assert settling.measure.normalize == "layer_l2"


def _refusal(figure, family):
    """Why a figure cannot be made of digits on so small a network; None for all others."""
    panel = (figure.panel or {"_target_": ""})["_target_"].rpartition(".")[2]
    if "object_attention" in figure.measure or panel == "segmentation":
        return "the data set has no object masks"
    return {
        ("probing", "swin"): "looks at windows; a probe needs the same patches for all heads",
        ("clusters", "vit"): "no group of heads that attend to the same tokens has 5 heads or more",
    }.get((panel, family))


@pytest.fixture
def without_estimates(monkeypatch):
    """A study asks every question of a few images first; of images so few that takes as long as the answer.

    That it can be asked of few is tried on the ViT, and no estimate refuses anything.
    """
    monkeypatch.setattr(plan, "plan_in_words", lambda *_: ["no plan"])


@pytest.mark.slow
@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("name", PAPERS)
def test_it_makes_its_figures(name, family, tmp_path, request):
    if family != "vit":
        request.getfixturevalue("without_estimates")
    cfg = settings(family, name, tmp_path)
    if "figure_6_landscape" in cfg.paper.figures:
        cfg.paper.figures["figure_6_landscape"].panel |= {"steps": 3}
    if "rarity" in cfg.paper.measure:
        cfg.paper.measure["rarity"]["codes"] = 8  # so few images have few different patches
    if "table_4" in cfg.paper.figures:
        cfg.paper.figures["table_4"].panel |= {"rounds": 2, "seconds": 1e-3, "batches": [1, 2]}
    folder = tmp_path / "run"
    mhprobe.study.run(cfg, folder)
    made = json.loads((folder / "finished.json").read_text())
    page = (folder / "figures.md").read_text()
    wanted = [key for key, figure in cfg.paper.figures.items() if figure.elsewhere is None]
    refused = {key: page.split(f"## {label(key)}:")[1] for key in wanted if key not in made}
    expected = {key: why for key in wanted if (why := _refusal(cfg.paper.figures[key], family))}
    assert set(refused) == set(expected), refused
    for key, why in expected.items():
        assert re.match(rf".*\n\n.*\n\nNot made: .*{why}", refused[key]), refused[key]
    assert unsaid(folder) == []
    for entry in made.values():
        assert any(file.endswith((".png", ".csv")) for file in entry["files"])
        for file in entry["files"]:
            assert (folder / file).stat().st_size > 0
    for key in made:
        assert cfg.paper.figures[key].look in page
    if name == "michel":
        assert (
            runs.rows(folder / "tables" / "figure_2_correlation.csv")[0]["measure"]
            == "accuracy lost (points)"
        )


def test_a_finished_figure_is_not_made_again_and_a_changed_one_is(tmp_path, caplog, monkeypatch):
    folder = tmp_path / "run"
    mhprobe.study.run(settings("vit", "byun_kim", tmp_path, "figures=[1]", "name=mine"), folder)
    assert "mine (vit_tiny_patch16_224), test accuracy" in (folder / "figures.md").read_text()
    first = (folder / "figures" / "figure_1_svcca_coefficients.png").stat().st_mtime_ns
    assert list(json.loads((folder / "finished.json").read_text())) == ["figure_1"]
    assert (
        "Figure 1 of Byun" in (folder / "report.html").read_text()
    )  # its caption stands on the page

    from mhprobe.measures.svcca import SVCCA

    def measured(*args):
        raise AssertionError("measured again")

    monkeypatch.setattr(SVCCA, "update", measured)
    with caplog.at_level("INFO"):
        mhprobe.study.run(
            settings("vit", "byun_kim", tmp_path, "figures=[1,2]"), folder
        )  # both of the same pass
    assert "figure_1: there already" in caplog.text and "figure_2: done" in caplog.text
    assert (folder / "figures" / "figure_1_svcca_coefficients.png").stat().st_mtime_ns == first
    assert (folder / "figures" / "figure_2_svcca_pairwise.png").is_file()

    with pytest.raises(AssertionError, match="measured again"):
        mhprobe.study.run(
            settings(
                "vit", "byun_kim", tmp_path, "figures=[1]", "paper.measure.svcca.variance=0.9"
            ),
            folder,
        )
    for module in ("lab.papers.paper", "framework.questions.material"):
        monkeypatch.setattr(f"mhprobe.{module}.our_digest", lambda *_: "edited")
    with pytest.raises(AssertionError, match="measured again"):
        mhprobe.study.run(settings("vit", "byun_kim", tmp_path, "figures=[1]"), folder)


BREEDS = tuple(f"breed{number:02}" for number in range(37))


def of_torchvision(paper, data, folder):
    """A paper on one of torchvision's data sets, with as many classes as it has, on a small untrained ViT."""
    write = (
        write_flowers(folder / data, kinds=102)
        if data == "flowers"
        else write_pets(folder / data, 2, BREEDS)
    )
    settings = [
        f"data={data}",
        f"data.root={write}",
        "data.source.stored_size=32",
        f"cache_dir={folder / 'cache'}",
    ]
    small = ["img_size=32", "patch_size=8", "embed_dim=24", "depth=2", "num_heads=2"]
    few = ["weights=random", "control=null", "trainer.accelerator=cpu", "trainer.precision=32-true"]
    return runs.checked(
        "study", *settings, *few, f"+paper={paper}", *(f"backbone.{each}" for each in small)
    )


@pytest.mark.slow
@pytest.mark.usefixtures("without_estimates")
@pytest.mark.parametrize(
    ("paper", "data"), [("rollout", "pets"), ("rollout", "flowers"), ("clark", "pets")]
)
def test_it_makes_its_figures_of_torchvisions_data_sets(paper, data, tmp_path, monkeypatch):
    monkeypatch.setattr(
        torchvision.datasets.Flowers102, "_check_integrity", lambda self: True
    )  # sums of the real ones
    cfg = of_torchvision(paper, data, tmp_path)
    images = image_data.build_images(cfg)
    classes = {"pets": 37, "flowers": 102}[data]
    assert images.num_classes == classes and images.sizes["test"] == classes * (
        2 if data == "pets" else 1
    )
    assert networks.build_classifier(cfg, images)(torch.zeros(1, 3, 32, 32)).shape == (1, classes)
    mhprobe.study.run(cfg, tmp_path / "run")
    made = json.loads((tmp_path / "run" / "finished.json").read_text())
    wanted = {key for key, figure in cfg.paper.figures.items() if figure.elsewhere is None}
    missing = (
        {"segmentation"} if data == "flowers" and paper == "rollout" else set()
    )  # they have no masks
    assert (
        missing <= wanted - set(made) <= missing | {"figure_6"}
    )  # so small a network has too few heads to cluster
    assert f"images of {data}." in (tmp_path / "run" / "figures.md").read_text()


@pytest.mark.parametrize("data", ["pets", "flowers"])
def test_images_that_are_not_there_are_refused_before_a_network_is_built(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "mhprobe.framework.run.networks.build", lambda *_, **__: pytest.fail("a network was built")
    )
    told = (
        f"data={data}",
        f"data.root={tmp_path / 'none'}",
        "weights=random",
        f"cache_dir={tmp_path / 'cache'}",
    )
    cfg = runs.checked("study", *told, "+paper=rollout")
    with pytest.raises(
        UserError, match=r"is not in .*none, or not whole; expected .*Use data\.root=<folder with"
    ):
        mhprobe.study.run(cfg, tmp_path / "run")


def test_small_print_says_which_images_a_figure_is_of(tmp_path, monkeypatch):
    said = {}
    monkeypatch.setattr(
        style,
        "save_figure",
        lambda figure, stem, about, *more: said.update({stem.name: about}) or [stem],
    )
    mhprobe.study.run(
        settings("vit", "rollout", tmp_path, "figures=[surfaces,heads]"), tmp_path / "run"
    )
    mhprobe.study.run(settings("vit", "voita", tmp_path, "figures=[1,6]"), tmp_path / "other")
    few = ("figures=[weights,initialisation]", "paper.figures.initialisation.panel.images=30")
    mhprobe.study.run(settings("vit", "unique", tmp_path, *few), tmp_path / "third")
    whole = "untrained vit_tiny_patch16_224, digits"
    assert {key: about.removeprefix(whole) for key, about in said.items()} == {
        "surfaces_surfaces": ", 1 test image",
        "heads_head_rollout_0": ", 1 test image",
        "figure_1_heads": ", n = 40 test images",
        "figure_6_gates": "",
        "initialisation_blocks": ", n = 40 test images, untrained: 30",
        "weights_weight_similarity_pairwise": "",  # no image changes weights
        "weights_weight_similarity_qk_pairwise": "",
    }


@pytest.mark.filterwarnings("ignore::mhprobe.measures.parts.pairs.FewImages")
def test_a_figure_that_cannot_be_made_is_an_error_where_it_was_asked_for(tmp_path):
    few = ["figures=[1]", "data.limit_test=1"]
    with pytest.raises(UserError, match="Use more images"):
        mhprobe.study.run(settings("vit", "byun_kim", tmp_path, *few), tmp_path / "run")
    assert "Not made: " in (tmp_path / "run" / "figures.md").read_text()


def test_figures_are_chosen_by_number_or_name_in_the_papers_order():
    paper = of_figures("figure_1", "table_1", "figure_3")
    assert figures_named(paper, None, []) == ["figure_1", "table_1", "figure_3"]
    assert figures_named(paper, [3, "table_1"], []) == ["table_1", "figure_3"]
    with pytest.raises(UserError, match="p has figure_1, table_1, figure_3, got figure_2"):
        figures_named(paper, [2], [])
    with pytest.raises(UserError, match=r"\+paper=<name>, one of a, b"):
        figures_named(of_figures(), None, ["a", "b"])


@pytest.mark.slow
def test_figures_of_measures_have_a_freshly_initialised_network_inside_by_default(
    tmp_path, caplog, monkeypatch
):
    folder = tmp_path / "run"
    assert runs.checked("study", "+paper=byun_kim", "weights=random").control == "random_init"
    asked = ("figures=[2,table_1]", "control=random_init")
    mhprobe.study.run(settings("vit", "byun_kim", tmp_path, *asked), folder)
    rows = runs.rows(folder / "tables" / "figure_2_svcca.csv")
    twins = runs.rows(folder / "tables" / "figure_2_svcca_random_init.csv")
    assert [row["random_init"] for row in rows] == [row["value"] for row in twins]
    assert [row["value"] for row in rows] != [row["value"] for row in twins]  # another network's
    made = json.loads((folder / "finished.json").read_text())
    assert "tables/figure_2_svcca_random_init.csv" in made["figure_2"]["files"]
    assert not any("random_init" in file for file in made["table_1"]["files"])  # a panel of its own

    from mhprobe.measures.svcca import SVCCA

    def measured(*args):
        raise AssertionError("measured again")

    monkeypatch.setattr(SVCCA, "update", measured)
    with caplog.at_level("INFO"):
        mhprobe.study.run(
            settings("vit", "byun_kim", tmp_path, "figures=[3]", "control=random_init"), folder
        )
    assert "figure_3: done" in caplog.text  # both networks' numbers are kept
    mhprobe.study.run(
        settings("vit", "byun_kim", tmp_path, "figures=[2]"), folder
    )  # without: another figure
    assert "random_init" not in runs.rows(folder / "tables" / "figure_2_svcca.csv")[0]


def test_pruned_weights_have_figures_and_no_control(tmp_path, caplog, monkeypatch):
    def pruned(*args):
        raise UserError("control: got pruned ones, which have no random twin.")

    monkeypatch.setattr("mhprobe.framework.run.questions.RandomTwin", pruned)
    with caplog.at_level("INFO"):
        mhprobe.study.run(
            settings("vit", "byun_kim", tmp_path, "figures=[2]", "control=random_init"),
            tmp_path / "run",
        )
    assert "no control: control: got pruned ones" in caplog.text
    assert "random_init" not in runs.rows(tmp_path / "run" / "tables" / "figure_2_svcca.csv")[0]
