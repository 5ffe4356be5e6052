"""README and docs: every block of Python runs, every command composes, every file that is linked is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import timm
import torch

import runs

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
COMMAND = re.compile(r"python -m mhprobe\.(\S+)")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language that no test has claimed by a comment ``<!-- name -->`` before it."""
    found = re.findall(rf"(<!-- .+? -->\n)?```{language}\n(.*?)```", page.read_text(), re.S)
    return [text for claimed, text in found if not claimed]


def commands() -> list[tuple[str, str]]:
    """(page, one command) of every bash block, with variables put in and lines that end in a backslash joined."""
    found = []
    for page in PAGES:
        for block in blocks(page, "bash"):
            variables: dict[str, str] = {}
            for line in block.replace("\\\n", "").splitlines():
                line = re.sub(r"\s+#.*|^#.*", "", line)
                if match := re.fullmatch(r'(\w+)="?(.*?)"?', line):
                    variables[match[1]] = match[2]
                    continue
                for name, value in variables.items():
                    line = line.replace(f"${name}", value)
                if line.strip():
                    found.append((page.name, line.strip()))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mhprobe.measures.base.MeasureWarning")  # two images are few
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_in_the_docs_runs(page, tmp_path, monkeypatch):
    """With random weights in the place of pretrained ones, and two images."""
    monkeypatch.chdir(tmp_path)
    make = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **kwargs: make(name, **kwargs))
    images, labels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2])
    given = {"images": images, "labels": labels, "loader": [(images, labels)]}
    for block in blocks(page, "python"):
        exec(compile(block, f"{page.name}", "exec"), given)  # a block goes on from the one before


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_in_the_docs_compose(page, line):
    words = shlex.split(re.sub(r"<[^>]*>", "given", line))
    if words[0] == "make":
        assert words[1] in TARGETS
    if words[:2] != ["python", "-m"] or not words[2].startswith("mhprobe."):
        return
    command, overrides = words[2].removeprefix("mhprobe."), words[3:]
    if "-m" in overrides or "--multirun" in overrides:
        overrides = [re.sub(r"=([^\[,]+),.*", r"=\1", part) for part in overrides if part not in ("-m", "--multirun")]
    if any("=" in part for part in overrides):
        runs.checked(command, *overrides)


def test_there_are_commands_and_blocks_to_try():
    assert len(commands()) > 10 and sum(len(blocks(page, "python")) for page in PAGES) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not t.startswith("mailto:") and not (page.parent / t).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_the_text_names_exist(page):
    for name in COMMAND.findall(page.read_text()):
        place = ROOT / "src" / "mhprobe" / name.strip("`.,;:)").replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), name
