"""The loop that shows a page of mhprobe look, and heads of a live page that are switched off.

python tools/look_loop.py look.html <run>/live.html docs/figures/look.webp
Needs Chromium, and playwright (the extra "test").
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

WIDTH, HEIGHT, SHOWN = 1180, 760, 900  # pixels of the window, and the width of the loop
SECONDS = 1.2  # a step
MOST = 1_000_000  # bytes
ANSWERED = "document.getElementById('live').dataset.answered"
STEPS = (  # a photograph, and a place in it from left and top
    *((0, 0.50, 0.30), (0, 0.62, 0.75), (0, 0.15, 0.20)),
    *((1, 0.35, 0.40), (1, 0.50, 0.66), (1, 0.90, 0.30)),
    *((2, 0.45, 0.55), (2, 0.70, 0.75), (2, 0.20, 0.30)),
)


def steps(page: Page) -> Iterator[Image.Image]:
    """A picture of the page after each click."""
    for photograph, x, y in STEPS:
        page.locator("#strip button").nth(photograph).click()
        page.wait_for_timeout(300)
        box = page.locator("#photo").bounding_box()
        assert box is not None
        page.locator("#photo").click(position={"x": x * box["width"], "y": y * box["height"]})
        page.wait_for_timeout(200)
        yield shot(page)


def switches(page: Page) -> Iterator[Image.Image]:
    """A picture of the live page after each of three rows of heads is switched off."""
    page.wait_for_function(f"() => {ANSWERED} !== undefined", timeout=120_000)
    for block in ("Block 1", "Block 2", "Block 3"):
        before = page.evaluate(ANSWERED)
        page.get_by_role("button", name=block, exact=True).click()
        page.wait_for_function(f"(before) => {ANSWERED} !== before", arg=before, timeout=120_000)
        page.evaluate("document.getElementById('grid').scrollIntoView({behavior: 'instant'})")
        yield shot(page)


def shot(page: Page) -> Image.Image:
    taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    return taken.resize((SHOWN, SHOWN * taken.height // taken.width), Image.Resampling.LANCZOS)


def main(page_file: Path, live_file: Path, to: Path) -> None:
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    )
    with sync_playwright() as started:
        chromium = started.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-gpu"]
        )
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(page_file.resolve().as_uri())
        page.wait_for_selector(".tile canvas")
        first, *others = steps(page)
        page.goto(live_file.resolve().as_uri())
        others += switches(page)
        chromium.close()
    for quality in (70, 55, 40, 25):
        first.save(
            to,
            save_all=True,
            append_images=others,
            duration=int(1000 * SECONDS),
            loop=0,
            quality=quality,
            method=4,
        )
        if to.stat().st_size < MOST:
            return
    raise SystemExit(f"{to} has {to.stat().st_size:,} bytes, expected fewer than {MOST:,}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
