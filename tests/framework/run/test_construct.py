"""Parts of a configuration with a ``_target_``."""

from __future__ import annotations

import pytest

from mhprobe.errors import UserError
from mhprobe.framework.run.construct import construct
from mhprobe.masking.redundant_or_inert import RedundantOrInert

CKA = {"_target_": "mhprobe.measures.cka.CKA", "_partial_": True}
JOIN = {
    "_target_": "mhprobe.masking.redundant_or_inert.RedundantOrInert",
    "similar": {"cka": CKA},
    "writes": CKA,
}


def test_parts_inside_a_mapping_are_made_before_their_types_are_looked_at():
    assert isinstance(construct(JOIN, "masking.join"), RedundantOrInert)


def test_an_option_of_another_type_is_refused_beside_such_parts():
    with pytest.raises(UserError, match=r"masking\.join\.level"):
        construct({**JOIN, "level": "high"}, "masking.join")


def test_a_class_without_options_is_not_told_as_an_empty_pair_of_brackets():
    with pytest.raises(UserError, match=r"^method\.mine: .*missing.* 'year'.*\(given no option\)$"):
        construct({"_target_": "datetime.date"}, "method.mine")
