"""What a command says when something is to be read with care."""

from __future__ import annotations

import warnings

import pytest

import runs
from mhprobe.errors import UserError
from mhprobe.framework.run import launch
from mhprobe.framework.run.quiet import quiet
from mhprobe.measures.parts.pairs import FewImages


def test_a_warning_of_ours_is_one_line_without_a_file_and_those_of_others_keep_theirs(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # to be put back
    with warnings.catch_warnings():
        quiet()
        line = warnings.formatwarning
        quiet()
        assert warnings.formatwarning is line  # every run of a sweep calls it
        assert (
            warnings.formatwarning("svcca: few images", FewImages, "prints.py", 43)
            == "svcca: few images\n"
        )
        assert "theirs.py:7" in warnings.formatwarning("look out", UserWarning, "theirs.py", 7)


@pytest.mark.parametrize("command", ["claims", "study"])
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_a_command_says_that_it_begins_before_it_imports_anything_heavy(
    command, mode, tmp_path, monkeypatch, capsys
):
    def imports(task):
        raise UserError("here the imports would begin")

    monkeypatch.setattr(launch, "module", imports)
    paper = ["+paper=michel"] if command == "study" else []
    cfg = runs.composed(command, "weights=random", f"progress={mode}", *paper)
    with pytest.raises(UserError, match="here the imports would begin"):
        launch.run(command, cfg, tmp_path)
    said = f"mhprobe.{command} begins; results go to {tmp_path}"
    assert (said in capsys.readouterr().out) == (mode == "auto")
