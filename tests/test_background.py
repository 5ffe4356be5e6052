"""The photograph of docs/look.md: attention to its petals, beside even attention and an untrained network."""

import csv

import pytest
import torch
from tests.test_tools import tool

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def background():
    return tool("background")


def test_the_share_of_a_map_is_what_lies_on_the_petals(background):
    petals = torch.tensor([[1.0, 0.0], [0.5, 0.0]])
    even = torch.full((2, 2), 0.1)
    elsewhere = torch.tensor([[0.0, 0.3], [0.0, 0.2]])
    assert background.on(petals, torch.stack([even, elsewhere])).tolist() == pytest.approx(
        [0.375, 0]
    )


def test_the_table_is_what_the_shipped_network_does(background):
    """One image in float32: other processors round the shares of small maps differently."""
    shares = background.measured(background.network_to_look_at(background.WEIGHTS))
    with background.TABLE.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    for name, found in (("trained", shares.trained), ("untrained", shares.untrained)):
        assert [float(row[name]) for row in rows] == pytest.approx(found.tolist(), abs=5e-3)
    assert float(rows[0]["even_attention"]) == pytest.approx(shares.even, abs=1e-4)
