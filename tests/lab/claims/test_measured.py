"""Evidence is measured once, kept for the next run, and refused with a reason."""

from __future__ import annotations

import dataclasses

import lightning as L
import pytest
import timm
import torch

import mhprobe
from data_sets import Noise
from mhprobe.data.base import ImageData, InputSpec
from mhprobe.errors import UserError
from mhprobe.framework.questions.masking import Masking
from mhprobe.framework.questions.material import Material, Measurements
from mhprobe.lab.claims.parts.asking import ask, verdicts_on
from mhprobe.lab.claims.parts.claim import all_claims, claims_named
from mhprobe.lab.claims.parts.draws import positions_of
from mhprobe.lab.claims.parts.evidence import Counts, Evidence
from mhprobe.masking.by_score import ByScore
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.measures.ablation_delta import AblationDelta
from mhprobe.measures.entropy import Entropy
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.measures.token_kinds import TokenKinds
from models import make_loud, tiny_swin, tiny_vit


def tiny_xcit():
    """Attention among channels: none between patches."""
    return timm.create_model(
        "xcit_nano_12_p16_224", embed_dim=12, depth=3, num_heads=3, img_size=32, num_classes=5
    )


class Whole(L.LightningModule):
    features_only = False

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.description = {"backbone": {"name": "tiny"}, "class_names": list("abcde")}

    def forward(self, images):
        return self.backbone(images)


@pytest.fixture
def made(tmp_path):
    def make(build=tiny_vit, twin=True):
        backbone = build()
        make_loud(backbone, 0.2)
        layout = mhprobe.attach(backbone).layout
        data = ImageData(
            Noise((40, 30), 5, 32), 8, eval_batch_size=16, cache_dir=tmp_path, val_fraction=0.5
        )
        data.prepare_data()
        data.setup("test")
        data.spec = InputSpec(tuple(backbone.patch_embed.img_size))
        kinds = (Entropy, TokenKinds, GateImportance, AblationDelta)
        measures = {each.name: each for each in (kind(layout) for kind in kinds)}

        def control():
            other = build()
            mhprobe.attach(other)
            return other.eval()

        material = Material(
            layout,
            Whole(backbone).eval(),
            data,
            measures={**measures, "rarity": UserError("it does not fit.")},
            options={name: {"_target_": type(each).__module__} for name, each in measures.items()},
            masking=Masking(
                {"importance": CurveSpec("importance", "head", ByScore(GateImportance))},
                tmp_path / "orders",
            ),
            twin=control if twin else None,
            store=tmp_path / "measured",
        )
        return Evidence(material, {}, Counts(measures=20, maps=10, control=12, choice=15, draws=2))

    return make


def test_measures_and_the_twin_are_shown_fewer_images_and_both_are_kept(made, monkeypatch):
    """Accuracy costs little an image, so that it is asked of all."""
    evidence = made()
    shares, untrained = evidence.columns("entropy")["share"], evidence.control("entropy")["share"]
    assert int(evidence.columns("entropy")["images"]) == 20
    assert int(evidence.second("gate_importance")["images"]) == 20
    assert int(evidence.control("entropy")["images"]) == 12
    monkeypatch.setattr(evidence, "_refuse_guessing", lambda: None)
    assert evidence.right(torch.zeros(1, 6, dtype=torch.bool)).shape == (1, 30)
    monkeypatch.setattr(
        "mhprobe.framework.questions.material.measure_split", None
    )  # another run measures nothing
    again = made()
    assert torch.equal(again.columns("entropy")["share"], shares)
    assert torch.equal(again.control("entropy")["share"], untrained) and not torch.equal(
        shares, untrained
    )


@pytest.mark.parametrize("images", [20, 30])
def test_a_network_of_which_nothing_can_be_recorded_has_no_verdicts(made, monkeypatch, images):
    """Also where measures see fewer images than accuracy: all claims "not applicable" would be silence."""

    def refuse(*_, **__):
        raise UserError("the record refuses.")

    material = made().material
    counts = Counts(measures=images, maps=10, control=12, choice=15, draws=2)
    claims = {"entropy_falls_with_depth": all_claims()["entropy_falls_with_depth"]}
    rows = verdicts_on(material, claims, maps={}, counts=counts)["claims"].table
    assert rows.dicts()[0]["verdict"]  # the control
    monkeypatch.setattr("mhprobe.framework.questions.material.measure_split", refuse)
    blind = dataclasses.replace(material, store=None, measurements=Measurements())
    with pytest.raises(UserError, match="the record refuses"):
        verdicts_on(blind, claims, maps={}, counts=counts)


def test_an_order_that_claims_judge_keeps_the_limits_of_its_curve(made, monkeypatch):
    """It once closed heads of a layer that the curve beside it leaves alone."""
    evidence = made()
    monkeypatch.setattr(evidence, "_refuse_guessing", lambda: None)
    specs = evidence.material.described.specs
    whole = evidence.path("importance")[0]
    specs["importance"] = dataclasses.replace(specs["importance"], exclude_layers=[0])
    evidence._paths.clear()
    path, _ = evidence.path("importance")
    heads = evidence.layout.split(path[-1])
    assert len(path) < len(whole) and not heads[0].any() and heads[1].all() and whole[-1].all()
    specs["importance"] = dataclasses.replace(specs["importance"], target={"heads": 4})
    evidence._paths.clear()
    assert int(evidence.path("importance")[0, -1].sum()) == 2
    specs["other"] = dataclasses.replace(specs["importance"], rescale=True)
    with pytest.raises(UserError, match="the curves differ in fill or rescale"):
        evidence.right(path)


def test_each_draw_of_validation_images_chooses_an_order_of_its_own(made, monkeypatch):
    """Draws share no image, and neither scores nor slopes of one see the images of another."""
    evidence = made()
    monkeypatch.setattr(evidence, "_refuse_guessing", lambda: None)
    first, second = (each.positions for each in evidence._on_draws)
    assert len(first) == len(second) == 10 and not {*first.tolist()} & {*second.tolist()}
    masks = torch.eye(6, dtype=torch.bool)
    whole = evidence.material.scorers.on("validation").under(evidence._spec)
    expected = whole(masks).right.double()
    assert torch.equal(
        evidence.chosen(masks), torch.stack([expected[:, of].mean(1) for of in (first, second)])
    )
    of_draw, all_on = evidence._on_draws[1], torch.zeros(6, dtype=torch.bool)
    scores = of_draw.measure(GateImportance, all_on)
    alone = torch.cat(
        [
            of_draw.alone.measure(GateImportance, all_on, "value")[None]
            for of_draw.alone.batches in [
                evidence.material.walk(one[None], "val") for one in second
            ]
        ]
    )
    torch.testing.assert_close(scores, alone.mean(0))
    assert not torch.allclose(scores, whole.measure(GateImportance, all_on))
    assert len(evidence.path("importance")) == 2


def test_more_draws_than_validation_images_are_refused():
    assert sum(map(len, positions_of(23, 5, 100))) == 20
    assert [len(part) for part in positions_of(50, 5, 3)] == [3] * 5
    with pytest.raises(UserError, match=r"^draws: 5 draws .* of 4 validation images"):
        positions_of(4, 5, 100)


def test_a_network_that_guesses_has_no_accuracy_to_lose(made):
    evidence = made()
    for question in (
        lambda: evidence.path("importance"),
        lambda: evidence.right(torch.zeros(1, 6, dtype=torch.bool)),
    ):
        with pytest.raises(UserError, match="not shown to be better than a guess"):
            question()
    with pytest.raises(UserError, match="an untrained network guesses"):
        evidence.twin.columns("ablation_delta")
    with pytest.raises(UserError, match="compares a network with an untrained one"):
        evidence.twin.control("entropy")
    with pytest.raises(UserError, match="no untrained twin"):
        made(twin=False).control("entropy")


@pytest.mark.parametrize(
    ("build", "claim", "reason"),
    [
        (tiny_swin, "the_class_token_draws_attention", "no class token"),
        (tiny_vit, "importance_beats_random", "better than a guess"),
        (tiny_xcit, "entropy_falls_with_depth", "no attention weights"),
    ],
)
def test_a_claim_that_cannot_be_asked_says_why_and_is_counted(made, build, claim, reason):
    verdicts = ask(claims_named([claim, "most_heads_can_go"]), made(build))
    assert set(verdicts) == {claim, "most_heads_can_go"}
    assert verdicts[claim].word == "not applicable" and reason in verdicts[claim].reason
    assert verdicts["most_heads_can_go"].word != "not applicable"


def test_images_without_labels_have_no_accuracy(made, monkeypatch):
    evidence = made()
    monkeypatch.setattr(ImageData, "unlabelled", True)
    verdicts = ask(claims_named(["one_head_is_enough", "entropy_falls_with_depth"]), evidence)
    assert verdicts["one_head_is_enough"].word == "not applicable"
    assert "no labels" in verdicts["one_head_is_enough"].reason
    assert verdicts["entropy_falls_with_depth"].word != "not applicable"


def test_a_measure_that_does_not_fit_is_refused_with_its_reason(made):
    with pytest.raises(UserError, match="it does not fit"):
        made().columns("rarity")
