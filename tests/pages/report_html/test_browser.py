"""The page in a real browser: what a reader clicks, types and sees.

Skipped where there is no Chromium.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mhprobe.pages.html import finish_report, write_comparison
from mhprobe.report.figures.pruned import PALE
from mhprobe.report.report import Report
from mhprobe.report.runs.run import read_runs
from pages.report_html.conftest import CLASSES, layout, make_run
from results import add_measure

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: pip install 'mhprobe[test]'"
    )
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> str:
    folder = make_run(tmp_path_factory.mktemp("seen") / "run")
    return finish_report(folder, "train", layout()).as_uri()


@pytest.fixture(scope="module")
def comparison(a_run, other_run, tmp_path_factory) -> str:
    return write_comparison(
        read_runs([a_run, other_run]), tmp_path_factory.mktemp("compared") / "c.html"
    ).as_uri()


@pytest.fixture
def visit(browser) -> Iterator[Any]:
    """Opens an address; at the end, nothing may have been complained about, and nothing fetched."""
    contexts, wrong = [], []

    def go(address: str, width: int = 1280, theme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: wrong.append(request.url) if "://" in request.url[5:] else None,
        )
        page.goto(address)
        return page

    yield go
    for context in contexts:
        context.close()
    assert [text for text in wrong if text != address_of(text)] == []


def address_of(text: str) -> str:
    """The pages themselves are files."""
    return text if text.startswith("file:///") and text.endswith(".html") else ""


def background(page: Any, head: int) -> str:
    return page.eval_on_selector(
        f'[data-id="{head}"]', "cell => getComputedStyle(cell).backgroundColor"
    )


def test_the_grid_takes_the_colours_of_the_chosen_measure(visit, address):
    page = visit(address)
    assert page.locator('#grid [role="gridcell"]').count() == 12
    page.select_option("#colour", label="ablation delta")
    before = background(page, 5)
    page.select_option("#colour", label="gate importance")
    assert background(page, 5) != before
    assert "How much the loss of an image moves" in page.inner_text("#about")
    assert page.locator("#control .cell").count() == 12  # a random network's, on the same scale
    assert "importance (nats)" in page.inner_text("#legend")


def test_what_is_kept_has_the_colours_of_the_figure_of_kept_heads(visit, tmp_path):
    """Blue is left and pale is gone: on one page dark once meant left in the figure and gone in the grid."""
    kept = torch.tensor([1.0, 0.0] * 6)
    add_measure(
        Report(tmp_path, layout()),
        "kept_heads",
        "per_head",
        {"value": kept},
        "kept (1), removed (0)",
    )
    page = visit(finish_report(tmp_path, "prune", layout()).as_uri())
    left, gone = (background(page, head) for head in (0, 1))
    assert [background(page, head) for head in range(12)] == [left, gone] * 6
    assert left == "rgb(0, 114, 178)" and gone == f"rgb{tuple(bytes.fromhex(PALE[1:]))}"
    assert page.inner_text("#legend") == "Blue is 1, pale is 0."


def test_a_click_opens_a_head_with_all_that_is_known_of_it(visit, address):
    page = visit(address)
    page.click('[data-id="2"]')
    said = page.inner_text("#head").replace("\xa0", " ")
    assert said.startswith("Block 0, head 2")
    assert "3.0 (2.9 to 3.1)" in said and "1 of 12" in said and "random 0.03" in said
    assert "Nearest by svcca" in said and "Chance: 0.05" in said
    assert "step 3 of 3" in said  # of the order "wise"
    assert len(page.locator("#head .bars .name").all()) == len(CLASSES) and "{{ 7 * 7 }}" in said
    assert page.locator("#head svg").count() == 1  # its history
    page.locator("#head .link").first.click()  # its nearest
    assert not page.inner_text("#head").startswith("Block 0, head 2")


@pytest.mark.parametrize("width", [1400, 1100])
def test_the_last_column_of_an_open_head_is_not_cut(visit, address, width):
    page = visit(address, width=width)
    page.click('[data-id="2"]')
    page.add_style_tag(content="#head { padding-right: 33px; }")  # a scroll bar that takes room
    fits = """() => {
        const texts = ["gate importance", "0.021 (0.016 to 0.052)", "22 of 24", "random 2.83"];
        const cells = document.querySelectorAll("#head tbody tr:first-child > *");
        cells.forEach((cell, at) => cell.replaceChildren(texts[at]));
        cells[3].append(document.createElement("br"), "even attention 2.83");
        const table = document.querySelector("#head .scroll");
        return [table.scrollWidth, table.clientWidth];
    }"""
    needed, there = page.evaluate(fits)
    assert needed <= there


def test_random_is_explained_where_it_stands(visit, address, tmp_path):
    page = visit(address)
    page.click('[data-id="2"]')
    assert (
        page.locator("#control .cell").count() == 12 and page.locator("#control-says").is_visible()
    )
    assert "random 0.03" in page.inner_text("#head")
    assert "Random: the same head of a freshly initialised network." in page.inner_text("#head")
    alone = Report(tmp_path, layout())
    add_measure(
        alone,
        "entropy",
        "per_head",
        {"value": torch.arange(12.0), "null": torch.ones(12)},
        "entropy (nats)",
    )
    page = visit(finish_report(tmp_path, "probe", layout()).as_uri())
    page.click('[data-id="2"]')
    assert "Rank 1 is the largest value." in page.inner_text(
        "#head"
    ) and "chance 1" in page.inner_text("#head")
    assert "random" not in page.inner_text("#head").lower(), "no such number stands in the table"
    assert "mean of chance: 1" in page.inner_text(
        "#legend"
    )  # one number for all heads has no grid of its own
    assert (
        page.locator("#control .cell").count() == 0
        and not page.locator("#control-says").is_visible()
    )


def test_a_heads_maps_are_drawn(visit, address):
    page = visit(address)
    page.click('[data-id="9"]')
    assert page.locator("#head canvas").count() == 2
    colours = "c => new Set([...c.getContext('2d').getImageData(0, 0, 14, 14).data].filter((_, i) => i % 4 == 0)).size"
    assert page.eval_on_selector("#head canvas", colours) > 20


def test_who_looks_can_be_chosen(visit, address):
    page = visit(address)
    page.click('[data-id="0"]')
    assert page.locator("#which-map option").all_inner_texts() == [
        f"attention of {who}"
        for who in ("the class token", "the registers (mean)", "the patch in the middle")
    ]
    pixels = "c => [...c.getContext('2d').getImageData(0, 0, 7, 7).data].join()"
    before = page.eval_on_selector("#head canvas", pixels)
    page.select_option("#which-map", "attention of the patch in the middle")
    assert page.eval_on_selector("#head canvas", pixels) != before
    page.click('[data-id="1"]')
    assert (
        page.input_value("#which-map") == "attention of the patch in the middle"
    )  # the next head is asked the same
    assert page.locator("#head .map img").count() == 2


def test_the_keyboard_alone_is_enough(visit, address):
    page = visit(address)
    page.focus("#click-chooses")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.id") == "2"  # the highest stands open
    for key, head in (
        ("Home", "0"),
        ("ArrowRight", "1"),
        ("ArrowDown", "5"),
        ("End", "7"),
        ("ArrowLeft", "6"),
    ):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.dataset.id") == head
    page.keyboard.press("Enter")
    assert page.inner_text("#head").startswith("Block 1, head 2")
    assert page.evaluate("document.activeElement.dataset.id") == "6"
    page.keyboard.press("Space")
    assert page.get_attribute('[data-id="6"]', "aria-selected") == "true"
    assert "prune" in page.inner_text("#chosen-command") and "=[6]" in page.inner_text(
        "#chosen-command"
    )


def test_chosen_heads_meet_the_curve(visit, address):
    page = visit(address)
    page.locator('[data-id="0"]').click(modifiers=["Control"])
    assert "Without it the loss rises by" in page.inner_text(
        "#chosen-known"
    ) or "step 1 of wise" in page.inner_text("#chosen-known")
    page.locator('[data-id="1"]').click(modifiers=["Control"])
    assert "test accuracy is 87.0 % (85.0 to 89.0): step 2 of wise" in page.inner_text(
        "#chosen-known"
    )
    assert (
        page.locator('#curve-chart circle[r="8"], #curve-chart [stroke="var(--ring)"]').count() >= 1
    )
    page.locator('[data-id="11"]').click(modifiers=["Control"])
    assert "did not measure the accuracy without exactly these" in page.inner_text("#chosen-known")
    page.click("#clear")
    assert page.inner_text("#chosen-heads") == "None."


def test_a_point_of_the_curve_chooses_its_heads(visit, address):
    page = visit(address)
    page.select_option("#line", "lucky")
    page.focus("#step")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#chosen-heads") == "2 of 12: 5 6"
    assert page.get_attribute('[data-id="5"]', "aria-selected") == "true"
    page.locator("#curve-chart").scroll_into_view_if_needed()
    box = page.locator("#curve-chart svg").bounding_box()
    place = "svg => [svg.scale('x').apply(3), svg.scale('y').apply(60)]"
    x, y = page.eval_on_selector("#curve-chart svg", place)
    page.mouse.move(box["x"] + x - 3, box["y"] + y - 3)
    page.mouse.click(box["x"] + x - 3, box["y"] + y - 3)
    assert page.inner_text("#chosen-heads") == "3 of 12: 0 1 2"  # where "wise" ends


def test_the_lowest_heads_by_a_measure_are_chosen(visit, address):
    page = visit(address)
    page.select_option("#colour", label="gate importance")
    page.fill("#many", "1")
    page.click("#highest")
    assert page.inner_text("#chosen-heads") == "1 of 12: 2"


def found(page: Any, words: str) -> Any:
    """The tables that the search field finds, those named so first of all."""
    page.fill("#find-table", words)
    named = page.locator("summary", has_text=words)
    return page.locator("#all-tables details.table").filter(has=named)


def test_tables_are_folded_behind_one_search_field(visit, address):
    page = visit(address)
    tables = page.locator("#all-tables details.table")
    assert tables.count() > 3 and not tables.filter(visible=True).count()
    page.fill("#find-table", "SVCCA")
    assert page.get_attribute("#list-tables", "open") is not None
    shown = tables.filter(visible=True)  # by its name, or by a column or a cell
    assert shown.filter(has=page.locator("summary", has_text="svcca")).count() >= 1
    assert page.inner_text("#found-tables") == f"{shown.count()} of {tables.count()} tables"
    assert 0 < shown.count() < tables.count()
    page.fill("#find-table", "no table has this")
    assert not tables.filter(visible=True).count()
    page.fill("#find-table", "")
    assert tables.filter(visible=True).count() == tables.count()


def test_the_grid_stands_beside_the_first_three_sentences(visit, address):
    """Of a screen of 1400 x 900 pixels; the other sentences and figures are folded."""
    page = visit(address, width=1400)
    words, grid = (page.locator(where).bounding_box() for where in ("#result > .words", "#grid"))
    assert words["x"] + words["width"] < grid["x"] and words["y"] < grid["y"]
    assert max(box["y"] + box["height"] for box in (words, grid)) < 900
    assert page.locator("#result li").filter(visible=True).count() == 3
    more = page.locator("#result details.more")
    number = page.locator("#result li").count() - 3
    assert number and more.locator("summary").inner_text() == f"{number} more sentences"
    assert page.locator("#figures figure").filter(visible=True).count() <= 4


def test_a_phone_shows_words_then_the_grid_then_the_open_head(visit, address):
    page = visit(address, width=390)
    order = ["#result", "#atlas", "#head", "#chosen", "#curve"]
    tops = [page.locator(where).bounding_box()["y"] for where in order]
    assert tops == sorted(tops)


def test_tables_sort_and_filter(visit, address):
    page = visit(address)
    table = found(page, "gate importance").first
    table.locator("summary").click()
    first = table.locator("tbody tr").first
    header = table.locator("th", has_text="value")
    header.locator("button").click()
    assert (
        header.get_attribute("aria-sort") == "descending"
        and first.locator("td").first.inner_text() == "2"
    )
    header.locator("button").click()
    assert (
        header.get_attribute("aria-sort") == "ascending"
        and first.locator("td").first.inner_text() != "2"
    )
    table.locator("input").fill("block=1 value<3")
    assert table.locator("tbody tr").count() == 4 and "4 of 12 rows" in table.inner_text()
    table.locator("tbody .link").first.click()
    assert page.inner_text("#head").startswith("Block 1")


def test_light_and_dark_are_a_click_apart(visit, address):
    page = visit(address)
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != light
    assert visit(address, theme="dark").evaluate(paper) == page.evaluate(paper)


def test_paper_is_white_and_has_nothing_to_click(visit, address):
    page = visit(address, width=720, theme="dark")
    page.click("#theme")
    page.click("#theme")
    page.evaluate("document.querySelector('.pictures img').height = 3000")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert (
        page.evaluate("getComputedStyle(document.querySelector('#atlas h2')).breakAfter") == "avoid"
    )
    assert "Click" not in page.inner_text("body")
    assert page.locator("button:not(.link):visible, select:visible").count() == 0
    assert (
        not page.locator("#chosen, #tables").filter(visible=True).count()
    )  # none is chosen, none is open
    assert (
        page.locator(".pictures img").first.bounding_box()["height"] <= 19 / 2.54 * 96 + 1
    )  # of the 25 cm of a page
    page.emulate_media(media="screen")
    page.locator('[data-id="0"]').click(modifiers=["Control"])
    found(page, "gate importance").first.locator("summary").click()
    page.emulate_media(media="print")
    assert page.locator("#chosen, #tables, #tables .table").filter(visible=True).count() == 3
    assert not page.locator("#find-table").is_visible()


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_nothing_is_wider_than_the_screen(visit, address, comparison, width):
    for where in (address, comparison):
        page = visit(where, width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("which", ["address", "comparison"])
def test_axe_finds_nothing_serious(visit, request, which, theme):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install 'mhprobe[test]'"
    )
    page = visit(request.getfixturevalue(which), theme=theme)
    page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true })")
    page.wait_for_selector("#all-tables tbody tr")
    found = axe.Axe().run(page).response["violations"]
    serious = [
        f"{v['id']}: {v['nodes'][0]['html'][:200]}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_a_comparison_shows_runs_on_the_same_scale(visit, comparison):
    page = visit(comparison)
    assert (
        page.locator("#grids .pair").count() == 2 and page.locator("#grids .cell").count() == 3 * 12
    )
    page.select_option("#colour", label="gate importance")
    cells = page.eval_on_selector_all(
        "#grids .pair", "all => all.map(one => one.querySelectorAll('.cell')[2].style.background)"
    )
    assert cells[0] == cells[1]  # head 2 has the same value in both
    # red is larger, blue smaller, white no change, also where all heads changed in one way
    shown = page.evaluate(
        "[[3, 1, 0], [-3, -1, 0]].map(gaps => gaps.map(gap => d3.rgb(colours([gaps], "
        "true).of(gap))))"
    )
    up, down = ([(one["r"], one["b"]) for one in gaps] for gaps in shown)
    assert all(red > blue for red, blue in up[:2]) and all(blue > red for red, blue in down[:2])
    assert up[2] == down[2] and abs(up[2][0] - up[2][1]) < 8
    assert page.locator("#curve-chart path").count() > 2
    page.select_option("#line", "lucky")
    table = found(page, "heads that changed")
    table.locator("summary").click()
    table.locator("input").fill("measure=gate_importance changed=1")
    assert 0 < table.locator("tbody tr").count() < 12


def test_without_scripts_words_and_figures_are_there(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert "3 of 12 heads can go for 30.0 points" in page.inner_text("#result")
    assert page.locator("#figures img").count() == len(
        list((Path(address[7:]).parent / "figures").glob("*.png"))
    )
    context.close()


def test_the_picture_in_the_readme_is_taken_by_a_script(tmp_path):
    """In a process of its own: playwright runs one loop in a process, and it is taken."""
    folder = make_run(tmp_path / "outputs" / "digits_vit" / "now", heads=layout(2, 6))
    report = finish_report(folder, "train", layout(2, 6))
    script = Path(__file__).parents[3] / "tools" / "page_picture.py"
    subprocess.run([sys.executable, script, report, tmp_path / "page.png"], check=True, timeout=120)
    with (
        Image.open(tmp_path / "page.png") as taken,
        Image.open(folder / "figures" / "gate_importance.png") as figure,
    ):
        assert taken.width == 1240 and taken.height > 600 and taken.text == figure.text
        assert len(taken.convert("RGB").getcolors(1 << 20)) > 50  # not a blank page
        told = json.loads((tmp_path / "page.json").read_text())
        assert told["commit"] == taken.text.get("Comment", "")
    assert told["said"][0].startswith("3 of 12 heads can go for 30.0 points of test accuracy")
