"""Contract of options: each of every command is used by what it reaches, refused, or harmless with a reason.

A new option that nothing uses is in none of the tables, and fails here.
"""

from __future__ import annotations

import ast
import contextlib
import fnmatch
import functools
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import timm
from hydra.utils import get_object
from omegaconf import OmegaConf
from test_needed import BENCH, LISTED, ORDERED

import mhprobe
import runs
from mhprobe.errors import UserError
from mhprobe.framework.run import constructors, sections
from mhprobe.framework.run.construct import construct
from mhprobe.framework.run.launch import module
from mhprobe.framework.run.needed import refuse_unneeded
from mhprobe.io.nested import leaves
from mhprobe.measures.base import fitted

PACKAGE = Path(mhprobe.__file__).parent
NEW = ("weights=random",)
COMPOSED = {  # what each command's configuration is made of: the default, and sections that are off there
    "claims": [NEW],
    "fetch": [()],
    "maps": [NEW],
    "mask": [NEW, (*NEW, "masking=orders", "+masking/join=redundant_or_inert", "score=kl")],
    "probe": [NEW, (*NEW, "measure=[svcca,gate_importance]", "+data@probe.also_on=scenes")],
    "prune": [LISTED, ORDERED, (*ORDERED, "prune.tune_epochs=1", "prune.repair.per=head")],
    "prunebench": [BENCH, (*BENCH, "prune.speed=true", "prune.tune_epochs=1")],
    "studies.causal": [NEW],
    "studies.voita": [NEW],
    "study": [(*NEW, "+paper=byun_kim")],
    "train": [
        (),
        ("gates=hard_concrete_target", "optim.teacher=a.safetensors", "ckpt_path=last"),
        ("gates=l1", "data=image_folder", "+callback=early_stopping", "logger=wandb"),
    ],
}
ANYWHERE = {  # options that change no number of a result, and why they are taken all the same
    "out": "a folder",
    "name": "a folder's name",
    "cache_dir": "a folder",
    "data.cache_dir": "a folder",
    "*.download_dir": "a folder",
    "cells": "a folder",
    "to": "a folder",
    "style": "the width of figures",
    "progress": "what the screen shows",
    "verbose": "what the screen shows",
    "report.live": "one page more",
    "seed": "the number of all random draws that have none of their own",
    "weights": "the network",
    "data.num_workers": "speed",
    "data.eval_batch_size": "memory",
    "data.limit_*": "names the images of a quick run, the same words for each command",
    "backbone.fused_attn": "speed",
    "logger.*": "where results are copied to",
    "compile": "speed",
    "paper.name": "a word on the page",
    "paper.source": "a word on the page",
    "paper.figures.*": "of the paper's figures: test_experiments makes them",
    "*._target_": "the part itself",
    "*._partial_": "how Hydra builds it",
}
USED = {  # option -> the module, below src/mhprobe, that uses its value
    "backbone.checkpoint": "framework/run/networks.py",
    "backbone.prefix": "weights/foreign.py",
    "backbone.leave_out": "weights/foreign.py",
    "backbone.mean": "weights/normalisation.py",
    "backbone.std": "weights/normalisation.py",
    "backbone.num_classes": "backbones/__init__.py",
    "backbone.pretrained": "backbones/__init__.py",
    "budgets": "lab/prunebench/cells.py",
    "methods": "lab/prunebench/cells.py",
    "seeds": "lab/prunebench/cells.py",
    "causal.*": "lab/papers/causal_gates.py",
    "checkpoint.every_n_steps": "framework/run/trainers.py",
    "callback": "framework/run/trainers.py",
    "ckpt_path": "framework/run/resume.py",
    "resume.allow": "framework/run/resume.py",
    "claims": "claims.py",
    "control": "framework/run/questions.py",
    "evidence.masking.fill": "framework/run/questions.py",
    "evidence.masking.curves.*": "masking/parts/curve.py",
    "evidence.runs.training": "lab/claims/importance.py",
    "evidence.runs.wider": "lab/claims/likeness.py",
    "evidence.runs.*": "lab/claims/removal.py",
    "evidence.*": "claims.py",
    "faithfulness.*": "maps/faithfulness.py",
    "images": "maps/__main__.py",
    "figures": "study.py",
    "gates.mask": "framework/run/networks.py",
    "gates.penalty": "framework/run/networks.py",
    "gates.*": "framework/run/networks.py",
    "masking.fill": "framework/run/questions.py",
    "paper.masking.fill": "framework/run/questions.py",
    "masking.curves.*": "masking/parts/curve.py",
    "paper.masking.curves.*": "masking/parts/curve.py",
    "masking.*": "framework/questions/masking.py",
    "paper.masking.*": "framework/questions/masking.py",
    "optim.ema": "framework/run/trainers.py",
    "optim.teacher": "framework/run/networks.py",
    "optim.teacher_sees": "framework/run/networks.py",
    "optim.*": "framework/training/classifier.py",
    "probe.every_n_*": "framework/run/trainers.py",
    "probe.*": "framework/run/questions.py",
    "question": "framework/run/questions.py",
    "score": "framework/run/networks.py",
    "voita.*": "lab/papers/voita.py",
    "prune.guarantee.*": "stats/promise.py",
    "prune.repair.*": "surgery/repair.py",
    "prune.heads": "pruning/given.py",
    "prune.curve": "pruning/given.py",
    "prune.step": "pruning/given.py",
    "prune.threshold": "pruning/given.py",
    "prune.remove": "pruning/on_path.py",
    "prune.target": "pruning/on_path.py",
    "prune.units": "pruning/on_path.py",
    "prune.exclude_layers": "pruning/on_path.py",
    "prune.min_heads_per_layer": "pruning/on_path.py",
    "prune.rescale": "pruning/on_path.py",
    "prune.latency_table": "pruning/on_path.py",
    "prune.*": "framework/run/pruning.py",
}


@functools.cache
def names_read(module: Path) -> frozenset[str]:
    """Names and attributes that a module reads, and the parameters that it hands on by their names."""
    nodes = [*ast.walk(ast.parse(module.read_text()))]
    loaded = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    loaded |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
    return frozenset(
        loaded
        | {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    )


def first(patterns: Mapping[str, str], key: str) -> str | None:
    return next((of for pattern, of in patterns.items() if fnmatch.fnmatchcase(key, pattern)), None)


def part_of(plain: Any, path: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]] | None:
    """The innermost part of ours that an option is inside of, and the option's place in it."""
    found, part = None, plain
    for depth, name in enumerate(path):
        if isinstance(part, dict) and str(part.get("_target_", "")).startswith("mhprobe."):
            found = part, path[depth:]
        part = part[name]
    return found


def used_by_part(part: dict[str, Any], option: str) -> bool:
    """Whether the class of a part, or a module that it stands on, reads an option of it."""
    target = part["_target_"]
    made = get_object(target)
    own = inspect.signature(made).parameters
    if option not in {*constructors.defaults_of(target), *own}:
        # timm refuses what it does not know
        return target.startswith("mhprobe.backbones")
    classes = [made, *(inspect.getmro(made) if inspect.isclass(made) else ())]
    ours = {of.__module__ for of in classes if of.__module__.startswith("mhprobe")}
    return any(option in names_read(Path(inspect.getfile(sys.modules[name]))) for name in ours)


def unclassed(command: str, made_of: tuple[str, ...]) -> Iterator[str]:
    """The options of a composed configuration that nothing uses, refuses or excuses."""
    plain = OmegaConf.to_container(runs.composed(command, *made_of), resolve=False)
    checked = runs.checked(command, *made_of)
    for path, value in leaves(plain):
        key = ".".join(path)
        if first(ANYWHERE, key) or refused(checked, key, value):
            continue
        if part := part_of(plain, path):
            if not used_by_part(part[0], part[1][0]):
                yield key
        elif path[0] == "trainer":
            if path[-1] not in inspect.signature(L.Trainer).parameters:
                yield f"{key}, which Lightning has not"
        elif module := first(USED, key):
            if path[-1] not in names_read(PACKAGE / module):
                yield f"{key}, which {module} does not read"
        else:
            yield key


def refused(checked: Any, key: str, value: Any) -> bool:
    said = json.dumps(value) if isinstance(value, bool | int | float) else "1"
    try:
        refuse_unneeded(
            checked, [f"{key}={said}"], needs=getattr(module(checked.command), "needs", None)
        )
    except UserError as error:
        assert str(error).startswith(f"{key}: does nothing here: ") and "leave" in str(error)
        return True
    return False


ROOMS = ("mhprobe.measures", "mhprobe.maps", "mhprobe.masking", "mhprobe.gates", "mhprobe.pruning")
SIZES = dict(img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=4)
CASES = [(command, made_of) for command, several in COMPOSED.items() for made_of in several]


def test_every_command_is_here():
    assert set(COMPOSED) == set(sections.commands_of_conf())


@pytest.mark.parametrize(("command", "made_of"), CASES)
def test_every_option_is_used_refused_or_harmless(command, made_of):
    assert [*unclassed(command, made_of)] == []


def test_an_option_without_a_use_is_seen(monkeypatch):
    """Negative control: of a section, of a part, and of a part that hands its options on."""
    with_new = (*(f"+{key}.unheard=3" for key in WITHOUT_USE),)
    plain = runs.composed("train", "measure=[entropy]", *with_new)
    monkeypatch.setattr(runs, "composed", lambda *_: plain)
    monkeypatch.setattr(runs, "checked", lambda *_: CHECKED)
    seen = [*unclassed("train", ())]
    assert {key.split(",")[0] for key in seen} == {f"{key}.unheard" for key in WITHOUT_USE}


WITHOUT_USE = ("trainer", "measure.entropy", "masking", "search", "data", "optim")
CHECKED = runs.checked("train", "measure=[entropy]")


def other(value: Any) -> Any:
    """Another value of the same kind, of which nearly every range has one."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2 + 0.03


def options_of_parts() -> dict[tuple[str, str], dict[str, Any]]:
    """A part for each numeric option of each class, of all composed configurations."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for command, made_of in CASES:
        plain = OmegaConf.to_container(runs.composed(command, *made_of), resolve=True)
        for path, value in leaves(plain):
            here = part_of(plain, path)
            if here and len(here[1]) == 1 and type(value) in (bool, int, float):
                found.setdefault((here[0]["_target_"], path[-1]), here[0])
    return found


def state(made: Any, layout: Any) -> str:
    """What a part holds, in text."""
    if isinstance(made, functools.partial) and made.func.__module__.startswith("mhprobe.measures"):
        made = fitted(made, layout)
    if isinstance(made, functools.partial):
        return repr(sorted(made.keywords.items()))
    return repr(sorted((name, str(value)) for name, value in vars(made).items()))


def test_another_value_makes_another_part_or_is_refused():
    layout = mhprobe.attach(timm.create_model("vit_tiny_patch16_224", **SIZES)).layout
    same = []
    parts = options_of_parts()
    for (target, option), part in parts.items():
        if not target.startswith(ROOMS):
            continue
        with contextlib.suppress(UserError):  # of two options that go together
            made = construct(part, "part")
            changed = construct({**part, option: other(part[option])}, "part")
            if state(made, layout) == state(changed, layout):
                same.append(f"{target}: {option}")
    assert same == [] and len(parts) > 100
