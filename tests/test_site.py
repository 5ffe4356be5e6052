"""The site builds without the network and without a broken link, and takes every page of docs/ along."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mhprobe.backbones import attach
from mhprobe.measures.svcca import SVCCA
from mhprobe.pages.beside import keep
from mhprobe.pages.html import write_report
from models import tiny_vit
from pages.report_html.conftest import CLASSES, make_run

ROOT = Path(__file__).parents[1]
pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e .[docs]")
pytest.importorskip("mkdocstrings", reason="mkdocstrings is not installed: pip install -e .[docs]")


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_order(navigation: list) -> list[str]:
    """The pages of a navigation, those of sections within sections too."""
    found = []
    for entry in navigation:
        parts = entry.values() if isinstance(entry, dict) else [entry]
        for part in parts:
            found += [part] if isinstance(part, str) else in_order(part)
    return found


def test_the_tables_behind_the_pages_are_one_closed_section(hooks):
    """The theme shows the pages of a section, and folds a section within one until it is opened."""
    pages = [path.name for path in (ROOT / "docs").glob("*.md")]
    (see,) = (part["See"] for part in hooks.navigation(pages) if "See" in part)
    evidence = ["results.md", "headbench.md", "prunebench.md", "reliability.md", "levels.md"]
    assert see[-1] == {"Evidence": evidence}
    assert "Evidence" not in str(hooks.navigation(["look.md"]))


def test_every_page_is_in_the_navigation_once(hooks):
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    pages += ["index.md", "a_new_page.md"]
    assert sorted(in_order(hooks.navigation(pages))) == sorted(pages)
    assert hooks.navigation(pages)[0]["Start"][0] == "index.md"
    assert [*hooks.navigation(pages)[-1].items()] == [
        ("More", ["a_new_page.md"])
    ]  # ORDER names every page of docs/


def test_a_list_behind_a_line_of_text_is_a_list(hooks):
    page = "It says:\n- one\n  goes on\n- two\n\n```\ncode\n- no list\n```"
    assert (
        hooks.lists_stand_apart(page)
        == "It says:\n\n- one\n  goes on\n- two\n\n```\ncode\n- no list\n```"
    )


@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_notebook_is_a_page_with_all_that_it_says_and_shows(hooks, path):
    text, pictures = hooks.notebook(path)
    cells = json.loads(path.read_text())["cells"]
    assert all("".join(cell["source"]).replace("../docs/", "../") in text for cell in cells)
    shown = [
        out
        for cell in cells
        for out in cell.get("outputs", ())
        if "image/png" in out.get("data", {})
    ]
    assert len(pictures) == len(shown) > 0 and all(f"]({name})" in text for name in pictures)
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    printed = [
        line for cell in cells for out in cell.get("outputs", ()) for line in out.get("text", ())
    ]
    assert all(line.rstrip() in text for line in printed)


def with_demo(checkout: Path) -> Path:
    """This checkout, with a demo that has run in it."""
    checkout.mkdir()
    for path in ROOT.iterdir():
        if path.name not in ("outputs", "site"):
            (checkout / path.name).symlink_to(path)
    demo = make_run(checkout / "outputs" / "demo" / "2026-11-23_12-00-00")
    model = tiny_vit(depth=3, num_heads=4, num_classes=len(CLASSES))
    attach(model)
    images = torch.randint(0, 256, (10, 3, 16, 16), dtype=torch.uint8)
    spec = {"size": (16, 16), "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    keep(demo, model, images, torch.zeros(10), CLASSES, [f"image {n}" for n in range(10)], spec)
    write_report(demo)
    return checkout


@pytest.mark.slow
def test_it_builds_without_a_broken_link(tmp_path):
    pytest.importorskip(
        "material", reason="mkdocs-material is not installed: pip install -e .[docs]"
    )
    checkout = with_demo(tmp_path / "checkout")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(
        command, cwd=checkout, text=True, capture_output=True, timeout=300, env=_environment()
    )
    assert done.returncode == 0, done.stderr
    for page in [*(ROOT / "docs").rglob("*.md")]:
        assert (tmp_path / "site" / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file()
    front = (tmp_path / "site" / "index.html").read_text()
    fetched = re.findall(r"<(?:script|link)[^>]+(?:src|href)=\"?(https?:[^\"> ]+)", front)
    assert not [
        address for address in fetched if "github.com/mhprobe" not in address
    ]  # nothing, the search included
    assert (
        "iframe-worker" in front and (tmp_path / "site" / "vendor" / "iframe-worker.js").is_file()
    )
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert (tmp_path / "site" / "notebooks" / f"{path.stem}.html").is_file()
    assert (
        f'href="../notebooks/{path.stem}.html"'
        in (tmp_path / "site" / "tutorials" / "notebooks.html").read_text()
    )
    look = (tmp_path / "site" / "example" / "look.html").read_text()
    example = (tmp_path / "site" / "example.html").read_text()
    assert "china.jpg" in look and all(
        f'src="example/{name}.html"' in example for name in ("look", "report", "live")
    )
    for name, holds in (("report", "gate_importance"), ("live", 'id="live-piece-4"')):
        page = (tmp_path / "site" / "example" / f"{name}.html").read_text()
        assert holds in page and str(checkout) not in page
    assert "prune_heads" in (tmp_path / "site" / "api.html").read_text()
    entry = (tmp_path / "site" / "measures.html").read_text().partition('id="svcca"')[2]
    assert (
        "null_draws" in entry and SVCCA.fooled_by.partition(": ")[2] in entry
    )  # options and more, from the class


def _environment() -> dict[str, str]:
    return {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
