"""The picture of a report that README opens with.

python tools/page_picture.py <run>/report.html docs/figures/report_page.png
The heads that can go, as the page's first sentence says, are off, and the head of the largest
importance is open. What the page says in words lies beside the picture as .json: tests hold README
to it. Needs Chromium, and playwright (the extra "test").
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Page, sync_playwright

WIDTH, HEIGHT = 1240, 1500  # pixels; what is known of a head is as high as the window at most


def picture(page: Page, home: Path) -> bytes:
    """The sentences, the grid of heads and the masking curve, as a PNG.

    home: where the command was typed; neither it nor the cache is shown.
    """
    many = re.search(r"\d+", sentences(page)[0])  # in an order of single heads as many steps
    page.evaluate(
        "([step, many]) => { step.value = many; step.dispatchEvent(new Event('input')); }",
        [page.query_selector("#step"), int(many[0]) if many else 1],
    )
    values = json.loads(page.text_content("#data") or "")["measures"]
    (importance,) = (
        measure["columns"]["value"] for measure in values if measure["key"] == "gate_importance"
    )
    page.click(f'#grid [data-id="{importance.index(max(importance))}"]')
    page.locator("#chosen-command code, #chosen-command pre").first.evaluate(
        "(code, home) => { code.textContent = code.textContent.replace(home, '')"
        "                                                     .replace(/cache_dir=\\S+ /, ''); }",
        f"{home}/",
    )
    top, bottom = (page.locator(where).bounding_box() for where in ("#result", "#curve"))
    assert top is not None and bottom is not None
    height = bottom["y"] + bottom["height"] - top["y"] + 12
    return page.screenshot(
        full_page=True, clip={"x": 0, "y": top["y"] - 4, "width": WIDTH, "height": height}
    )


def sentences(page: Page) -> list[str]:
    """The result in words, a sentence each."""
    return [
        " ".join(text.split()) for text in page.locator("#result .words li").all_text_contents()
    ]


def main(report: Path, to: Path) -> None:
    browser = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
    )
    with sync_playwright() as started:
        chromium = started.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-gpu"]
        )
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        home = report.resolve().parents[3]  # of outputs/<experiment>/<run>
        taken = Image.open(io.BytesIO(picture(page, home)))
        words = sentences(page)
        chromium.close()
    info = PngInfo()
    with Image.open(report.parent / "figures" / "gate_importance.png") as figure:  # of the same run
        for key, value in figure.text.items():
            info.add_text(key, value)
        origin = dict(figure.text)
    taken.convert("RGB").quantize(256).save(to, pnginfo=info, optimize=True)
    record = {"commit": origin.get("Comment", ""), "said": words}
    to.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
