"""Parts of a configuration with a ``_target_``."""

from __future__ import annotations

import pytest

from mhprobe.errors import UserError
from mhprobe.masking.redundant_or_inert import RedundantOrInert
from mhprobe.run.construct import construct

CKA = {"_target_": "mhprobe.measures.cka.CKA", "_partial_": True}
JOIN = {"_target_": "mhprobe.masking.redundant_or_inert.RedundantOrInert", "similar": {"cka": CKA}, "writes": CKA}


def test_parts_inside_a_mapping_are_made_before_their_types_are_looked_at():
    assert isinstance(construct(JOIN, "masking.join"), RedundantOrInert)


def test_an_option_of_another_type_is_refused_beside_such_parts():
    with pytest.raises(UserError, match=r"masking\.join\.level"):
        construct({**JOIN, "level": "high"}, "masking.join")
