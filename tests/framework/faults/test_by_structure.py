"""What people and other programs write: JSON, tables and overrides of any structure give an answer or one line.

FUZZ=2000 python -m pytest tests/framework/faults/test_by_structure.py: so many of each instead of a few.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

import forks
import mhprobe
import runs
from mhprobe.backbones import build
from mhprobe.errors import UserError
from mhprobe.framework.run import cli, image_data, launch, networks, sections, trainers
from mhprobe.framework.run.questions import of_run
from mhprobe.framework.run.schema import check
from mhprobe.heads import HeadLayout
from mhprobe.io.head_tables import read_column, read_kept
from mhprobe.pruning.given import Given
from mhprobe.weights.checkpoint import as_json, load_weights, save_weights

BUDGET = int(os.environ.get("FUZZ", 40))
SECONDS, BYTES = 10, 2 * 2**30  # of one file or command line: of processor time, and of memory
fuzzed = settings(
    max_examples=BUDGET,
    deadline=None,
    derandomize="FUZZ" not in os.environ,
    suppress_health_check=list(HealthCheck),
    database=None,
)

BACKBONE = {
    "name": "vit_tiny_patch16_224",
    "img_size": 8,
    "patch_size": 4,
    "embed_dim": 12,
    "depth": 1,
    "num_heads": 2,
}
ABOUT = {
    "backbone": BACKBONE,
    "class_names": ["ape", "bee"],
    "data": "zoo",
    "gates": [1.0, 0.5],
    "gates_kept": [1, 0],
}
SIX = build(**{**BACKBONE, "num_heads": 6}, num_classes=2)
LAYOUT: HeadLayout = mhprobe.attach(SIX).layout

# small: a forged size that is allowed must not take minutes
scalars = st.none() | st.booleans() | st.integers(-3, 70) | st.floats() | st.text(max_size=12)
plain = st.recursive(
    scalars | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
)


def one_line(error: UserError) -> bool:
    return "\n" not in str(error) and len(str(error)) < 600


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No connection and no program."""

    def refuse(*args, **options):
        if args and list(args[0])[:1] == ["git"]:  # ours: the commit that the run is of
            raise OSError("no git here")
        raise AssertionError(f"what a stranger gave made {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)


class Bounded:
    """A with block in which a UserError is one line, and time and memory are limited."""

    def __enter__(self) -> None:
        self.begun, self.held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF)

    def __exit__(self, kind, error, trace) -> bool:
        # two processes of one core take longer by its own clock, too
        assert time.process_time() - self.begun < forks.patient(SECONDS)
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.held.ru_maxrss
        assert 1024 * held < BYTES
        if isinstance(error, UserError):
            assert one_line(error), error
            return True
        return False


# the JSON of weights


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("pair") / "m.safetensors"
    save_weights(build(**BACKBONE, num_classes=2), path, ABOUT)
    return path


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every part of a JSON value."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [before, *(place for key, part in inner for place in places(part, (*before, key)))]


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    key, *rest = place
    if isinstance(value, list):
        return [
            replaced(part, tuple(rest), new) if i == key else part for i, part in enumerate(value)
        ]
    inside = value if isinstance(value, dict) else {}  # an earlier part may have put anything there
    return {**inside, key: replaced(inside.get(key), tuple(rest), new)}


@fuzzed
@given(data=st.data())
def test_the_json_of_weights_with_any_part_replaced(pair, data):
    """Its digest is right each time: what is held against it is the schema, and what timm builds."""
    description = json.loads(pair.with_suffix(".json").read_text())
    known = [place for place in places(description) if place[:1] not in (("sha256",), ("digest",))]
    added = [
        ("backbone", "drop_path_rate"),
        ("backbone", "class_token"),
        ("backbone", "checkpoint_path"),
        ("kept",),
    ]
    for _ in range(data.draw(st.integers(1, 3))):
        description = replaced(
            description, data.draw(st.sampled_from([*known, *added])), data.draw(plain)
        )
        if not isinstance(description, dict):
            break
        known = [place for place in known if place in places(description)] or [()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.safetensors"
        path.write_bytes(pair.read_bytes())
        whole = isinstance(description, dict)
        text = as_json(description) if whole else json.dumps(description).encode()
        path.with_suffix(".json").write_bytes(text)
        try:
            model, about = load_weights(path)
        except UserError as error:
            assert one_line(error)
        else:
            assert about["backbone"]["name"] and isinstance(model, torch.nn.Module)


@pytest.mark.parametrize("value", [2**63, 2**70, 1])
def test_gates_that_are_whole_numbers_are_numbers_of_any_size(pair, tmp_path, value):
    """Found by the above: a traceback where torch has no whole numbers of that size."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(pair.read_bytes())
    description = json.loads(pair.with_suffix(".json").read_text())
    path.with_suffix(".json").write_bytes(as_json({**description, "gates": [1, value]}))
    assert mhprobe.attach(load_weights(path)[0]).values.tolist() == [1.0, float(value)]


# tables

numbers = st.integers(-2, 8).map(str) | st.floats().map(str)
fields = (
    numbers
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
    | st.sampled_from(["", "0", "1", '"'])
)


@st.composite
def tables(draw, columns: tuple[str, ...]) -> str:
    """Mostly the right columns and one row per head; then anything."""
    header = draw(
        st.permutations([*columns, "site"]) | st.lists(st.sampled_from([*columns, ""]), max_size=4)
    )
    rows = [[str(head) if name == "head" else draw(fields) for name in header] for head in range(6)]
    for _ in range(draw(st.integers(0, 2))):
        rows.insert(draw(st.integers(0, len(rows))), draw(st.lists(fields, max_size=5)))
    text = io.StringIO()
    csv.writer(text).writerows([header, *rows])
    return (
        draw(st.sampled_from(["", "\ufeff", "\n"]))
        + text.getvalue()
        + draw(st.sampled_from(["", "\n", '"', "\0"]))
    )


@fuzzed
@given(text=tables(("head", "kept")))
def test_a_table_of_heads_of_any_structure(text):
    with written(text, ".csv") as path:
        with line_or_nothing():
            kept = read_kept(path, LAYOUT)
            assert kept.shape == (6,) and kept.any()
        with line_or_nothing():
            assert read_column(path, "kept", LAYOUT, "here").shape == (6,)


@fuzzed
@given(text=tables(("curve", "split", "step", "heads_masked", "masked")))
@example(text='curve,step,heads_masked,masked\nx,0,0,0\n"a\nb",0,0,0\n')  # a name of two lines
def test_a_table_of_curves_of_any_structure(text):
    with written(text, ".csv") as path, line_or_nothing():
        assert Given(str(path), step=1).choose(SIX).mask.shape == (6,)


@fuzzed
@given(value=plain | st.lists(st.integers(-2, 8), max_size=8))
def test_a_file_of_heads_of_any_structure(value):
    with written(json.dumps(value), ".json") as path, line_or_nothing():
        assert Given(str(path)).choose(SIX).mask.shape == (6,)


@contextlib.contextmanager
def written(text: str, suffix: str):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{suffix}"
        path.write_text(text, encoding="utf-8", errors="replace", newline="")
        yield path


@contextlib.contextmanager
def line_or_nothing():
    try:
        yield
    except UserError as error:
        assert one_line(error)


# overrides

# what names code, a file, a place or the network: tried by name elsewhere
LEFT_OUT = (
    "_target_",
    "hydra",
    "out",
    "cache_dir",
    "pretrained",
    "root",
    "download",
    "init_timeout",
)
WORDS = [
    "null",
    "true",
    "[]",
    "{}",
    "[1,2]",
    "abc",
    "''",
    "nan",
    "inf",
    "1e309",
    "${seed}",
    "${nope}",
    "{a:1}",
    "???",
]
values = (
    st.sampled_from(WORDS)
    | st.sampled_from(["-1", "0", "1", "2", "3", "7", "0.5", "-0.5", "1.5"])
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=6)
)


def keys(cfg: DictConfig) -> list[str]:
    """Every setting of a command that an override may name, sections too."""
    plain = OmegaConf.to_container(cfg, resolve=False)
    named = [
        ".".join(place)
        for place in places(plain)
        if place and all(isinstance(part, str) for part in place)
    ]
    return [key for key in named if not any(part in key for part in LEFT_OUT)]


@functools.cache
def keys_of(command: str) -> list[str]:
    return keys(runs.composed(command, *runs.TINY))


@st.composite
def overrides(draw) -> tuple[str, str, str]:
    """A command, the key, and what is said of it."""
    command = draw(st.sampled_from(["mask", "probe", "prune", "train"]))
    key = draw(st.sampled_from(keys_of(command)))
    if draw(st.integers(0, 4)) == 0:
        key += draw(st.sampled_from(["s", ".x", "_", ".0"]))
    sign = draw(st.sampled_from(["", "", "", "", "+", "++", "~"]))
    return command, key, f"{sign}{key}" if sign == "~" else f"{sign}{key}={draw(values)}"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Where the runs go; the process hears signals as before when they are done."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path_factory.mktemp("overrides")
    for number, handler in before.items():
        signal.signal(number, handler)


def everything_but_the_work(command: str, cfg: DictConfig, folder: Path, *_typed: object) -> None:
    checked = check(command, cfg)
    launch._processes(checked.trainer)
    data = image_data.build_images(checked)
    model = networks.build_classifier(checked, data)
    report = trainers.open_report(checked, folder, model.gates.layout)
    asking = of_run(checked, model, data, report)
    trainers.build_trainer(
        checked, [*trainers.build_callbacks(checked, model, data, report), asking], report
    )


def taken_away(command: str, key: str) -> tuple[str, str, str]:
    return command, key, f"~{key}"


def put(command: str, key: str, value: str) -> tuple[str, str, str]:
    return command, key, f"++{key}={value}"


@fuzzed
@given(said=overrides())
@example(
    said=taken_away("prune", "gates")
)  # each was once a traceback, a line of pages, or one that names another key
@example(said=taken_away("train", "data"))
@example(said=taken_away("train", "style"))
@example(said=put("train", "data.source", "0.5"))
@example(said=put("train", "data.augment", "3"))
@example(said=put("mask", "data.seed", "i"))
@example(said=put("probe", "logger.csv", "-1"))
@example(said=put("probe", "backbone.checkpoint", "nan"))
@example(said=put("prune", "optim.teacher", "abc"))
def test_any_override_is_taken_or_answered_in_a_line_that_names_it(place, said):
    command, key, override = said
    told = [
        *runs.known(command, runs.TINY),
        f"out={place}/out",
        f"cache_dir={place}/cache",
        "~logger.csv",
    ]
    told += [] if command == "train" or key == "weights" else ["weights=random"]
    code, err = ends(command, [*told, override])
    lines = [line for line in err.splitlines() if line.strip()]
    if code == 0:
        assert not lines, (override, err)
        return
    assert code == 2 and len(lines) == 1 and lines[0].startswith("mhprobe: "), (
        command,
        override,
        code,
        err,
    )
    assert len(lines[0]) < 900, (override, err)
    assert any(part in lines[0] for part in key.split(".")) or override in lines[0], (override, err)


def ends(command: str, told: list[str]) -> tuple[int, str]:
    """Exit code and stderr of a command line, in this process, without its work."""
    err = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", [f"python -m mhprobe.{command}", *told])
        patch.setattr(launch, "run", everything_but_the_work)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                cli.main(command)
            except SystemExit as end:
                return int(end.code or 0), err.getvalue()
    return 0, err.getvalue()


EVERY = sorted({*sections.commands_of_conf()} - {"fetch"})  # which is given words of others
SAID = json.dumps  # a value as Hydra's grammar takes it, quotes and all
of_any_type = values | plain.map(SAID) | st.lists(plain, max_size=3).map(SAID)
STARTED = {"studies.voita": ["voita.heads=[3]"], "study": ["+paper=clark"]}


@st.composite
def several(draw) -> tuple[str, list[str]]:
    """A command, and up to four words: options, groups and parts of both, with values of any type."""
    command = draw(st.sampled_from(EVERY))
    named = st.sampled_from(keys_of(command))
    grown = st.builds("{}{}".format, named, st.sampled_from(["s", ".x", "@y", "/z", ".0", ""]))
    key = named | grown | st.sampled_from(["data", "backbone", "measure", "nobody", "a.b", "+", ""])
    sign = st.sampled_from(["", "", "+", "++", "~"])
    word = st.builds("{}{}={}".format, sign, key, of_any_type)
    return command, draw(st.lists(word | named.map("~{}".format), min_size=1, max_size=4))


@fuzzed
@given(said=several())
def test_any_words_on_any_command_are_taken_or_answered_in_a_line(place, said):
    command, words = said
    told = [
        *runs.known(command, runs.TINY),
        *STARTED.get(command, []),
        f"out={place}/out",
        f"cache_dir={place}/cache",
        "~logger.csv",
    ]
    told += [] if command == "train" else ["weights=random"]
    with Bounded():
        code, err = ends(command, [*told, *words])
    lines = [line for line in err.splitlines() if line.strip()]
    if code:
        assert code == 2 and lines and "Traceback" not in err, (command, words, err)
        assert lines[0].startswith("mhprobe: ") and len(lines) == 1, (command, words, err)


def test_what_is_right_is_taken(place):
    """Negative control of the above."""
    told = [*runs.TINY, f"out={place}/out", f"cache_dir={place}/cache", "~logger.csv"]
    assert ends("train", told) == (0, "")
    assert ends("train", [*told, "nothing=1"])[0] == 2
