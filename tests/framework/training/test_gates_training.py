"""Learned gates through the command: trained from weights, frozen as told, resumed exactly, saved and read back."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from PIL import Image

import mhprobe.lab.papers.voita
import mhprobe.probe
import mhprobe.prune
import mhprobe.train
import runs
from mhprobe.errors import UserError
from mhprobe.framework.run import networks
from mhprobe.gates import gates_of
from mhprobe.weights.checkpoint import load_checkpoint, load_weights
from runs import Command, rows

pytestmark = pytest.mark.slow

# four steps in each of two epochs, at rates that move gates in so few
GATES = [
    *runs.TINY,
    *("masking=none", "measure=[]", "data.batch_size=24", "trainer.precision=32-true"),
    *("gates=hard_concrete", "gates.lr=0.5", "gates.penalty.weight=0.5"),
]


def metrics(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text())


@pytest.fixture(scope="module")
def weights(trained) -> Path:
    return trained.folder / "model.safetensors"


def test_gates_are_learned_from_weights_and_the_files_hold_what_was_tested(weights, tmp_path):
    common = (f"weights={weights}", f"cache_dir={tmp_path / 'cache'}")
    learned, again = tmp_path / "learned", tmp_path / "again"
    mhprobe.train.run(runs.checked("train", *GATES, *common, "gates.keep=4"), learned)

    table, found = rows(learned / "tables" / "gates.csv"), metrics(learned)
    assert list(table[0]) == [
        "head",
        "site",
        "stage",
        "block",
        "index",
        "gate",
        "open",
        "kept",
        "layout",
    ]
    assert sum(int(row["kept"]) for row in table) == found["gates/kept"] == 4
    gate = [float(row["gate"]) for row in table]
    assert min(gate) < 1  # they have moved
    assert found["gates/expected_open"] == pytest.approx(sum(float(row["open"]) for row in table))
    assert 0 <= found["gates/binary_accuracy"] <= 1
    history = rows(learned / "tables" / "gate_history.csv")
    assert [int(row["step"]) for row in history] == list(range(9))
    assert float(history[0]["open"]) > float(history[-1]["open"])
    assert (learned / "figures" / "gate_history.png").stat().st_size > 0

    assert json.loads((learned / "model.json").read_text())["gates"] == pytest.approx(
        gate, abs=1e-7
    )
    for file in (learned / "model.safetensors", learned / "checkpoints" / "last.ckpt"):
        model, _ = load_weights(file)
        assert gates_of(model).values.tolist() == pytest.approx(gate, abs=1e-7)
    mhprobe.probe.run(
        runs.checked(
            "probe",
            *runs.TINY,
            "measure=[]",
            f"weights={learned / 'model.safetensors'}",
            *common[1:],
        ),
        again,
    )
    assert (
        metrics(again)["test/accuracy"] == found["test/accuracy"]
    )  # not that of the best epoch, with all heads open
    assert metrics(again)["test/loss"] == pytest.approx(found["test/loss"], rel=1e-6)

    # pruning takes away what the run decided on, not only gates of exactly 0
    kept = [int(row["kept"]) for row in table]
    assert json.loads((learned / "model.json").read_text())["gates_kept"] == kept
    assert [int(g != 0) for g in gate] != kept
    mhprobe.prune.run(
        runs.checked(
            "prune",
            *runs.TINY,
            f"weights={learned / 'model.safetensors'}",
            *common[1:],
            "prune=given",
            "prune.heads=gates",
        ),
        tmp_path / "pruned",
    )
    assert [
        int(row["kept"]) for row in rows(tmp_path / "pruned" / "tables" / "kept_heads.csv")
    ] == kept
    assert "gates_kept" not in json.loads((tmp_path / "pruned" / "pruned.json").read_text())

    # what was kept is a mask for another run
    masked = tmp_path / "masked"
    mhprobe.probe.run(
        runs.checked(
            "probe", *runs.TINY, "measure=[]", *common, f"gates.mask={learned}/tables/gates.csv"
        ),
        masked,
    )
    assert metrics(masked)["test/loss"] != metrics(again)["test/loss"]


ALL = {"embedding", "attention", "mlp", "classifier", "norms"}


@pytest.mark.parametrize(
    ("frozen", "moves"),
    [
        ("nothing", ALL),
        ("backbone", {"classifier"}),
        ("weights", set()),
        ("[embedding,mlp]", {"attention", "classifier", "norms"}),
        ("[attention,classifier]", {"embedding", "mlp", "norms"}),
    ],
)
def test_what_is_frozen_keeps_its_bits(frozen, moves, weights, tmp_path):
    before, _ = load_weights(weights)
    mhprobe.train.run(
        runs.checked(
            "train", *GATES, f"weights={weights}", f"gates.frozen={frozen}", "trainer.max_epochs=1"
        ),
        tmp_path,
    )
    state = load_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["state_dict"]
    moved = {
        next((part for word, part in NAMED.items() if word in key), "norms")
        for key, value in before.state_dict().items()
        if not torch.equal(state[f"backbone.{key}"], value)
    }
    assert moved == moves
    assert (state["gates.log_alpha"] != 3.0).all()  # the gates move in any case


NAMED = {
    ".attn.": "attention",
    ".mlp.": "mlp",
    "head.": "classifier",
    "_token": "embedding",
    "_embed": "embedding",
}


def test_a_killed_run_ends_with_the_same_gates(weights, tmp_path):
    common = [*GATES, f"weights={weights}", "checkpoint.every_n_steps=1"]
    where = f"ckpt_path={tmp_path}/stopped/checkpoints/last.ckpt"
    whole, stopped, resumed, other = runs.answers(
        [
            Command("train", [*common, "hydra.run.dir=whole"]),
            Command("train", [*common, "hydra.run.dir=stopped"], signal.SIGKILL, 3),
            Command("train", [*common, "hydra.run.dir=resumed", where]),
            Command("train", [*common, "hydra.run.dir=other", "seed=1"]),
        ],
        tmp_path,
    )
    assert (whole.code, stopped.code, resumed.code, other.code) == (0, -signal.SIGKILL, 0, 0), (
        resumed.err
    )
    states = [
        load_checkpoint(tmp_path / name / "checkpoints" / "last.ckpt")["state_dict"]
        for name in ("whole", "resumed", "other")
    ]
    for key, value in states[0].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, states[1][key]), key
    assert not torch.equal(
        states[0]["gates.log_alpha"], states[2]["gates.log_alpha"]
    )  # draws matter
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "resumed")
    files = [
        (tmp_path / name / "tables" / "gate_history.csv").read_bytes()
        for name in ("whole", "resumed")
    ]
    assert files[0] == files[1]


def test_two_processes_learn_gates_together(weights, tmp_path):
    two = (
        "trainer=ddp",
        "trainer.devices=2",
        "trainer.accelerator=cpu",
        "data.batch_size=12",
        "trainer.max_epochs=1",
    )
    result = runs.run(
        "train", *GATES, *two, f"weights={weights}", "hydra.run.dir=two", cwd=tmp_path
    )
    assert result.code == 0, result.err
    assert metrics(tmp_path / "two")["gates/expected_open"] < 5.9


def test_mistakes_are_answered_in_a_line(weights, tmp_path):
    empty, foreign = tmp_path / "empty.csv", tmp_path / "foreign.csv"
    empty.write_text("head,kept\n" + "".join(f"{head},0\n" for head in range(6)))
    foreign.write_text("head,kept\n0,1\n")
    mistakes = {
        "nearest is 6": ["gates=hard_concrete_target", "gates.penalty.heads=7"],
        "above 0, got 0": ["gates.relaxation.beta=0"],
        "gates.mask: no file": ["gates.mask=nowhere.csv"],
        "keeps no head": [f"gates.mask={empty}"],
        "model's 6 heads": [f"gates.mask={foreign}"],
        "nothing is left to train": ["gates=fixed", "gates.frozen=weights"],
        "gates.frozen: Give nothing, backbone, weights, a number of blocks, or a list": [
            "gates.frozen=everything"
        ],
        "attention, mlp, embedding, classifier, got ['mlp', 'wings']": ["gates.frozen=[mlp,wings]"],
        "got []": ["gates.frozen=[]"],
        "wings": ["+gates.relaxation.wings=2"],
    }
    base = [part for part in GATES if not part.startswith(("gates.lr", "gates.penalty"))]
    commands = [
        Command("train", [*base, f"weights={weights}", *more]) for more in mistakes.values()
    ]
    for words, result in zip(mistakes, runs.answers(commands, tmp_path), strict=True):
        assert words in result.answer


def test_voita_compares_pruned_with_scratch(weights, tmp_path, monkeypatch):
    def chosen(*_):
        raise AssertionError(
            "one arm is tested at its best epoch on validation, the other at its last"
        )

    monkeypatch.setattr(networks, "load_best", chosen)
    cfg = runs.checked(
        "studies.voita",
        *runs.TINY,
        f"weights={weights}",
        "gates=hard_concrete_target",
        "gates.lr=0.5",
        "voita.heads=[4,2]",
        "+voita.scratch_optim.lr=2e-3",
        "trainer.max_epochs=1",
    )
    mhprobe.lab.papers.voita.run(cfg, tmp_path)
    for arm in ("heads_4_pruned", "heads_4_scratch"):
        tested = mhprobe.load(tmp_path / arm / "model.safetensors").state_dict()
        last = load_checkpoint(tmp_path / arm / "checkpoints" / "last.ckpt")["state_dict"]
        assert all(torch.equal(value, last[f"backbone.{key}"]) for key, value in tested.items())
    table = rows(tmp_path / "tables" / "voita.csv")
    assert [row["heads"] for row in table] == ["6", "4", "2"]
    assert [row["scratch_epochs"] for row in table] == ["2", "3", "3"]  # weights took 2, gates 1
    assert table[0]["p"] == table[0]["p_holm"] == ""  # of the whole model there is one only
    for row in table[1:]:
        assert float(row["delta"]) == pytest.approx(
            float(row["scratch"]) - float(row["pruned"]), abs=1e-6
        )
        assert float(row["delta_low"]) <= float(row["delta"]) <= float(row["delta_high"])
        assert 0 < float(row["p"]) <= float(row["p_holm"]) <= 1
    for row in table:  # of each kind, how many heads are left, as in the paper's table
        blocks = [int(row[f"block {block}"]) for block in (0, 1)]
        assert sum(blocks) == int(row["stage 0"]) == int(row["heads"])
        arm = tmp_path / f"heads_{row['heads']}_pruned" / "tables" / "gates.csv"
        if row["heads"] != "6":
            assert blocks[0] == sum(
                kept["kept"] == "1" for kept in rows(arm) if kept["block"] == "0"
            )
    assert (tmp_path / "heads_4_pruned" / "figures" / "gate_density.png").is_file()
    for figure in ("voita", "sweep", "survivors"):
        with Image.open(tmp_path / "figures" / f"{figure}.png") as drawn:
            assert drawn.text["Source"].startswith("python -m mhprobe.studies.voita"), figure
    assert [row["kept"] for row in rows(tmp_path / "tables" / "sweep.csv")] == ["2", "4"]
    for size in (4, 2):
        kept = [
            int(row["kept"])
            for row in rows(tmp_path / f"heads_{size}_pruned" / "tables" / "gates.csv")
        ]
        model, description = load_weights(tmp_path / f"heads_{size}_scratch" / "model.safetensors")
        assert gates_of(model).values.tolist() == kept and sum(kept) == size  # the same heads ...
        theirs = load_weights(tmp_path / f"heads_{size}_pruned" / "model.safetensors")[0]
        assert not torch.equal(
            model.blocks[0].attn.qkv.weight, theirs.blocks[0].attn.qkv.weight
        )  # ... of new weights
        assert description["made"]["epochs"] == 3

    with pytest.raises(UserError, match="hard_concrete_target"):
        mhprobe.lab.papers.voita.run(
            runs.checked("studies.voita", *GATES, f"weights={weights}"), tmp_path
        )
    with pytest.raises(UserError, match="voita: weights: expected the network to prune"):
        mhprobe.lab.papers.voita.run(runs.checked("studies.voita", *GATES), tmp_path)
