"""Tables hold the columns they promise, and numbers that read back to the same bits."""

from __future__ import annotations

import math

import pytest
import torch

import runs
from curves import curve
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.report import tables

SWIN = HeadLayout(
    (HeadSite("layers.0.blocks.0.attn", 0, 0, 2, 4), HeadSite("layers.1.blocks.0.attn", 1, 1, 3, 4))
)
AWKWARD = [0.1, 1 / 3, 1e-300, math.pi, 5e-324]  # shortest texts, tiny numbers


def test_per_head_rows_say_where_each_head_sits_and_read_back_exactly(tmp_path):
    values = torch.tensor(AWKWARD, dtype=torch.float64)
    columns = {
        "value": values,
        "low": -values,
        "images": torch.tensor(7),
        "material": torch.zeros(5, 9),
    }
    rows = runs.rows(tables.write_csv(tmp_path / "t.csv", tables.per_head(SWIN, columns)))
    assert list(rows[0]) == [
        "head",
        "site",
        "stage",
        "block",
        "index",
        "value",
        "low",
        "images",
        "layout",
    ]
    assert {row["layout"] for row in rows} == {SWIN.digest}
    assert [row["head"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row["site"] for row in rows] == [SWIN.sites[0].name] * 2 + [SWIN.sites[1].name] * 3
    assert [(row["stage"], row["block"], row["index"]) for row in rows] == [
        ("0", "0", "0"),
        ("0", "0", "1"),
        ("1", "1", "0"),
        ("1", "1", "1"),
        ("1", "1", "2"),
    ]
    assert [float(row["value"]) for row in rows] == AWKWARD
    assert [float(row["low"]) for row in rows] == [-value for value in AWKWARD]
    assert {row["images"] for row in rows} == {"7"}


PLACES = ("block_a", "index_a", "block_b", "index_b")


def test_pairwise_rows_are_the_pairs_that_were_compared_once_each(tmp_path):
    value = torch.full((5, 5), torch.nan, dtype=torch.float64)
    for span in (SWIN.span(0), SWIN.span(1)):
        value[span, span] = torch.arange(25, dtype=torch.float64).view(5, 5)[span, span] / 7
    columns = {
        "value": value,
        "null": value / 2,
        "dims": torch.arange(5),
        "seed": torch.tensor(3),
        "rho": value[None],
    }
    rows = runs.rows(tables.write_csv(tmp_path / "t.csv", tables.pairwise(SWIN, columns)))
    assert list(rows[0]) == [
        "head_a",
        "head_b",
        "value",
        "null",
        "dims_a",
        "dims_b",
        "seed",
        *PLACES,
    ]
    pairs = [(int(row["head_a"]), int(row["head_b"])) for row in rows]
    assert pairs == [(0, 1), (2, 3), (2, 4), (3, 4)]
    for (a, b), row in zip(pairs, rows, strict=True):
        assert (float(row["value"]), float(row["null"])) == ((5 * a + b) / 7, (5 * a + b) / 14)
        assert (row["dims_a"], row["dims_b"], row["seed"]) == (str(a), str(b), "3")
    # SWIN has two heads in block 0, three in block 1
    assert [[int(row[name]) for name in PLACES] for row in rows] == [
        [0, 0, 0, 1],
        [1, 0, 1, 1],
        [1, 0, 1, 2],
        [1, 1, 1, 2],
    ]


def test_rows_keep_their_columns(tmp_path):
    given = [
        {"unit": 'a "quoted", name', "accuracy": 1 / 3, "low": math.nan},
        {"unit": "", "accuracy": 5, "low": 0.1},
    ]
    rows = runs.rows(tables.write_csv(tmp_path / "t.csv", tables.from_rows(given)))
    assert list(rows[0]) == list(given[0])
    assert (
        rows[0]["unit"] == given[0]["unit"]
        and float(rows[0]["accuracy"]) == 1 / 3
        and rows[0]["low"] == "nan"
    )
    assert rows[1] == {key: str(value) for key, value in given[1].items()}


def test_a_curve_of_repeats_has_their_rows_and_their_mean():
    rows = tables.curve_rows(
        [curve("random", [0, 2], [0.9, 0.5], chosen_on=None, search="", seeds=(4, 5, 6))]
    )
    assert [(row["seed"], row["step"]) for row in rows] == [
        (s, k) for s in (4, 5, 6, "mean") for k in (0, 1)
    ]
    assert rows[-1]["accuracy"] == pytest.approx(0.5) and rows[-1]["masked"] == rows[-1]["p"] == ""


def test_a_table_without_pairs_has_a_header_and_no_rows(tmp_path):
    one = HeadLayout((HeadSite("blocks.0.attn", 0, 0, 1, 4),))
    path = tables.write_csv(tmp_path / "t.csv", tables.pairwise(one, {"value": torch.ones(1, 1)}))
    assert path.read_text() == "head_a,head_b,value,block_a,index_a,block_b,index_b\n"


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tables.write_csv(tmp_path / "t.csv", tables.Table(["a"], [[1]]))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*t\.csv \(No space left on device"):
        tables.write_csv(path, tables.Table(["a"], [[2]]))
    assert path.read_text() == "a\n1\n" and list(tmp_path.iterdir()) == [path]
