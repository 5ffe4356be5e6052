from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

import mhprobe.measures
from mhprobe.errors import UserError, one_of
from mhprobe.heads import HeadBatch, HeadLayout, HeadSite, wide
from mhprobe.measures.base import Measure, mean_of

LAYOUT = HeadLayout((HeadSite("a", 0, 0, 2, 3),))


class Energy(Measure):
    """The smallest measure: mean square of each head's output."""

    def __init__(self, layout, **kwargs):
        super().__init__(layout, **kwargs)
        self.add_state("total", torch.zeros(layout.num_heads, dtype=torch.float64))

    def update(self, batch):
        self.total += batch.z[0][batch.valid].double().square().mean((1, 3)).sum(0)
        self.images += batch.valid.sum()

    def finish(self):
        return {"value": self.total / self.images, "images": self.images}


def batch(images: int = 4) -> HeadBatch:
    z = torch.randn(images, 5, 2, 3)
    return HeadBatch(
        z=(z,), logits=torch.zeros(images, 2), valid=torch.ones(images, dtype=torch.bool)
    )


def test_name_is_that_of_the_class():
    assert Energy(LAYOUT).name == "energy"
    assert mhprobe.measures.SVCCA(LAYOUT).name == "svcca"


def test_the_zeros_that_a_sum_goes_back_to_take_no_room():
    """A similarity's sums are gigabytes: torchmetrics would keep their zeros beside them."""
    measure = Energy(LAYOUT)
    measure.update(batch())
    measure.reset()
    assert (
        measure._defaults["total"].untyped_storage().nbytes()
        == 8
        < measure.total.untyped_storage().nbytes()
    )
    assert torch.equal(measure.total, torch.zeros(2, dtype=torch.float64))
    measure.total += torch.tensor([1.0, 2.0])  # every entry has a place of its own
    assert measure.total.tolist() == [1, 2]


def test_value_is_the_first_column():
    measure = Energy(LAYOUT)
    measure.update(batch())
    assert torch.equal(measure.compute(), measure.columns()["value"])


def test_states_must_be_float64_or_int64_sums():
    measure = Energy(LAYOUT)
    with pytest.raises(TypeError, match="sums"):
        measure.add_state("rows", torch.zeros(2, dtype=torch.float64), dist_reduce_fx="cat")
    with pytest.raises(TypeError, match="sums"):
        measure.add_state("rows", [])
    with pytest.raises(TypeError, match=r"float64 or int64, got torch\.float32"):
        measure.add_state("rows", torch.zeros(2))


@pytest.mark.parametrize(
    "cast",
    [
        lambda m: m.to(torch.bfloat16),
        lambda m: m.half(),
        lambda m: m.float(),
        lambda m: m.type(torch.float16),
    ],
    ids=["to", "half", "float", "type"],
)
def test_float64_survives_a_cast_of_the_module_around_it(cast):
    module = nn.ModuleDict({"linear": nn.Linear(2, 2), "energy": Energy(LAYOUT)})
    module["energy"].update(batch())
    module["energy"].total[0] = 1 + 2**-50  # a digit that no narrower type holds
    cast(module)
    assert module["energy"].total.dtype == torch.float64
    assert module["energy"].total[0] == 1 + 2**-50
    module["energy"].reset()
    assert module["energy"].total.dtype == torch.float64
    assert module["energy"].images.dtype == torch.long


def test_made_and_reset_in_inference_mode_it_can_be_updated_outside():
    with torch.inference_mode():
        measure = Energy(LAYOUT).to("cpu")
        measure.update(batch())
    measure.update(batch())
    with torch.inference_mode():
        measure.columns()
        measure.reset()
    measure.update(batch())
    with torch.inference_mode():
        measure.update(batch())
    assert int(measure.columns()["images"]) == 8


def test_an_error_at_the_end_leaves_the_local_sums_in_place():
    # stand in for two ranks that hold the same: the sum over ranks is twice the local one
    twice = {
        "dist_sync_fn": lambda state, group: [2 * state],
        "distributed_available_fn": lambda: True,
    }
    measure = Energy(LAYOUT, **twice)
    with pytest.raises(UserError, match="no valid images"):
        measure.columns()
    measure.update(batch(3))
    assert int(measure.columns()["images"]) == 6
    assert int(measure.images) == 3
    assert torch.equal(measure.compute(), measure.total / 3)


def test_narrow_features_are_widened():
    x = torch.ones(1)
    assert wide(x.bfloat16()).dtype == wide(x.half()).dtype == wide(x).dtype == torch.float32
    assert wide(x.double()).dtype == torch.float64


def test_measures_are_found_by_name_without_a_list():
    assert {"GateImportance", "SVCCA"} <= set(dir(mhprobe.measures))
    assert mhprobe.measures.GateImportance.__name__ == "GateImportance"
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = mhprobe.measures.Nonsense


class LRPOfNothing(Energy):
    pass


class Called(Energy):
    name = "by_another_name"


def test_measures_of_one_file_or_notebook_have_names_of_their_own():
    assert [each(LAYOUT).name for each in (Energy, LRPOfNothing, Called)] == [
        "energy",
        "lrp_of_nothing",
        "by_another_name",
    ]


def test_a_mean_over_nothing_is_nan():
    assert mean_of(torch.tensor([3.0, 0.0, 4.0]), torch.tensor([2, 0, 0])).nan_to_num(
        -1
    ).tolist() == [1.5, -1, -1]


def test_an_option_is_one_of_those_its_type_names():
    one_of("here", "side", "left", Literal["left", "right"])
    with pytest.raises(UserError, match="here: side is one of left, right, got 'up'"):
        one_of("here", "side", "up", Literal["left", "right"])
