"""Hooks of mkdocs: what the site is made of is found, not listed; links of README, the API and notebooks come along.

The navigation: pages named in ORDER come first, in this order; every other page of docs/ after
them.
"""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

from hydra.utils import get_class
from mkdocs.structure.files import File, Files

from mhprobe.framework.run.members import members

ROOT = Path(__file__).parents[1]
SOURCE = "https://github.com/mhprobe/mhprobe/blob/main/"
ORDER = {  # sections by what a reader wants, and their pages: a page that is not there is left out
    "Start": [
        *("index.md", "your_model.md", "start.md", "commands.md", "example.md"),
        *("tutorials/notebooks.md", "notebooks/", "others.md", "glossary.md"),
    ],
    "See": [
        *(
            "look.md",
            "tutorials/researcher.md",
            "which-measure.md",
            "measures.md",
            "maps.md",
            "reading-figures.md",
        ),
        *("diff.md", "claims.md", "before_after.md", "run-folder.md", "papers/"),
    ],
    "Prune": [
        "tutorials/engineer.md",
        "masking.md",
        "pruning.md",
        "gates.md",
        "models.md",
    ],
    "Train and scale": ["training.md", "scaling.md", "dashboards.md"],
    "Teach": ["tutorials/teacher.md"],
    "Contribute": ["extending.md", "api.md", "changelog.md"],
}
# Tables behind the other pages: a section within a section, which the theme keeps closed.
EVIDENCE = ("results.md", "headbench.md", "prunebench.md", "reliability.md", "levels.md")
BELOW = "See"  # the section that it is the last of


def on_files(files: Files, config: Any) -> Files:
    """Pages that are made, not written: the front page, the API, the changelog, pages to click, notebooks."""
    generated = {
        "index.md": (ROOT / "README.md").read_text().replace("](docs/", "]("),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(),
        "api.md": api(),
        "example.md": example(files, config),
    }
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        generated[f"notebooks/{path.stem}.md"], pictures = notebook(path)
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    for name, text in generated.items():
        files.append(File.generated(config, name, content=text))
    config["nav"] = navigation([file.src_uri for file in files.documentation_pages()])
    return files


def navigation(pages: list[str]) -> list[dict[str, list[Any]]]:
    """Sections with their pages; what no section names is under More. Evidence is a section of one."""
    left = sorted(page for page in pages if page not in EVIDENCE)
    sections: list[dict[str, list[Any]]] = []
    for section, names in ORDER.items():
        here = [
            page
            for name in names
            for page in left
            if page == name or (name.endswith("/") and page.startswith(name))
        ]
        left = [page for page in left if page not in here]
        evidence = [page for page in EVIDENCE if page in pages and section == BELOW]
        shown = [*here, *([{"Evidence": evidence}] if evidence else [])]
        sections += [{section: shown}] if shown else []
    return sections + ([{"More": left}] if left else [])


def lists_stand_apart(markdown: str) -> str:
    """Put an empty line before each list: mkdocs reads a list behind a line of text as more text."""
    lines, apart, fenced = markdown.split("\n"), [], False
    for before, line in zip(["", *lines], lines, strict=False):
        fenced ^= line.lstrip().startswith("```")
        begins = (
            re.match(r"([-*]|\d+\.) ", line)
            and before.strip()
            and not re.match(r"\s|([-*]|\d+\.) ", before)
        )
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
        if place.suffix == ".ipynb":
            return f"]({os.path.relpath(place.relative_to(ROOT).with_suffix('.md'), here)})"
        folder = ROOT / "docs" / target
        if base == ROOT and folder.is_dir():  # of README: a folder of pages stands for its first
            first = (
                folder / "README.md"
                if (folder / "README.md").exists()
                else sorted(folder.glob("*.md"))[0]
            )
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
        markdown = re.sub(
            rf"(^## {name}\n.*?)(?=^## |\Z)", rf"\g<1>{more}", markdown, flags=re.M | re.S
        )
    return markdown


def api() -> str:
    """What a notebook uses, from its docstrings."""
    import mhprobe

    names = [f"mhprobe.{home}.{name}" for name, home in sorted(mhprobe._HOME.items())]
    return "\n\n".join(
        [
            "# API",
            "[Measures](measures.md) have a page of their own.",
            *(f"::: {name}" for name in names),
        ]
    )


def notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as it is committed: its text with what it printed, and its pictures by file name."""
    parts, pictures = [], {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"]).replace("](../docs/", "](../")
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for out in cell.get("outputs", ()):
            data = out.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures)}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![output of the cell above]({name})")
            elif text := "".join(out.get("text", data.get("text/plain", ""))).rstrip():
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n", pictures


def example(files: Files, config: Any) -> str:
    """Pages to click: photographs seen by the ViT-S, and the newest demo of this checkout, whole."""
    import sklearn.datasets

    import mhprobe

    photos = Path(sklearn.datasets.__file__).parent / "images"
    look = mhprobe.look(
        ROOT / "weights" / "cifar10_vit_dinov2.safetensors", photos, show_progress=False
    )
    whose = "photographs (danielbuechele and vultilion, CC BY 2.0), seen by a ViT-S fine-tuned on CIFAR-10"
    pages = {"look": (look.page, whose)}
    runs = sorted(
        (ROOT / "outputs" / "demo").glob("*/report.html"), key=lambda path: path.stat().st_mtime
    )
    for name, what in (
        ("report", "the report of the demo"),
        ("live", "the same, with heads that switch live"),
    ):
        if runs and (page := runs[-1].with_name(f"{name}.html")).is_file():
            text = (
                page.read_text(encoding="utf-8")
                .replace(str(ROOT) + "/", "")
                .replace(str(ROOT), ".")
            )
            pages[name] = text, what
    for name, (text, _) in pages.items():
        files.append(File.generated(config, f"example/{name}.html", content=text))
    shown = [
        f"[{what[0].upper()}{what[1:]}](example/{name}.html).\n\n"
        f'<iframe src="example/{name}.html" title="{what}" loading="lazy" '
        'style="width:100%;height:80vh"></iframe>\n'
        for name, (_, what) in pages.items()
    ]
    more = (
        "" if runs else "`make demo` writes more: open `report.html` in the folder that it names.\n"
    )
    return "\n".join(["# Pages to click\n", *shown, more])
