"""README and docs: every block of Python runs, every command composes, every file that is linked is there."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

import runs
from mhprobe.framework.run import sections

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
COMMAND = re.compile(r"python -m mhprobe\.(\S+)")


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language that no test has claimed by a comment ``<!-- name -->`` before it."""
    found = re.findall(rf"(<!-- .+? -->\n)?```{language}\n(.*?)```", page.read_text(), re.S)
    return [text for claimed, text in found if not claimed]


CLAIMS = [
    (page.name, name)
    for page in PAGES
    for name in re.findall(r"<!-- (.+?) -->\n```", page.read_text())
]


@pytest.mark.parametrize(("page", "name"), CLAIMS)
def test_a_block_that_is_claimed_is_read_by_a_test(page, name):
    texts = [
        path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)
    ]
    assert any(
        page in text and (f'"{name}"' in text or f"<!-- {name} -->" in text) for text in texts
    )


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
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name
)
def test_python_in_the_docs_runs(page, tmp_path, monkeypatch):
    """With random weights in the place of pretrained ones, two images, and a folder of three photographs."""
    monkeypatch.chdir(tmp_path)
    make = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, pretrained=False, **kwargs: make(name, **kwargs)
    )
    images, labels = (
        torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0)),
        torch.tensor([1, 2]),
    )
    (tmp_path / "weights").symlink_to(ROOT / "weights")
    given = {"images": images, "labels": labels, "loader": [(images, labels)]}
    if page.name == "README.md":  # which is pasted as it stands: nothing is given
        given = {}
    (tmp_path / "holiday").mkdir()
    for number in range(3):
        Image.new("RGB", (300, 200), (80 * number, 90, 120)).save(
            tmp_path / "holiday" / f"{number}.png"
        )
    for block in blocks(page, "python"):
        exec(compile(block, f"{page.name}", "exec"), given)  # a block goes on from the one before


def single(override: str) -> str:
    """Of a sweep over a setting one job."""
    if match := re.fullmatch(
        r"([^=]+)=\w+\(.*?([\d.e-]+).*\)", override
    ):  # tag(log, interval(0.01, 1))
        return f"{match[1]}={match[2]}"
    return re.sub(r"=([^\[,]+),.*", r"=\1", override)


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_in_the_docs_compose(page, line):
    words = shlex.split(re.sub(r"<[^>]*>", "given", line))
    if words[0] == "make":
        assert words[1] in TARGETS
        return
    if words[0].endswith(".sh"):
        assert (ROOT / "launch" / Path(words[0]).name).is_file()
        return
    if words[:2] != ["python", "-m"] or not words[2].startswith("mhprobe."):
        assert words[0] == "pip" or "mhprobe --install-completion" in line  # no command of ours
        return
    command, overrides = words[2].removeprefix("mhprobe."), words[3:]
    if command not in sections.commands_of_conf():
        file = place(command)
        assert all(
            f'"{option}"' in file.read_text() for option in overrides if option.startswith("--")
        )
        return
    if any(
        part in ("-m", "--multirun") or part.startswith(("hydra/launcher", "hydra/sweeper"))
        for part in overrides
    ):
        overrides = [single(part) for part in overrides if part not in ("-m", "--multirun")]
    runs.checked(
        command, *(part for part in overrides if not part.startswith(("hydra.", "hydra/")))
    )


def test_bash_makes_no_two_words_of_one_override():
    bare = [
        re.sub(r"'[^']*'|\"[^\"]*\"", "", line) for _, line in commands()
    ]  # {head:0.9,neuron:0.75} needs quotes
    assert not [line for line in bare if re.search(r"\{[^ }]*,", line)]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_there_are_commands_and_blocks_to_try():
    assert len(commands()) > 10 and sum(len(blocks(page, "python")) for page in PAGES) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    missing = [
        t
        for t in targets
        if "://" not in t and not t.startswith("mailto:") and not (page.parent / t).exists()
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_the_text_names_exist(page):
    for name in COMMAND.findall(page.read_text()):
        assert place(name.strip("`.,;:)")).is_file(), name


def place(command: str) -> Path:
    """The file that ``python -m mhprobe.<command>`` runs."""
    path = ROOT / "src" / "mhprobe" / command.replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


PICTURE = (
    ROOT / "docs" / "figures" / "report_page.png"
)  # tools/page_picture.py takes it, and writes the words beside it


def test_the_readme_says_of_its_picture_what_the_run_in_it_says():
    told = json.loads(PICTURE.with_suffix(".json").read_text())
    with Image.open(PICTURE) as picture:
        assert picture.text["Comment"] == told["commit"]  # the same run
    quoted = re.findall(r"(?:^>.*\n)+", (ROOT / "README.md").read_text(), re.M)
    assert len(quoted) == 1
    sentences = [
        " ".join(part.replace(">", " ").split()) for part in re.split(r"^>$", quoted[0], flags=re.M)
    ]
    assert sentences == told["said"][: len(sentences)] and len(sentences) >= 3


FIGURES = sorted((ROOT / "docs" / "figures").glob("*.png"))


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.stem)
def test_a_figure_says_what_made_it_and_stands_on_a_page(figure):
    with Image.open(figure) as image:
        said = image.text
    assert said["Source"].startswith(
        ("python -m mhprobe.", "python -m benchmarks.", "python tools/")
    )
    assert any(f"figures/{figure.name}" in page.read_text() for page in PAGES)
    word, commit = said["Comment"].split()
    assert word == "commit" and re.fullmatch("[0-9a-f]{12}", commit), said  # not -dirty
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no checkout with its history")
    assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, (
        f"{commit} was never landed"
    )
