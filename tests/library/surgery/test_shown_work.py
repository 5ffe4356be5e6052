"""Choosing and repairing take minutes on a large network: every method shows how far it is."""

from __future__ import annotations

import pytest
import torch

import runs
from mhprobe.backbones import layout_of
from mhprobe.framework.run.construct import construct
from mhprobe.heads import KINDS
from mhprobe.io import progress as shows
from mhprobe.masking.base import Order
from mhprobe.pruning.on_path import OnPath
from mhprobe.pruning.rounds import Selection, ShownChooser
from mhprobe.surgery.removal import prune_heads
from mhprobe.surgery.repair import repair
from pruned import shown


@pytest.fixture
def lines(monkeypatch, capsys):
    """The lines of a log since the last call, with one for every piece of work."""
    monkeypatch.setattr(shows, "EVERY", -1)
    with shows.screen("", "lines"):
        yield lambda: [line for line in capsys.readouterr().out.splitlines() if " left" in line]


def choose(method, model, judge, target):
    """As ``prune`` does, without its own work on the test images."""
    if not isinstance(method, Order):
        return ShownChooser(method, target).choose(model, judge)
    path = OnPath(method, target=target)
    return path.choose(
        model, judge.evaluate(model, False), judge.selection.first, layout_of(model), 1.0, 1.0
    )


def test_every_method_that_looks_at_images_shows_how_far_it_is(tmp_path, lines, monkeypatch):
    whole = Selection.__call__
    methods = runs.config("prunebench", tmp_path, "prune.speed=false").method
    short = {"generations": 1, "steps": 3}
    for name, part in methods.items():
        for option in short.keys() & part.keys():
            part[option] = short[option]
        method = construct(part, name)
        model, _, judge = shown(KINDS)
        walks = []

        def walk(self, *positions, walks=walks):
            yield from whole(self, *positions)
            walks.append(positions)  # to the end: the first batch alone takes no time

        monkeypatch.setattr(Selection, "__call__", walk)
        lines()
        choose(method, model, judge, {"flops": 0.6})
        count = len(lines())
        assert count or not walks, name
        assert not count or name != "random"  # the control: it looks at no image, and shows nothing


def test_repair_shows_how_far_it_is(lines):
    model, layout, judge = shown(KINDS)
    pruned = prune_heads(model, torch.arange(layout.num_heads) % 2 == 0)
    repair(pruned, model, lambda: (batch.images for batch in judge.selection()))
    shown_lines = lines()
    assert len(shown_lines) == len(layout.sites)
    assert f"repairing: 1 of {len(layout.sites)} layers" in shown_lines[0]
