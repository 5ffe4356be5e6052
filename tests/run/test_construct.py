"""Parts of a configuration with a ``_target_``."""

from __future__ import annotations

import pytest
from hydra.utils import get_object

import mhprobe
from mhprobe.run.construct import construct
from mhprobe.run.moved import TARGETS


@pytest.mark.parametrize("before", TARGETS)
def test_a_class_that_moved_answers_with_its_new_name(before):
    with pytest.raises(mhprobe.UserError) as error:
        construct({"_target_": before, "_partial_": True}, "masking.join")
    assert str(error.value) == f"masking.join._target_: {before} is now {TARGETS[before]}."
    assert callable(get_object(TARGETS[before]))
