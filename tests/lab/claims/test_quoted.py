"""On a paper's figure its claims are quoted under the caption, with their verdicts for this network."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from laws import LAWS

import mhprobe.study
import runs
from mhprobe.errors import UserError
from mhprobe.framework.questions.masking import Masking
from mhprobe.framework.questions.plan import Question
from mhprobe.lab.claims.parts.asking import with_verdicts
from mhprobe.lab.claims.parts.claim import all_claims
from mhprobe.lab.claims.parts.evidence import Evidence
from mhprobe.lab.claims.parts.judge import judge
from mhprobe.report.result import Result
from mhprobe.report.runs.run import read_run

QUOTED = {name: claim for name, claim in all_claims().items() if claim.figure}
SMALL = (
    *(
        "+experiment=digits_vit",
        "backbone.embed_dim=24",
        "backbone.depth=4",
        "backbone.num_heads=3",
        "weights=random",
    ),
    *("data.limit_train=64", "data.limit_val=20", "data.limit_test=40", "trainer.accelerator=cpu"),
    *("trainer.precision=32-true", "+paper=byun_kim", "figures=[table_1,8]", "control=null"),
)


class Asked(Evidence):
    """Evidence of nothing, which remembers the curves that are asked for."""

    def __init__(self):
        self.curves = set()

    def columns(self, name):
        return {}

    def path(self, name):
        self.curves.add(name)
        masks = torch.ones(7, 6).tril(-1).bool()
        return torch.stack([masks, masks.flip(1)] if name == "random" else [masks])

    def right(self, masks):
        return torch.rand(len(masks), 20) < 0.5

    def chosen(self, masks):
        return torch.rand(3, len(masks))


@functools.cache
def checked(command, *more):
    return runs.checked(command, "+experiment=digits_vit", "weights=random", *more)


@pytest.mark.parametrize("name", sorted(QUOTED))
def test_a_figure_has_what_its_claims_need(name):
    claim, evidence = QUOTED[name], Asked()
    paper, key = claim.figure.split("/")
    of_paper, evidence_of = checked("study", f"+paper={paper}").paper, checked("claims").evidence
    figure = of_paper.figures[key]
    assert figure.elsewhere is None and set(claim.measures) <= set(figure.measure)
    for measure in claim.measures:  # with the options that the claim is judged by elsewhere
        assert of_paper.measure[measure] == evidence_of.measure[measure]
    if not claim.measures:
        claim.estimate(evidence)
        assert evidence.curves and evidence.curves <= set(figure.curves)
        for curve in evidence.curves:
            here, there = (of.masking.curves[curve] for of in (of_paper, evidence_of))
            assert (here.units, here.order["_target_"]) == (there.units, there.order["_target_"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # forty images of noise are few for SVCCA
def test_the_verdict_stands_below_the_caption_on_both_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Evidence, "_refuse_guessing", lambda self: None
    )  # so that masks are evaluated, too
    folder = tmp_path / "run"
    mhprobe.study.run(runs.checked("study", *SMALL, f"cache_dir={tmp_path}"), folder)
    page = (folder / "figures.md").read_text()
    shown = read_run(folder).results
    for key, label in (("table_1", "Table 1"), ("figure_8", "Figure 8")):
        section = page.split(f"## {label}:")[1].split("\n## ")[0]
        captions = {
            entry.caption for entry in shown.values() if entry.part_of == key and entry.caption
        }
        for claim in (claim for claim in QUOTED.values() if claim.figure == f"byun_kim/{key}"):
            verdict = rf'"{re.escape(claim.says)}" Here: (holds|contradicted|too small to matter|cannot be told), '
            number = rf"{verdict}\S+ {claim.margin.unit} \(95 % \S+ to \S+; .*\), of \d+ "
            assert re.search(number, section) and all(
                re.search(number, caption) for caption in captions
            )
        assert re.search(
            r"Look for: .*\n\n\"", section
        )  # below the caption, in a paragraph of its own
    assert "Heads of a block are more alike than chance." in (folder / "report.html").read_text()


def test_a_figure_without_claims_is_left_as_it_is():
    question = Question("figure_1", lambda material: {})
    assert with_verdicts(question, "byun_kim") is question
    assert (
        with_verdicts(dataclasses.replace(question, name="table_1"), "byun_kim").made_from
        != question.made_from
    )


@pytest.mark.parametrize(("select_on", "steps"), [("test", None), ("validation", 2)])
def test_curves_that_are_not_what_the_claim_is_about_are_not_searched_again(select_on, steps):
    masking = Masking({}, Path("nowhere"), select_on=select_on, steps=steps)
    data = SimpleNamespace(sizes={"val": 2, "test": 2})
    material = SimpleNamespace(masking=masking, data=data, layout=None, twin=None)
    results = {"figure_8_curves": Result(caption="Curves.")}
    assert (
        with_verdicts(Question("figure_8", lambda material: results), "byun_kim").ask(material)
        == results
    )


def test_claims_that_are_not_here_count_in_the_correction():
    name, claim = next(iter(all_claims().items()))
    estimate = LAWS[name].draw(3 * claim.margin.size, torch.Generator().manual_seed(0))
    found = {name: claim.estimate(estimate), "other": UserError("no.")}
    claims = {name: claim, "other": claim}
    alone, many = judge(claims, found)[name], judge(claims, found, tests=12)[name]
    assert many.p_holm == pytest.approx(min(1.0, 12 * alone.p)) and alone.p_holm == alone.p
