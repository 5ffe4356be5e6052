"""What is typed on the commands that look into trained weights, and gives no answer, is refused in one line.

Nothing is left of a run that was refused: no folder, no file of a logger.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import runs
from mhprobe import train
from mhprobe.errors import UserError
from mhprobe.framework.run import jobs, schema, trainers
from mhprobe.framework.run.composing import prepared
from mhprobe.framework.run.construct import construct
from mhprobe.io.options import Parser
from mhprobe.masking.parts.units import targets_of

SIZES = (*runs.TINY, "weights=random", "progress=lines")
ORDERED = ("prune=order", "prune.remove=2")
BY_SCORE = "masking.curves.importance.order"
REFUSED = {  # (command, words) -> the beginning of the answer
    ("mask", ("masking.step=99",)): r"masking\.step: steps 0 to \d exist, got 99",
    ("mask", ("masking.steps=99",)): r"masking\.steps: steps 0 to \d exist, got 99",
    ("mask", ("masking=[]",)): r"masking: expected one of none, orders, .*, got \[\]",
    ("mask", ("~masking",)): r"masking: is missing",
    ("mask", ("masking.curves=[]",)): r"Error merging .* Cannot merge DictConfig with ListConfig",
    ("mask", ("masking=single_head",)): r".*'masking/single_head'\. Did you mean single_heads\?",
    ("mask", ("~masking.curves.rndom",)): r".*did you mean random\?",
    ("mask", ("masking/join=redundant_or_inert",)): r"masking/join=.* Write \+masking/join=",
    ("mask", ("score=5",)): r"score: expected one of auto, .*, got 5\.$",
    ("mask", ("trainer.accelerator=tpu",)): r"trainer: .*torch_xla",
    ("mask", ("out=null",)): r"out: Input should be a valid string, got None",
    ("mask", ("out=''",)): r"out: expected a name, got ''",
    ("mask", ("name='  '",)): r"name: expected a name, got ' '",
    ("mask", ("name=/there",)): r"name: is a folder below out",
    ("mask", (f"{BY_SCORE}._target_=5",)): rf"{BY_SCORE}: Expected a callable target, got '5'",
    ("mask", ("masking.curves.random.units=heads",)): r"masking units: expected one of",
    (
        "mask",
        ("+logger.csv.offline=true",),
    ): r"logger\.csv\.offline: no such option; csv_logger has",
    ("mask", ("+masking.curves.random.target={heads:2.5}",)): r".*a whole number, got 2\.5",
    ("prune", ("prune=[]",)): r"prune: expected one of given, none, order, got \[\]",
    ("prune", ("~prune",)): r"prune: is missing",
    ("prune", ("prune/order=fisher",)): r"prune/order=fisher: prune=order has it",
    ("prune", (*ORDERED, "prune.target={flops:.8}")): r"prune\.remove: .*Give one of the two",
    (
        "prune",
        ("prune=order", "prune.target={heads:4,flops:.5}"),
    ): r"prune\.target: expected one of",
    ("prune", ("prune=order", "prune.remove=99")): r"prune\.remove: of 6 heads 1 to 5 can go",
    ("prune", ("prune=order", "prune.remove=5", "prune.exclude_layers=[0]")): (
        r"prune\.remove: 5 heads can't go: .*exclude_layers.* 3 is left\. Ask for fewer"
    ),
    ("prune", (*ORDERED, "trainer.devices=2", "trainer.accelerator=cpu")): r"prune: runs in one",
    ("probe", ("~data",)): r"data\.limit_train: is taken away by ~data",
    ("probe", ("measure={entropy:{}}",)): r"measure: is chosen by name, expected one of",
    ("probe", ("measure=[entropy,entropie]",)): r".*Did you mean entropy\?",
    ("maps", ("images=[true]",)): r"images\.0: Input should be a valid integer",
    ("maps", ("images=[0,0]",)): r"images: expected each image once, got 0 several times",
    ("maps", ("maps=[attention]", "maps.attention.heads=[]")): r".*heads: expected some, each once",
    ("maps", ("maps=[attention]", "maps.attention.blocks=[0,0]")): r".*blocks: expected some, each",
    ("maps", ("faithfulness=null", "faithfulness.steps=3")): r".*taken away by faithfulness=null",
    ("study", ("paper=michel",)): r"paper: is added, so that it takes a \+",
    ("study", ("+paper=[michel,clark]",)): r"paper: expected one of",
    ("study", ("+paper=michel", "figures=[]")): r"figures: expected names of figures, or null",
    ("study", ("+paper=michel", "figures=[tabel_1]")): r"figures: did you mean table_1\?",
    ("study", ("+paper=michel", "figures=[1]", "paper.masking.step=99")): r"paper\.masking\.step: ",
    ("claims", ("+evidence.runs.nope=docs",)): r"evidence\.runs\.nope: Input should be 'training'",
    ("claims", ("+data@evidence.second=scenes",)): r"evidence\.second: .*same classes",
    ("claims", ("claims=[]",)): r"claims: expected the names of claims",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("typed")


@pytest.mark.parametrize(("command", "words"), REFUSED)
def test_what_gives_no_answer_is_refused_in_one_line_and_leaves_nothing(place, command, words):
    told = [word for word in SIZES if word.split("=")[0] not in {w.split("=")[0] for w in words}]
    typed = [*told, f"cache_dir={place.parent}/cache", *words]
    (result,) = runs.answers([runs.Command(command, typed)], place)
    assert re.match(f"mhprobe: {REFUSED[command, words]}", result.answer)
    assert list(place.iterdir()) == []


def test_what_is_right_is_done_and_kept(place, tmp_path):
    """Negative control of the above: a run leaves its folder, with the loggers' files."""
    typed = [*SIZES, f"cache_dir={place.parent}/cache", "masking.step=1"]
    (result,) = runs.answers([runs.Command("mask", typed)], tmp_path)
    assert result.code == 0, result.err
    assert [*tmp_path.glob("outputs/*/*/logs/version_0/hparams.yaml")]


def test_a_study_or_claims_leave_the_folder_that_was_there(place, tmp_path):
    """Negative control: only a folder that the refused run itself has made goes."""
    kept = tmp_path / "outputs" / "claims" / "untrained" / "mine.txt"
    kept.parent.mkdir(parents=True)
    kept.touch()
    typed = [*SIZES, f"cache_dir={place.parent}/cache", "claims=[]"]
    (result,) = runs.answers([runs.Command("claims", typed)], tmp_path)
    assert "claims: expected" in result.answer and kept.exists()


SWEPT = {
    "seed=glob(*)": "gives no value",
    "measure=glob(zz*)": "gives no value",
    "seed=range(3,1)": "gives no value",
    "seed=range(0,1,0)": r"seed=range\(0,1,0\): range",
    "seed=0,1,0": "each value once, got 0 several times",
}


@pytest.mark.parametrize("word", SWEPT)
def test_a_sweep_without_jobs_or_with_one_twice_is_refused(word):
    with pytest.raises(UserError, match=SWEPT[word]):
        prepared("probe", [word], sweeping=True)


@pytest.mark.parametrize(
    "word",
    ["measure=glob(ent*)", "seed=range(0,3)", "seed=0,1", "seed=3", "optim.lr=interval(0,1)"],
)
def test_a_sweep_with_jobs_is_taken(word):
    """Negative control; an interval has no values to count."""
    assert prepared("train", [word], sweeping=True) == [word]


def test_a_sweep_that_is_refused_before_its_first_job_leaves_no_folder(place):
    typed = ["-m", *SIZES, "measure=entropy,entropie"]
    (result,) = runs.answers([runs.Command("probe", typed)], place)
    assert "entropie" in result.answer and list(place.iterdir()) == []


UNKNOWN = {
    "mhprobe.masking.rndom.Random": r"mhprobe\.masking has no rndom; did you mean random\?",
    "mhprobe.masking.random.Rndom": r"mhprobe\.masking\.random has no Rndom; did you mean Random\?",
    "mhprobe.maskin.random.Random": r"mhprobe has no maskin; did you mean masking\?",
}


@pytest.mark.parametrize("target", UNKNOWN)
def test_a_part_that_is_not_there_is_answered_with_the_nearest(target):
    with pytest.raises(UserError, match=rf"here\._target_: {UNKNOWN[target]}"):
        construct({"_target_": target}, "here")


def test_an_option_that_a_part_has_not_is_answered_with_the_nearest():
    part = {"_target_": "mhprobe.masking.random.Random", "seeds": 3}
    with pytest.raises(UserError, match=r"here\.seeds: no such option; did you mean seed\?"):
        construct(part, "here")
    assert construct({"_target_": part["_target_"], "seed": 3}, "here").seed == 3


def test_a_folder_of_a_run_that_claims_compare_with_has_a_run_in_it(tmp_path):
    runs_in = schema.refuse_absent_folders
    cfg = runs.checked("claims", "weights=random", f"evidence.runs.wider={tmp_path}")
    with pytest.raises(UserError, match=r"evidence\.runs\.wider: .* holds no finished run"):
        runs_in(cfg)
    (tmp_path / "metrics.json").write_text("{}")
    runs_in(cfg)


def test_a_number_of_heads_is_whole():
    layout = type("Layout", (), {"kinds": frozenset({"head"}), "num_heads": 6})()
    with pytest.raises(UserError, match=r"whole number, got 2\.5"):
        targets_of({"heads": 2.5}, layout, {})
    assert targets_of({"heads": 2.0}, layout, {})[0].value == 2


def test_loggers_are_opened_after_all_that_can_refuse(tmp_path, monkeypatch):
    """A server would keep the run of a typing mistake."""
    opened = []
    monkeypatch.setattr(trainers, "open_loggers", lambda *_: opened.append(1))
    from mhprobe.framework.run.questions import answer

    wrong = runs.config("mask", tmp_path, "weights=random", "masking.step=99")
    with pytest.raises(UserError, match=r"masking\.step"):
        answer(wrong, tmp_path / "run")
    assert opened == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [("masking.step=99", r"masking\.step"), ("+trainer.strategy=ddq", r"trainer: .*ddq")],
)
def test_a_training_opens_its_loggers_after_all_that_can_refuse(tmp_path, monkeypatch, wrong, said):
    opened = []
    monkeypatch.setattr(trainers, "open_loggers", lambda *_: opened.append(1))
    with pytest.raises(UserError, match=said):
        train.run(runs.config("train", tmp_path, "masking=three_curves", wrong), tmp_path / "run")
    assert opened == []


def test_only_settings_go_with_a_folder(tmp_path, monkeypatch):
    """Negative control of leaving nothing: a file of another kind keeps the folder."""
    monkeypatch.setattr(jobs, "_made", {})
    folder = Path(jobs.claim_folder(str(tmp_path / "a" / "b" / "c")))
    (folder / "logs" / "version_0").mkdir(parents=True)
    (folder / "logs" / "version_0" / "hparams.yaml").touch()
    (folder / "results.json").touch()
    jobs.forget_unused()
    assert (folder / "results.json").exists()
    (folder / "results.json").unlink()
    jobs.forget_unused()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["here", ""], ["", "here"], ["here", "--out="], ["  ", "here"]])
def test_a_blank_word_of_a_plain_command_is_refused(words):
    """``mhprobe look NET ""`` looked at all photographs of the folder that one stood in."""
    parser = Parser(prog="mhprobe look")
    parser.add_argument("model")
    parser.add_argument("photos", nargs="?")
    parser.add_argument("--out")
    with pytest.raises(UserError, match=r"an empty name: got .* mhprobe look --help"):
        parser.parse_args(words)
    assert parser.parse_args(["here", "there", "--out=x"]).photos == "there"  # negative control
