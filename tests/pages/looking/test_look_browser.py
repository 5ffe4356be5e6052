"""The page of a network and photographs in a real browser: a click shows the model's own weights."""

from __future__ import annotations

import zipfile

import pytest
import torch

import mhprobe
from located import LOCATED
from mhprobe.pages.looking.page import look
from models import tiny_registers, tiny_swin
from pages.looking.conftest import HOSTILE
from pages.report_html.conftest import EVIL
from pages.report_html.test_browser import browser, pytestmark, visit

__all__ = ["browser", "pytestmark", "visit"]  # fixtures and marks of the other pages
READ = "([number, index, token, towards]) => [...given(number, index, token, towards)].map((w) => (isNaN(w) ? 0 : w))"


@pytest.fixture(scope="module")
def pages(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("look")
    made = {}
    for name, make in (("vit", tiny_registers), ("swin", tiny_swin)):
        model = make()
        path = look(model, folder, show_progress=False).save(place / f"{name}.html")
        images = next(iter(mhprobe.photos(folder, model)))
        made[name] = (path.as_uri(), model, images)
    return made


@pytest.mark.parametrize("name", ["vit", "swin"])
def test_a_page_shows_the_weights_of_the_model_from_a_patch_and_towards_it(visit, pages, name):
    address, model, images = pages[name]
    page = visit(f"{address}#image=1")
    page.wait_for_selector(".tile canvas")
    site = mhprobe.attach(model).layout.sites[0]
    query = (2, 1)
    token = site.prefix_tokens + query[0] * site.token_grid[1] + query[1]
    expected = mhprobe.attention(model, images[1:2], head=[1], query=query)[0, 0].flatten()
    seen = torch.tensor(page.evaluate(READ, [0, 1, token, False]))[site.prefix_tokens :]
    assert (
        seen - expected
    ).abs().max() <= expected.max() / 63 + 1e-4 and expected.max() > 2 * expected.mean()
    for other in ((0, 0), (2, 3)):  # who looks at (2, 1): what each other patch gives it
        back = mhprobe.attention(model, images[1:2], head=[1], query=other)[0, 0]
        seen = page.evaluate(READ, [0, 1, token, True])[
            site.prefix_tokens + other[0] * site.token_grid[1] + other[1]
        ]
        assert abs(seen - back[query]) <= back.max() / 63 + 1e-4


def test_clicks_keys_and_menus_choose_and_the_link_remembers(visit, pages):
    address = pages["vit"][0]
    page = visit(address)
    page.wait_for_selector(".tile canvas")
    assert page.locator(".tile").count() == 6 and page.locator("#strip button").count() == 5
    page.locator("#photo").click(position={"x": 5, "y": 5})
    assert "row 0, column 0" in page.inner_text("#asked")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "row 1, column 1" in page.inner_text("#asked")
    page.get_by_role("button", name="register 1").click()
    assert "where register 1 looks" in page.inner_text("#asked")
    page.check("#towards")
    assert "who looks at register 1" in page.inner_text("#asked")
    before = page.locator("#open figure").count()
    page.locator(".tile").last.click()
    assert page.locator("#open figure").count() in (before + 1, before - 1)
    for sort in ("likeness", "entropy of attention (nats)"):
        page.select_option("#sort", sort)
        assert " · " in page.locator(".tile b").first.inner_text()
    page.check("#across")
    assert page.locator(".heads-row").count() == 1
    page.locator("#strip button").nth(3).click()
    page.wait_for_function("() => location.hash.includes('image=3')")
    again = visit(page.url)
    again.wait_for_selector(".tile canvas")
    assert again.inner_text("#asked") == page.inner_text("#asked")
    assert again.input_value("#sort") == "entropy of attention (nats)"


def test_a_sentence_shows_its_heads(visit, pages):
    page = visit(pages["swin"][0])
    page.wait_for_selector(".tile canvas")
    for button in page.locator("#told .link").all():
        button.click()
        assert page.locator("#open figure").count() >= 1


def test_a_sentence_shows_its_heads_with_no_query_of_before(visit, pages):
    page = visit(f"{pages['vit'][0]}#image=0&at=0.9,0.9&towards=1")
    page.wait_for_selector(".tile canvas")
    assert "at=0.900,0.900" in page.evaluate("location.hash") or page.evaluate("view.x") == 0.9
    page.locator("#told .link").first.click()
    assert page.evaluate("[view.x, view.y, view.token, view.towards]") == [0.5, 0.5, None, False]


def test_hostile_names_are_text(visit, pages):
    page = visit(f"{pages['vit'][0]}#image=0&at=9,x&heads=4000,-1&sort=<b>")
    page.wait_for_selector(".tile canvas")
    names = [button.get_attribute("title") for button in page.locator("#strip button").all()]
    assert (
        HOSTILE in names
        and page.locator("img[src=x]").count() == 0
        and "49" not in page.inner_text("#asked")
    )
    page.locator("#strip button").nth(names.index(HOSTILE)).click()
    page.wait_for_function("() => document.getElementById('asked').textContent.includes('onerror')")


def test_names_in_an_archive_are_text_too_and_so_are_those_of_broken_files(
    visit, pages, folder, tmp_path
):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.write(folder / "a.jpg", f"{EVIL}.jpg")
        archive.writestr(f"{EVIL}broken.jpg", b"no picture")
    model = tiny_registers()
    model.pretrained_cfg = {**model.pretrained_cfg, "architecture": EVIL}
    page = visit(
        look(model, tmp_path / "photos.zip", show_progress=False).save(tmp_path / "l.html").as_uri()
    )
    page.wait_for_selector(".tile canvas")
    assert page.inner_text("h1") == f"{EVIL} looks at 1 photograph"
    assert page.locator("#strip button").get_attribute("title") == f"{EVIL}.jpg"
    assert f"Left out: {EVIL}broken.jpg is damaged" in page.inner_text("#about")
    assert page.inner_text("#asked").startswith(f"{EVIL}.jpg: where the patch")


def test_a_class_token_that_is_not_there_is_not_offered_and_a_link_to_it_shows_the_patch(
    visit, pages
):
    page = visit(f"{pages['swin'][0]}#at=token,0")
    page.wait_for_selector(".tile canvas")
    assert page.locator(
        "#tokens button"
    ).count() == 0 and "where the patch in row" in page.inner_text("#asked")
    assert visit(pages["vit"][0]).get_by_role("button", name="Class token").count() == 1


def test_a_class_token_of_late_blocks_is_offered_and_early_heads_say_that_they_have_it_not(
    visit, folder, tmp_path
):
    model = LOCATED["convit"]()
    page = visit(
        look(model, folder, limit=1, show_progress=False).save(tmp_path / "late.html").as_uri()
    )
    page.wait_for_selector(".tile canvas")
    page.get_by_role("button", name="Class token").click()
    has = [
        bool(site.class_token)
        for site in mhprobe.attach(model).layout.sites
        for _ in range(site.num_heads)
    ]
    said = [
        tile.get_attribute("title").endswith("not in this block")
        for tile in page.locator(".tile").all()
    ]
    assert said == [not each for each in has] and len(set(said)) == 2


def test_without_attention_between_patches_there_are_photographs_sentences_and_the_reason(
    visit, folder, tmp_path
):
    found = look(LOCATED["xcit"](), folder, show_progress=False)
    page = visit(found.save(tmp_path / "xcit.html").as_uri())
    page.locator("#strip button").nth(2).click()
    assert (
        "cannot be shown: blocks.0.attn (XCA): no attention weights to look at"
        in page.inner_text("#look")
    )
    assert page.inner_text("#asked") == page.locator("#strip button").nth(2).get_attribute("title")
    assert page.locator("#told li").count() == len(found.sentences) > 0
    assert not page.locator("#choices").is_visible() and page.locator(".tile:visible").count() == 0


def test_tiles_are_those_of_heads_between_tokens_and_a_link_to_another_head_opens_none(
    visit, folder, tmp_path
):
    model = LOCATED["davit_channels_v2"]()
    file = look(model, folder, limit=1, untrained=False, show_progress=False).save(
        tmp_path / "davit.html"
    )
    layout, page = mhprobe.attach(model).layout, visit(f"{file.as_uri()}#heads=2")
    page.wait_for_selector(".tile canvas")
    shown = [flat for flat, (_, _, site) in enumerate(layout) if site.windows]
    assert (
        2 not in shown
        and [int(tile.get_attribute("data-id")) for tile in page.locator(".tile").all()] == shown
    )
    assert page.locator(".tile canvas").count() == len(shown)
    assert page.locator("#open figure").count() == page.locator("#open canvas").count() == 2


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window_and_people_can_read_it(visit, pages, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for theme in ("light", "dark"):
        page = visit(pages["vit"][0], width=width, theme=theme)
        page.wait_for_selector(".tile canvas")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.Axe().run(page).response["violations"]
        assert found == [], [(each["id"], each["nodes"][0]["html"]) for each in found]


def test_a_printed_row_of_heads_is_whole_and_open_heads_stand_beside_the_photograph(visit, pages):
    page = visit(pages["vit"][0], width=720)
    page.locator(".tile").first.click()
    page.emulate_media(media="print")
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.heads-row')).breakInside")
        == "avoid"
    )
    photo, opened = page.locator("#photo").bounding_box(), page.locator("#open").bounding_box()
    assert opened["x"] >= photo["x"] + photo["width"] and opened["width"] > photo["width"]
    assert opened["y"] < photo["y"] + 9
    assert page.locator("button:not(.tile):visible").count() == 0
    assert "on its own scale" in page.inner_text("#key") and "click" not in page.inner_text("#key")
