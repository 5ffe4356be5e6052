"""A run that was killed goes on where it stopped: what it measured, and kept, is not measured again."""

from __future__ import annotations

import re
from pathlib import Path

import lightning as L
import pytest

import mhprobe.maps.__main__
import mhprobe.mask
import mhprobe.probe
import mhprobe.prune
import mhprobe.studies.causal
import runs
from mhprobe.io.tensors import unpacked
from mhprobe.lab.papers import causal_gates
from mhprobe.maps.attention import Attention
from mhprobe.maps.rollout import Rollout
from mhprobe.masking.parts.cache import MaskCache
from mhprobe.masking.redundant_or_inert import RedundantOrInert
from mhprobe.measures.fisher import Fisher
from mhprobe.measures.gate_importance import GateImportance
from mhprobe.measures.one_head import OneHead
from mhprobe.measures.svcca import SVCCA
from mhprobe.pruning import rounds

FEW = ("data.limit_train=40", "data.limit_val=20", "data.limit_test=20", "data.eval_batch_size=10")


class Killed(Exception):
    """A process that is killed says nothing more."""


def config(command: str, folder: Path, *overrides: str):
    return runs.config(command, folder, *FEW, *overrides)


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "tables").glob("*.csv")}


def killed_in(monkeypatch, place, name: str, when=lambda *args: True) -> None:
    """Kill the run when it calls this."""
    whole = getattr(place, name)

    def dies(*args, **kwargs):
        if when(*args):
            raise Killed
        return whole(*args, **kwargs)

    monkeypatch.setattr(place, name, dies)


def test_a_probe_measures_no_pass_twice(tmp_path, monkeypatch):
    told = ("measure=[gate_importance,fisher,one_head]", "probe.control=random_init")
    mhprobe.probe.run(config("probe", tmp_path / "other", *told), tmp_path / "whole")
    with monkeypatch.context() as dying, pytest.raises(Killed):
        killed_in(dying, OneHead, "select")  # the second pass, of measures that mask heads
        mhprobe.probe.run(config("probe", tmp_path / "cache", *told), tmp_path / "killed")
    assert set(tables(tmp_path / "killed")) < set(
        tables(tmp_path / "whole")
    )  # what was answered is there
    for measure in (GateImportance, Fisher):
        killed_in(monkeypatch, measure, "update")
    mhprobe.probe.run(config("probe", tmp_path / "cache", *told), tmp_path / "again")
    assert tables(tmp_path / "again") == tables(tmp_path / "whole")
    with pytest.raises(Killed):  # negative control: of other images it is measured
        mhprobe.probe.run(
            config("probe", tmp_path / "cache", *told, "seed=1"), tmp_path / "other_run"
        )


def test_what_is_kept_is_of_these_weights_images_and_options(tmp_path, monkeypatch):
    told = ("measure=[gate_importance]", "probe.top_k=null")
    mhprobe.probe.run(config("probe", tmp_path, *told), tmp_path / "run")
    killed_in(monkeypatch, GateImportance, "update")
    mhprobe.probe.run(config("probe", tmp_path, *told), tmp_path / "same")
    for number, other in enumerate(
        (
            "seed=1",
            "data.limit_test=19",
            "measure.gate_importance.normalize=layer_l2",
            "probe.target=top1",
        )
    ):
        with pytest.raises(Killed):
            mhprobe.probe.run(config("probe", tmp_path, *told, other), tmp_path / f"run_{number}")


def test_damaged_columns_are_measured_again(tmp_path):
    told = ("measure=[gate_importance]", "probe.top_k=null")
    mhprobe.probe.run(config("probe", tmp_path, *told), tmp_path / "run")
    (kept,) = (tmp_path / "measured").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert unpacked(kept) is None
    mhprobe.probe.run(config("probe", tmp_path, *told), tmp_path / "again")
    assert tables(tmp_path / "again") == tables(tmp_path / "run") and unpacked(kept) is not None


def test_masking_curves_score_no_mask_twice(tmp_path, monkeypatch):
    scored = []
    told = ("masking=six_curves", "masking.steps=2")
    save = MaskCache.save

    def saving(self, masks, *args):
        save(self, masks, *args)
        scored.append(len(masks))
        if len(scored) == 3 and dying:
            raise Killed

    monkeypatch.setattr(MaskCache, "save", saving)
    dying = False
    mhprobe.mask.run(config("mask", tmp_path / "other", *told), tmp_path / "whole")
    whole, dying = sum(scored), True
    scored.clear()
    with pytest.raises(Killed):
        mhprobe.mask.run(config("mask", tmp_path / "cache", *told), tmp_path / "killed")
    dying = False
    mhprobe.mask.run(config("mask", tmp_path / "cache", *told), tmp_path / "again")
    assert sum(scored) == whole > scored[0]
    assert tables(tmp_path / "again") == tables(tmp_path / "whole")


def test_what_masked_heads_are_is_measured_once(tmp_path, monkeypatch):
    told = ("masking=six_curves", "+masking/join=redundant_or_inert", "masking.steps=2")
    mhprobe.mask.run(config("mask", tmp_path / "other", *told), tmp_path / "whole")
    with monkeypatch.context() as dying, pytest.raises(Killed):
        killed_in(dying, RedundantOrInert, "answer")
        mhprobe.mask.run(config("mask", tmp_path / "cache", *told), tmp_path / "killed")
    killed_in(monkeypatch, SVCCA, "update")
    mhprobe.mask.run(config("mask", tmp_path / "cache", *told), tmp_path / "again")
    assert tables(tmp_path / "again") == tables(tmp_path / "whole")
    with pytest.raises(Killed):  # negative control: other options of a measure
        other = "masking.join.similar.svcca.null_draws=19"
        mhprobe.mask.run(config("mask", tmp_path / "cache", *told, other), tmp_path / "other_run")


def test_a_fit_of_causal_gates_is_made_once(tmp_path, monkeypatch):
    told = ("causal.steps=3", "causal.start_steps=2")
    fits = []
    fit = causal_gates._fit

    def counted(*args):
        fits.append(args[3])  # the price
        if dying and len(fits) == 3:
            raise Killed
        return fit(*args)

    monkeypatch.setattr(causal_gates, "_fit", counted)
    dying = False
    mhprobe.studies.causal.run(
        config("studies.causal", tmp_path / "other", *told), tmp_path / "whole"
    )
    fits.clear()
    dying = True
    with pytest.raises(Killed):
        mhprobe.studies.causal.run(
            config("studies.causal", tmp_path / "cache", *told), tmp_path / "killed"
        )
    fits.clear()
    mhprobe.studies.causal.run(
        config("studies.causal", tmp_path / "cache", *told), tmp_path / "again"
    )
    assert fits == [-0.002]  # the last one alone
    assert tables(tmp_path / "again") == tables(tmp_path / "whole")


def test_a_kind_of_map_is_made_once(tmp_path, monkeypatch):
    told = (
        "maps=[attention,rollout]",
        "images=[3,1]",
        "faithfulness.steps=2",
        "faithfulness.random_orders=1",
    )
    mhprobe.maps.__main__.run(config("maps", tmp_path / "other", *told), tmp_path / "whole")
    with monkeypatch.context() as dying, pytest.raises(Killed):
        killed_in(dying, Rollout, "__call__")
        mhprobe.maps.__main__.run(config("maps", tmp_path / "cache", *told), tmp_path / "killed")
    killed_in(monkeypatch, Attention, "__call__")
    mhprobe.maps.__main__.run(config("maps", tmp_path / "cache", *told), tmp_path / "again")
    assert tables(tmp_path / "again") == tables(tmp_path / "whole")


def test_a_pruning_chooses_and_tunes_no_round_twice(tmp_path, monkeypatch, capsys):
    told = (
        "prune=order",
        "prune/order=hurt_most",
        "prune.remove=2",
        "prune.rounds=2",
        "prune.tune_epochs=1",
    )
    told = (
        *told,
        "weights=random",
        "optim.warmup_epochs=0",
        "prune.images=20",
        "masking=none",
        "measure=[]",
    )
    asked = []
    evaluate, fit = MaskCache.save, L.Trainer.fit
    monkeypatch.setattr(MaskCache, "save", lambda *args: asked.append("masks") or evaluate(*args))
    monkeypatch.setattr(
        L.Trainer, "fit", lambda *args, **options: asked.append("fit") or fit(*args, **options)
    )

    def kept(folder: Path) -> tuple[bytes, ...]:
        return tuple(
            (tmp_path / folder / name).read_bytes()
            for name in ("pruned.safetensors", "tables/pruning.csv")
        )

    mhprobe.prune.run(config("prune", tmp_path / "other", *told), tmp_path / "whole")
    assert asked.count("fit") == 2
    with monkeypatch.context() as dying, pytest.raises(Killed):
        killed_in(
            dying, rounds, "_remove", lambda *args: args[5] == 2
        )  # the second round's heads are chosen
        mhprobe.prune.run(config("prune", tmp_path / "cache", *told), tmp_path / "killed")
    asked.clear()
    mhprobe.prune.run(config("prune", tmp_path / "cache", *told), tmp_path / "again")
    assert asked == ["fit"]  # no mask, and the second round's tuning alone
    assert re.findall("round (.): was tuned before", capsys.readouterr().out) == ["1"]
    assert kept("again") == kept("whole")
    mhprobe.prune.run(config("prune", tmp_path / "cache", *told, "seed=1"), tmp_path / "other_run")
    assert asked.count("fit") == 3 and "masks" in asked  # negative control: other images
