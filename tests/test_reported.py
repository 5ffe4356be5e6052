"""Every number that README and docs/ report has a source in docs/tables/reported.csv."""

import pytest
from tests.test_tools import tool


@pytest.fixture(scope="module")
def reported():
    return tool("reported")


def test_every_number_of_the_pages_has_a_source_that_says_so(reported):
    assert not list(reported.complaints(reported.read(), reported.pages()))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("It costs 2.8 points (.9 to\n5.2; p = .01).", ["2.8 points (.9 to 5.2)"]),
        ("They have 63.45, 62.52 and 63.25 %.", ["63.45, 62.52 and 63.25 %"]),
        ("Its correlation is **.57** (.52 to .61).", [".57 (.52 to .61)"]),
        ("It has a 95 % interval, in `5 %` of 12 heads.\n\n```bash\nx 4 s\n```", []),
        ("| 3 % |\n|---|\n| 4 % |", []),
    ],
)
def test_a_number_is_one_with_a_unit_or_an_interval(reported, text, numbers):
    assert reported.numbers_of(text) == numbers


def test_a_number_that_changes_on_a_page_or_in_its_table_is_told(reported):
    rows = reported.read()
    texts = reported.pages()
    taken = next(
        row for row in rows if row.source.startswith("table") and row.number.endswith(" %")
    )
    page = {**texts, taken.page: texts[taken.page].replace(taken.number, "1.23 %")}
    said = list(reported.complaints(rows, page))
    assert f"{taken.page}: 1.23 % has no source in docs/tables/reported.csv." in said
    changed = [row._replace(number="1.23 %") if row is taken else row for row in rows]
    assert any(
        f"{taken.page}: 1.23 %: docs/tables/" in line for line in reported.complaints(changed, page)
    )


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "expected a source that begins with"),
        ("guess of mine", "expected a source that begins with"),
        ("run A heading", "no command stands below 'A heading'"),
        ("rule stats/luck.py", "src/mhprobe/stats/luck.py is no file"),
        ("page README.md", "or README.md is this page"),
        ("table tables/speed.csv what=nothing ratio", "expected one row"),
        ("table tables/no.csv ratio", "docs/tables/no.csv is no file"),
    ],
)
def test_a_source_that_does_not_say_so_is_told(reported, source, problem):
    row = reported.Row("README.md", "3 %", source)
    assert problem in "".join(
        reported.complaints([row], {"README.md": "It is 3 %.\n\n# A heading\n"})
    )


def test_a_table_of_numbers_needs_a_command_or_a_file_above_it(reported):
    table = "\n| a | b |\n|---|---|\n| x | 4.2 |\n"
    assert reported.tables_without_source(table) == ["| a | b |"]
    assert not reported.tables_without_source("```bash\npython -m mhprobe.train\n```\n" + table)
    assert not reported.tables_without_source("[all](tables/x.csv)\n" + table)
    assert not reported.tables_without_source("\n| a | b |\n|---|---|\n| x | y |\n")
