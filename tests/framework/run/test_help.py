"""What --help says can be typed as it stands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import runs
from mhprobe.framework.run import sections

ROOT = Path(__file__).parents[3]
EXAMPLES = [
    (command, line)
    for command in sections.commands_of_conf()
    for line in OmegaConf.load(sections.CONF / f"{command}.yaml").hydra.help.footer.splitlines()
]


def test_every_command_has_examples_of_its_own():
    assert {command for command, _ in EXAMPLES} == set(sections.commands_of_conf())
    for command, line in EXAMPLES:
        assert shlex.split(line)[:3] == ["python", "-m", f"mhprobe.{command}"]
        assert len(line) <= 120


@pytest.mark.parametrize(("command", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_an_example_composes_as_it_is_printed_on_the_data_of_its_weights(
    command, line, monkeypatch
):
    monkeypatch.chdir(ROOT)  # weights are those that are shipped
    overrides = shlex.split(line)[3:]
    if "-m" in overrides:  # of a sweep its first job
        overrides = [re.sub(r"=([^\[{,]+),.*", r"=\1", part) for part in overrides if part != "-m"]
    cfg = runs.checked(command, *overrides)
    for weights in (
        part.removeprefix("weights=") for part in overrides if part.startswith("weights=weights/")
    ):
        data = json.loads((ROOT / weights).with_suffix(".json").read_text())[
            "data"
        ]  # fails where they are not shipped
        named = OmegaConf.load(sections.CONF / "data" / f"{data}.yaml")
        assert cfg.data["source"]["_target_"] == named.source._target_
