"""Every command, tiny, on a GPU: what tests/framework/contracts/test_accelerator.py pretends.

Skipped without one.
"""

from __future__ import annotations

import pytest
import torch

from pieces import PIECES, run_piece

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),  # so few images say little about heads
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept")


@pytest.mark.parametrize("piece", PIECES)
def test_it_runs(piece, tmp_path, kept, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_piece(piece, "gpu", str(kept), str(tmp_path / "run"))
