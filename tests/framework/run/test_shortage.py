"""Out of memory is answered with the setting to lower."""

from __future__ import annotations

import pytest
import torch

from mhprobe.errors import UserError
from mhprobe.framework.run.schema import Config
from mhprobe.framework.run.shortage import naming_settings

CFG = Config.model_construct(data={"batch_size": 128, "eval_batch_size": 500})


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ..."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate "
            "memory"
        ),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_names_the_batch_sizes(error):
    with (
        pytest.raises(UserError, match=r"data\.batch_size=128.*data\.eval_batch_size=500") as line,
        naming_settings(CFG),
    ):
        raise error
    assert "\n" not in str(line.value)


def test_a_real_allocation_that_fails_is_one():
    with pytest.raises(UserError, match="out of memory"), naming_settings(CFG):
        torch.empty(2**60)


def test_other_errors_keep_their_traceback():
    with pytest.raises(RuntimeError, match="shapes"), naming_settings(CFG):
        raise RuntimeError("shapes differ")
