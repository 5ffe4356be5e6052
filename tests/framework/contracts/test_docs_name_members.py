"""What can be chosen is in the docs: each yaml of a group has its paragraph or its row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mhprobe.framework.run.sections import options_of_group
from mhprobe.masking.parts.curve import known_orders
from mhprobe.report.figures import kinds

ROOT = Path(__file__).parents[3]
PAGES = {  # group of conf -> the page that tells of its members, and how it writes a name
    "measure": ("docs/measures.md", "## {}\n"),
    "maps": ("docs/maps.md", "| **{}** |"),
    "masking": ("docs/masking.md", "`masking={}`"),
    "search": ("docs/masking.md", "| `{}` |"),
    "prune/order": ("docs/pruning.md", "`{}`"),
    "prune": ("docs/pruning.md", "`prune={}`"),
    "gates": ("docs/gates.md", "`gates={}`"),
    "experiment": ("docs/commands.md", "`{}`"),
    "data": ("docs/commands.md", "`{}`"),
    "trainer": ("docs/commands.md", "`{}`"),
    "score": ("docs/your_model.md", "`{}`"),
    "paper": ("README.md", "(docs/papers/{}.md)"),
    "callback": ("docs/training.md", "`+callback={}`"),
}
NAMES = [(group, name) for group in PAGES for name in options_of_group(group)]


@pytest.mark.parametrize(
    ("group", "name"), [pair for pair in NAMES if pair[1] not in ("base", "none")]
)
def test_what_can_be_chosen_is_in_the_docs(group, name):
    page, *forms = PAGES[group]
    text = (ROOT / page).read_text()
    for form in forms:
        assert form.format(name) in text, (
            f"{page} says nothing of {group}={name}: expected {form.format(name)!r}"
        )


@pytest.mark.parametrize("name", known_orders())
def test_every_masking_order_has_its_row(name):
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs/masking.md").read_text(), re.M)
    assert any(f"`{name}`" in row for row in rows), f"docs/masking.md: no row of the order `{name}`"


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_of_figure_has_a_right_and_a_wrong_reading(kind):
    text = (ROOT / "docs/reading-figures.md").read_text()
    rows = re.findall(rf"^\| `{kind}` \| (\S.*) \| (\S.*) \|$", text, re.M)
    assert len(rows) == 1, (
        f"docs/reading-figures.md: expected one row `{kind}` with a right and a wrong reading"
    )
    right, wrong = rows[0]
    assert right != wrong


@pytest.mark.parametrize(
    "name", [name for group, name in NAMES if group == "measure" and name != "base"]
)
def test_every_measure_answers_a_question(name):
    assert f"[{name}](measures.md#{name})" in (ROOT / "docs/which-measure.md").read_text()
