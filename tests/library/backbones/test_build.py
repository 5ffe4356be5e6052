"""Networks are built by name, whatever form their embedding keeps its sizes in."""

from __future__ import annotations

import pytest

from mhprobe.backbones import build, input_spec
from mhprobe.errors import UserError

XCIT = {
    "name": "xcit_nano_12_p16_224",
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 16,
    "depth": 1,
    "num_heads": 2,
}


def test_a_patch_size_that_is_one_number_is_that_of_both_sides():
    model = build(**XCIT, num_classes=3)
    assert isinstance(model.patch_embed.patch_size, int)  # unlike that of other networks
    assert input_spec(model)["size"] == (32, 32)


@pytest.mark.parametrize(
    "setting", [{"num_heads": True}, {"depth": False}, {"num_heads": 0}], ids=str
)
def test_a_size_that_is_a_flag_or_nothing_is_refused(setting):
    """True heads would be one head."""
    with pytest.raises(UserError, match=rf"^{next(iter(setting))}: expected at least 1, got"):
        build(**{**XCIT, **setting}, num_classes=3)
