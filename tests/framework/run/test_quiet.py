"""What a command says when something is to be read with care."""

from __future__ import annotations

import warnings

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
