"""A table of heads is read as it is meant, or refused in one line that names the file, the row and the column."""

from __future__ import annotations

import csv

import pytest
import torch

import mhprobe.masking.by_score
from layouts import layout_of
from mhprobe.errors import UserError
from mhprobe.io.head_tables import read_column, read_kept
from mhprobe.report import tables

LAYOUT = layout_of(2, 1)


def written(path, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_what_is_written_is_read_whatever_the_order_of_the_rows(tmp_path):
    value = torch.tensor([0.1, torch.nan, 1 / 3], dtype=torch.float64)
    table = tables.per_head(LAYOUT, {"value": value, "kept": torch.tensor([0, 1, 1])})
    path = tables.write_csv(tmp_path / "t.csv", table._replace(rows=table.rows[::-1]))
    torch.testing.assert_close(
        read_column(path, "value", LAYOUT, "here"), value, rtol=0, atol=0, equal_nan=True
    )
    assert read_kept(path, LAYOUT).tolist() == [False, True, True]


def test_an_equal_layout_has_an_equal_digest_and_every_other_one_another():
    others = [layout_of(1, 2), layout_of(3), layout_of(2, 1, head_dim=8), layout_of(2, 1, 1)]
    assert layout_of(2, 1).digest == LAYOUT.digest
    assert len({layout.digest for layout in [LAYOUT, *others]}) == 5


@pytest.mark.parametrize("other", [layout_of(1, 2), layout_of(2, 1, head_dim=8)])
def test_a_table_of_another_model_with_as_many_heads_is_refused_and_both_are_named(tmp_path, other):
    columns = {"value": torch.arange(3.0), "kept": torch.ones(3, dtype=torch.long)}
    path = tables.write_csv(tmp_path / "t.csv", tables.per_head(other, columns))
    for read in (
        lambda: read_column(path, "value", LAYOUT, "here"),
        lambda: read_kept(path, LAYOUT),
    ):
        with pytest.raises(
            UserError, match=f"t.csv, row 1, column layout: .*another model.*{other.digest}"
        ) as error:
            read()
        assert LAYOUT.digest in str(error.value)
    assert read_column(path, "value", other, "here").tolist() == [0, 1, 2]
    units = mhprobe.masking.by_score.Units(("a",), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(UserError, match="another model"):  # whoever asks
        mhprobe.masking.by_score.ByScore(table=str(path)).paths(units, LAYOUT, None)


HEADER = ("head", "value", "kept")
GOOD = [("0", "1.5", "1"), ("1", "2.5", "0"), ("2", "3.5", "1")]
BROKEN = {
    "over-long row": ([GOOD[0], ("1", "9", "2.5", "0"), GOOD[2]], r"row 2: 4 fields, expected 3"),
    "cut off": ([*GOOD[:2], ("2",)], r"row 3: 1 fields, expected 3"),
    "kept=-1": (
        [GOOD[0], ("1", "2.5", "-1"), GOOD[2]],
        r"row 2, column kept: expected 0 or 1, got '-1'",
    ),
    "kept=7": ([*GOOD[:2], ("2", "3.5", "7")], r"row 3, column kept: expected 0 or 1, got '7'"),
    "a head twice": (
        [GOOD[0], GOOD[1], ("1", "2.5", "1")],
        r"row 3, column head: head 1 is in row 2 already",
    ),
    "text for a head": (
        [GOOD[0], ("one", "2.5", "0"), GOOD[2]],
        r"row 2, column head: expected 0 to 2, got 'one'",
    ),
    "a head too many": ([*GOOD, ("3", "1", "1")], r"row 4, column head: expected 0 to 2, got '3'"),
    "a negative head": (
        [("-1", "1", "1"), *GOOD[1:]],
        r"row 1, column head: expected 0 to 2, got '-1'",
    ),
    "a head missing": (GOOD[:2], r"2 rows, column head: expected one for each of the model's 3"),
    "a field without end": (
        [GOOD[0], ("1", "2" * 140_000, "0"), GOOD[2]],
        r"row 2 \(field larger than field limit",
    ),
    "no rows": ([], r"has no rows"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_table_is_refused_in_one_line(tmp_path, name):
    rows, words = BROKEN[name]
    path = written(tmp_path / "t.csv", HEADER, *rows)
    with pytest.raises(UserError, match=rf"^mask: .*t\.csv.*{words}") as error:
        read_kept(path, LAYOUT)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_text_where_numbers_are_names_its_row_and_column(tmp_path):
    path = written(tmp_path / "t.csv", HEADER, GOOD[0], ("1", "much", "0"), GOOD[2])
    with pytest.raises(UserError, match=r"row 2, column value: expected a number, got 'much'"):
        read_column(path, "value", LAYOUT, "here")
    assert read_kept(path, LAYOUT).tolist() == [True, False, True]  # nobody asked for that column


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"head\n\x00\n"], ids=["empty", "not text", "a zero byte"]
)
def test_what_is_no_table_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UserError, match=r"^here: .*t\.csv"):
        read_column(tmp_path / "t.csv", "value", LAYOUT, "here")
    with pytest.raises(UserError, match=r"nowhere\.csv \(No such file"):
        read_column(tmp_path / "nowhere.csv", "value", LAYOUT, "here")


def test_a_table_that_keeps_nothing_is_refused(tmp_path):
    path = written(tmp_path / "t.csv", ("head", "kept"), (0, 0), (1, 0), (2, 0))
    with pytest.raises(UserError, match="keeps no head"):
        read_kept(path, LAYOUT)
