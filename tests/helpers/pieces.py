"""All commands that compute, tiny, with all members of the groups that they choose from: for other devices.

Commands and members are those that are there.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from unittest.mock import patch

from hydra.utils import get_class, get_method
from omegaconf import DictConfig, OmegaConf

import runs
from mhprobe.framework.run import image_data, launch, members, networks, sections
from mhprobe.lab.claims.parts.evidence import Evidence
from mhprobe.maps.faithfulness import faithfulness
from mhprobe.masking.base import Order
from mhprobe.weights.checkpoint import save_weights

# scenes have masks of objects, which some figures and measures need
FEW = (
    "data=scenes",
    "data.source.size=16",
    "data.source.train=100",
    "data.source.test=20",
    "data.eval_batch_size=20",
)
FEW += (
    "backbone.img_size=16",
    "backbone.patch_size=4",
    "backbone.num_heads=2",
    "trainer.max_epochs=1",
)
FEW += ("data.limit_train=32", "data.limit_val=20", "data.limit_test=20")

# what a figure does again and again asks the same of the device each time
FEWER = {
    "steps": 3,
    "iterations": 2,
    "random_orders": 1,
    "rounds": 2,
    "seconds": 1e-3,
    "batches": [1],
}
SHORTER = {"snapvit": ("prune.order.generations=1",), "learned": ("prune.order.steps=20",)}


def names(group: str) -> list[str]:
    """The members of a group of conf/."""
    return sections.options_of_group(group)


def part(group: str, name: str) -> DictConfig:
    """A member as it is written, with what it begins with: every worker imports this, and Hydra takes its time."""
    file = sections.CONF / group / f"{name}.yaml"
    written = (
        OmegaConf.load(file) if file.is_file() else OmegaConf.create(members.members(group)[name])
    )
    first = [
        base for base in written.pop("defaults", []) if isinstance(base, str) and base != "_self_"
    ]
    return OmegaConf.merge(*(part(group, base) for base in first), written)


def pieces() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(command, overrides); each member is in one of them."""
    for gates in names("gates"):
        target = ("gates.penalty.heads=2",) if gates == "hard_concrete_target" else ()
        yield (
            "train",
            (
                f"gates={gates}",
                "measure=[gate_importance]",
                "masking=none",
                "optim.ema=0.9",
                *target,
            ),
        )
    yield "probe", (f"measure=[{','.join(names('measure'))}]", "probe.control=random_init")
    yield (
        "maps",
        (
            f"maps=[{','.join(names('maps'))}]",
            "images=[0,1]",
            "faithfulness={steps: 2, random_orders: 1}",
        ),
    )
    for masking in names("masking"):
        if not part("masking", masking).curves:  # none has nothing to mask
            continue
        joined = ["+masking/join=redundant_or_inert"] if masking == "orders" else []
        yield "mask", (f"masking={masking}", "masking.steps=2", *joined)
    few = ("weights=weights.safetensors", "prune.images=20")
    yield (
        "prune",
        ("prune=given", "prune.heads=[0]", "prune.fold=mean", "prune.tune_epochs=1", *few),
    )
    for order in names("prune/order"):
        target = part("prune/order", order)._target_
        if ".peer." in target and find_spec("torch_pruning") is None:
            continue
        ordered = issubclass(get_class(target), Order)
        table = (
            ("prune.order.table=scores.csv",)
            if order == "by_table"
            else ("prune.repair.per=weights",)
        )
        table += SHORTER.get(order, ())
        budget = "prune.remove=1" if ordered else "prune.target={flops: .8}"
        yield "prune", ("prune=order", f"prune/order={order}", budget, *table, *few)
    yield (
        "prunebench",
        (
            "budgets=[.8]",
            "methods=[fisher]",
            "seeds=[0]",
            "prune.tune_epochs=1",
            "prune.speed_rounds=1",
            *few,
        ),
    )
    for paper in names("paper"):
        yield "study", (f"+paper={paper}",)
    yield "claims", ("evidence.maps_of=4", "evidence.control_of=20")
    yield "studies.causal", ("causal.steps=3", "causal.start_steps=2")
    yield (
        "studies.voita",
        ("voita.heads=[2]", few[0], "gates.penalty.heads=2", "voita.scratch_epochs=1"),
    )


PIECES = {
    " ".join([command, *overrides[:2]])[:60]: (command, overrides)
    for command, overrides in pieces()
}


def run_piece(name: str, accelerator: str, kept: str, folder: str) -> None:
    """Run one on a device, into ``folder``.

    kept: where decoded images lie. Weights and scores go where it works.
    """
    command, overrides = PIECES[name]
    options = (*FEW, f"trainer.accelerator={accelerator}")
    cfg = runs.config(command, Path(kept), *options, *overrides)
    if "weights=weights.safetensors" in overrides:
        Path("scores.csv").write_text("head,value\n0,4\n1,3\n2,1\n3,2\n")
        fresh = cfg.model_copy(update={"weights": "random", "optim": None})
        model = networks.build_classifier(fresh, image_data.build_images(fresh))
        save_weights(model.backbone, Path("weights.safetensors"), model.description)
    for settings in (cfg, cfg.paper or cfg):
        if "rarity" in (settings.measure or {}):
            settings.measure["rarity"]["codes"] = 8  # so few images have few different patches
        for measure in (settings.measure or {}).values():
            if "null_draws" in measure:
                measure["null_draws"] = 2  # each draw asks the same of the device
    for figure in cfg.paper.figures.values() if cfg.paper else ():
        if figure.panel:
            takes = signature(get_method(figure.panel["_target_"])).parameters
            takes = (
                takes | signature(faithfulness).parameters
                if {"kinds", "options"} <= set(takes)
                else takes
            )
            figure.panel |= {name: fewer for name, fewer in FEWER.items() if name in takes}
    # a network that has learned nothing is asked for the accuracy of masks, too
    with patch.object(Evidence, "_refuse_guessing", lambda self: None):
        launch.module(command).run(cfg, Path(folder))
    for cells in Path(folder).glob("tables/prunebench.csv"):  # a cell that fails costs itself alone
        with cells.open(newline="") as file:
            failed = [
                row["note"]
                for row in csv.DictReader(file)
                if row["method"] in cfg.methods and row["note"]
            ]
        assert failed == []
