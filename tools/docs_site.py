"""Hooks of mkdocs: what the site is made of is found, not listed. README's links, the API and the example come along.

The navigation: pages named in ORDER come first, in this order; every other page of docs/ after them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hydra.utils import get_class
from mkdocs.structure.files import File, Files

from mhprobe.run.members import members

ROOT = Path(__file__).parents[1]
SOURCE = "https://github.com/mhprobe/mhprobe/blob/main/"
ORDER = {  # sections by what a reader wants, and their pages: a page that is not there is left out
    "Start": [
        *("index.md", "your_model.md", "start.md", "commands.md", "example.md"),
        *("tutorials/notebooks.md", "others.md", "glossary.md"),
    ],
    "See": [
        *("look.md", "tutorials/researcher.md", "which-measure.md", "measures.md", "maps.md", "reading-figures.md"),
        *("headbench.md", "claims.md", "results.md", "before_after.md", "run-folder.md", "papers/"),
    ],
    "Prune": ["tutorials/engineer.md", "masking.md", "pruning.md", "gates.md", "models.md"],
    "Train and scale": ["training.md", "scaling.md", "dashboards.md"],
    "Teach": ["tutorials/teacher.md"],
    "Contribute": ["extending.md", "api.md", "reliability.md", "levels.md", "changelog.md"],
}


def on_files(files: Files, config: Any) -> Files:
    """Pages that are made, not written: the front page, the API, the changelog, the example."""
    made = {
        "index.md": (ROOT / "README.md").read_text().replace("](docs/", "]("),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "api.md": api(),
        "example.md": example(files, config),
    }
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    config["nav"] = navigation([file.src_uri for file in files.documentation_pages()])
    return files


def navigation(pages: list[str]) -> list[dict[str, list[str]]]:
    """Sections with their pages; what no section names is under More."""
    left = sorted(pages)
    found = []
    for section, names in ORDER.items():
        here = [
            page for name in names for page in left if page == name or (name.endswith("/") and page.startswith(name))
        ]
        left = [page for page in left if page not in here]
        found += [{section: here}] if here else []
    return found + ([{"More": left}] if left else [])


def lists_stand_apart(markdown: str) -> str:
    """Put an empty line before each list: mkdocs reads a list behind a line of text as more text."""
    lines, apart, fenced = markdown.split("\n"), [], False
    for before, line in zip(["", *lines], lines, strict=False):
        fenced ^= line.lstrip().startswith("```")
        begins = re.match(r"([-*]|\d+\.) ", line) and before.strip() and not re.match(r"\s|([-*]|\d+\.) ", before)
        apart += ["", line] if begins and not fenced else [line]
    return "\n".join(apart)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make lists lists, let links to files outside docs/ lead to the source, give measures their docstrings."""
    markdown = lists_stand_apart(markdown)
    if page.file.src_uri == "measures.md":
        markdown = with_docstrings(markdown)
    here = Path(page.file.src_uri).parent

    def outside(match: re.Match[str]) -> str:
        target = match[1]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        base = ROOT if page.file.src_uri in ("index.md", "changelog.md") else ROOT / "docs" / here
        place = Path(os.path.normpath(base / target.partition("#")[0]))
        folder = ROOT / "docs" / target
        if base == ROOT and folder.is_dir():  # of README: a folder of pages stands for its first
            first = folder / "README.md" if (folder / "README.md").exists() else sorted(folder.glob("*.md"))[0]
            return f"]({first.relative_to(ROOT / 'docs')})"
        inside = place.is_relative_to(ROOT / "docs") or not place.exists()
        return match[0] if inside else f"]({SOURCE}{place.relative_to(ROOT)})"

    return re.sub(r"\]\(([^)\s]+)\)", outside, markdown)


def with_docstrings(markdown: str) -> str:
    """Each entry of docs/measures.md, followed by what its class says: what fools it, its options and columns."""
    shown = "{show_root_heading: false, show_root_toc_entry: false, show_bases: false}"
    for name, part in members("measure").items():
        fooled_by = get_class(part["_target_"]).fooled_by
        more = f"**Fooled by:** {fooled_by}.\n\n::: {part['_target_']}\n    options: {shown}\n\n"
        markdown = re.sub(rf"(^## {name}\n.*?)(?=^## |\Z)", rf"\g<1>{more}", markdown, flags=re.M | re.S)
    return markdown


def api() -> str:
    """What a notebook uses, from its docstrings."""
    import mhprobe

    names = [f"mhprobe.{home}.{name}" for name, home in sorted(mhprobe._HOME.items())]
    return "\n\n".join(
        ["# API", "[Measures](measures.md) have a page of their own.", *(f"::: {name}" for name in names)]
    )


def example(files: Files, config: Any) -> str:
    """The report of the newest demo of this checkout, whole."""
    runs = sorted((ROOT / "outputs" / "demo").glob("*/report.html"), key=lambda path: path.stat().st_mtime)
    if not runs:
        return "# An example\n\n`make demo` writes one: open `report.html` in the folder that it names.\n"
    text = runs[-1].read_text(encoding="utf-8").replace(str(ROOT) + "/", "").replace(str(ROOT), ".")
    files.append(File.generated(config, "example/report.html", content=text))
    return (
        "# An example\n\nThe report of the demo, with its head atlas, as `make demo` writes it: "
        "[open it alone](example/report.html).\n\n"
        '<iframe src="example/report.html" title="report of the demo" style="width:100%;height:80vh"></iframe>\n'
    )
