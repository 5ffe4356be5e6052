"""Evidence is measured once, in shared passes, kept for the next run, and refused with a reason."""

from __future__ import annotations

import lightning as L
import pytest
import torch

import mhprobe
import mhprobe.claims.parts.measured as room
from data_sets import Noise
from mhprobe.claims.parts.asking import ask
from mhprobe.claims.parts.claim import chosen
from mhprobe.claims.parts.measured import Measured
from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.masking.by_score import ByScore
from mhprobe.masking.parts.curve import CurveSpec
from mhprobe.measures.ablation_delta import AblationDelta
from mhprobe.measures.confidence import Confidence
from mhprobe.measures.entropy import Entropy
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.measures.token_kinds import TokenKinds
from models import make_loud, tiny_swin, tiny_vit


class Whole(L.LightningModule):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.description = {"backbone": {"name": "tiny"}, "class_names": list("abcde")}

    def forward(self, images):
        return self.backbone(images)


@pytest.fixture
def made(tmp_path):
    def make(build=tiny_vit, twin=True, loud=0.2):
        backbone = build()
        make_loud(backbone, loud)
        layout = mhprobe.attach(backbone).layout
        noise = Noise((40, 30), 5, 32)
        data = ImageData(noise, 8, eval_batch_size=16, cache_dir=tmp_path, val_fraction=0.5)
        data.prepare_data()
        data.setup("test")
        size = backbone.patch_embed.img_size
        data.spec = mhprobe.data.base.InputSpec(tuple(size))
        kinds = (Confidence, Entropy, TokenKinds, GateImportance, AblationDelta)
        measures = {each.name: each for each in (kind(layout) for kind in kinds)}

        def control():
            other = build()
            mhprobe.attach(other)
            return other.eval()

        return Measured(
            Whole(backbone).eval(),
            data,
            measures={**measures, "rarity": UserError("it does not fit.")},
            options={name: {"_target_": f"{type(each).__module__}.{name}"} for name, each in measures.items()},
            wanted=["entropy", "confidence", "token_kinds"],
            specs={"importance": CurveSpec("importance", "head", ByScore(GateImportance))},
            maps={},
            of_maps=10,
            folder=tmp_path / "measured",
            cache=tmp_path / "orders",
            control=control if twin else None,
            of_control=12,
        )

    return make


def test_what_is_wanted_shares_a_pass_and_is_not_measured_twice(made, monkeypatch):
    passes = []
    whole = room.measure

    def counted(model, group, **rest):
        passes.append(list(group))
        return whole(model, group, **rest)

    monkeypatch.setattr(room, "measure", counted)
    evidence = made()
    shares = evidence.columns("entropy")["share"]
    evidence.columns("confidence"), evidence.columns("entropy"), evidence.columns("ablation_delta")
    assert passes == [["entropy", "confidence", "token_kinds"], ["ablation_delta"]]
    again = made()  # another run in the same folder
    assert torch.equal(again.columns("entropy")["share"], shares) and len(passes) == 2
    assert not torch.equal(again.control("entropy")["share"], shares) and len(passes) == 3
    assert int(again.control("entropy")["images"]) == 12 and int(again.columns("entropy")["images"]) == 30


def test_columns_of_other_weights_are_measured_anew(made):
    first = made().columns("entropy")["share"]
    other = made(loud=0.3)
    assert not torch.equal(other.columns("entropy")["share"], first)


def test_a_network_that_guesses_has_no_accuracy_to_lose(made):
    evidence = made()
    for question in (lambda: evidence.path("importance"), lambda: evidence.right(torch.zeros(1, 8, dtype=torch.bool))):
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
    ],
)
def test_a_claim_that_cannot_be_asked_says_why_and_is_counted(made, build, claim, reason):
    verdicts = ask(chosen([claim, "entropy_falls_with_depth"]), made(build))
    assert set(verdicts) == {claim, "entropy_falls_with_depth"}
    assert verdicts[claim].word == "not applicable" and reason in verdicts[claim].reason
    assert verdicts["entropy_falls_with_depth"].word != "not applicable"


def test_a_measure_that_does_not_fit_is_refused_with_its_reason(made):
    with pytest.raises(UserError, match="it does not fit"):
        made().columns("rarity")
