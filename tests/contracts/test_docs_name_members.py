"""What can be chosen is in the docs: each yaml of a group has its paragraph or its row."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {  # group of conf -> the page that tells of its members, and how it writes a name
    "measure": ("docs/measures.md", "## {}\n", "[{0}](#{0})"),
    "maps": ("docs/maps.md", "- **{}**"),
    "masking": ("docs/masking.md", "`masking={}`"),
    "search": ("docs/masking.md", "| `{}` |"),
    "prune/order": ("docs/pruning.md", "`{}`"),
    "prune": ("docs/pruning.md", "`prune={}`"),
    "gates": ("docs/gates.md", "`gates={}`"),
    "experiment": ("README.md", "`{}`"),
    "data": ("README.md", "`{}`"),
    "trainer": ("README.md", "`{}`"),
}
NAMES = [(group, path.stem) for group in PAGES for path in sorted((ROOT / "conf" / group).glob("*.yaml"))]


@pytest.mark.parametrize(("group", "name"), [pair for pair in NAMES if pair[1] not in ("base", "none")])
def test_what_can_be_chosen_is_in_the_docs(group, name):
    page, *forms = PAGES[group]
    text = (ROOT / page).read_text()
    for form in forms:
        assert form.format(name) in text, f"{page} says nothing of {group}={name}: expected {form.format(name)!r}"
