"""docs/claims.md says what docs/tables/claims says, of the networks that the Makefile names."""

from __future__ import annotations

import csv
import importlib.util
import re
from pathlib import Path

import pytest
from PIL import Image

import runs
from mhprobe.errors import UserError
from mhprobe.framework.run.needed import refuse_unneeded
from mhprobe.lab.claims.parts.claim import all_claims

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def tool():
    """tools/claims_matrix.py, as a module."""
    spec = importlib.util.spec_from_file_location(
        "claims_matrix", ROOT / "tools" / "claims_matrix.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(verdict, **more):
    """One row of claims.csv."""
    about = {"matters": "0.05", "source": "Clark et al. 2019, Figure 4; BERT", "reason": ""}
    about |= {"over": "", "effect": "", "low": "", "high": "", "least": "", "most": ""}
    return {**about, "verdict": verdict, "untrained": "", "learned": "", "needed": ""} | more


JUDGED = {
    "small.seed0": {"some_heads_are_sinks": row("holds", untrained="holds", learned="no")},
    "small.seed1": {"some_heads_are_sinks": row("cannot be told")},
    "other": {
        "some_heads_are_sinks": row("contradicted"),
        "some_heads_are_positional": row("cannot be told", needed="1200", over="heads", count="24"),
    },
    "other.untrained": {"some_heads_are_positional": row("not applicable", reason="it guesses.")},
}


def listed() -> list[str]:
    """Networks of the Makefile's list that have a table."""
    (names,) = re.findall(
        r"^CLAIMS \?= ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    named = names.replace("\\\n", " ").split()
    return [name for name in named if (ROOT / f"docs/tables/claims/{name}.csv").is_file()]


def test_the_page_says_what_its_tables_say(tool):
    names = listed()
    judged = {name: tool.rows_of(tool.TABLES / f"{name}.csv") for name in names}
    assert len(names) >= 5 and all({*rows} <= {*all_claims()} for rows in judged.values())
    assert tool.page(tool.PAGE.read_text(), judged) == tool.PAGE.read_text()


def test_the_page_is_short_around_its_tables(tool):
    """At most 900 words beside those that are generated."""
    text = re.sub(
        r"<!-- ([\w ]+): generated -->.*?<!-- \1: end -->",
        "",
        tool.PAGE.read_text(),
        flags=re.DOTALL,
    )
    words = [word for word in text.split() if word.strip("|-")]
    assert 300 < len(words) <= 900


def test_every_claim_leads_to_where_it_comes_from(tool):
    for claim in all_claims().values():
        address = tool.link(claim.source)
        assert address.startswith("https://arxiv.org/abs/") or (ROOT / "docs" / address).is_file()
    with pytest.raises(UserError, match="no address for the source 'Nobody 1999'"):
        tool.link("Nobody 1999")


def named(lines, name):
    """Lines of a table that are about a claim."""
    return [line for line in lines if f"[{name.replace('_', ' ')}]" in line]


def test_a_new_claim_stands_on_the_page_before_a_network_was_asked(tool):
    (line,) = named(tool.undecided(JUDGED), "entropy_falls_with_depth")
    assert line.endswith("| .05 | it has not been asked yet |")


def test_seeds_share_a_column_and_say_where_they_differ(tool):
    assert list(tool.grouped(JUDGED).values()) == [
        ["small.seed0", "small.seed1"],
        ["other"],
        ["other.untrained"],
    ]
    line = tool.matrix(JUDGED)[-1]
    assert "[some heads are sinks](https://arxiv.org/abs/2309.17453) | .05 | **+**, · |" in line
    assert line.endswith(
        "| / | 1 of 1 |"
    )  # of the networks where it holds, so many did not learn it
    twin = {"some_heads_are_sinks": row("holds", untrained="holds", learned="no")}
    with_twin = tool.matrix({**JUDGED, "small.untrained": twin})
    assert "1 of 1" in with_twin[-1]  # what has random weights is no trained network
    agree = {**JUDGED, "small.seed1": JUDGED["small.seed0"]}
    assert "| **+** |" in tool.matrix(agree)[-1] and "2 of 2" in tool.matrix(agree)[-1]


def test_heads_of_all_trained_networks_together_decide_what_each_leaves_open(tool):
    none = {"over": "heads", "count": "72", "least": "0", "most": "0", "effect": "0.0"}
    none |= {"low": "0.0", "high": "0.05"}
    networks = {
        name: {"some_heads_are_sinks": row("cannot be told", **none)}
        for name in ("one", "two", "three", "four.untrained")
    }
    assert "| · | · | · | 0 |  |" in tool.matrix(networks)[-1]
    alone = {name: networks[name] for name in ("one", "four.untrained")}
    assert len(tool.matrix(alone)) == 2  # the untrained one is not counted, and one is too few


def test_networks_that_have_not_learned_have_a_table_of_their_own(tool):
    near = {
        "some_heads_are_positional": row("too small to matter"),
        "some_heads_are_sinks": row("cannot be told"),
    }
    judged = {**JUDGED, "other.untrained": near, "other.before": {}}
    head, _, *lines = tool.as_built(judged)
    assert head == "| claim | matters from | other, untrained | other, before |"
    (line,) = lines  # none of them decides the other claim
    assert "[some heads are positional]" in line and line.endswith("| 0 |  |")
    assert "untrained" not in tool.matrix(judged)[0]


def test_what_no_network_decides_stands_apart_with_what_would_decide_it(tool):
    name = "some_heads_are_positional"
    assert named(tool.matrix(JUDGED), name) == []
    (line,) = named(tool.undecided(JUDGED), name)
    assert line.endswith("| 1,200 heads (here 24) |")
    near = row("cannot be told", needed="30", over="heads", count="24")
    untrained = {**JUDGED, "other.untrained": {"some_heads_are_positional": near}}
    assert named(tool.undecided(untrained), name) == [line]  # of trained networks
    decided = {**JUDGED, "other": {"some_heads_are_positional": row("too small to matter")}}
    assert named(tool.undecided(decided), name) == []  # the control: a row that leaves


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cifar10_vit_stem", r"weights=\S+cifar10_vit_stem.safetensors"),
        ("digits_vit.untrained", r"\+experiment=digits_vit weights=random"),
        (
            "cifar10_vit_dinov2.before",
            r"\+experiment=\S+ weights=null backbone.checkpoint=before ",
        ),
    ],
)
def test_a_name_says_where_its_network_comes_from(tool, monkeypatch, name, options):
    monkeypatch.setenv("BEFORE", "before")
    assert re.match(options, " ".join([*tool.network(name, []), ""]))


UNTAUGHT = re.findall(r"\S+\.(?:untrained|before)\b", (ROOT / "Makefile").read_text())


@pytest.mark.parametrize("name", UNTAUGHT)
def test_the_options_of_a_network_as_built_are_taken(tool, monkeypatch, name):
    """Weights of nothing beside the pretrained ones of an experiment are a contradiction."""
    monkeypatch.setenv("BEFORE", "before")
    options = tool.network(name, [])
    refuse_unneeded(runs.checked("claims", *options), options)
    if name == "cifar10_vit_dinov2.untrained":
        twice = [option for option in options if option != "backbone.pretrained=false"]
        with pytest.raises(UserError, match="leave one out"):
            refuse_unneeded(runs.checked("claims", *twice), twice)


@pytest.mark.parametrize("name", ["nothing", "digits_vit.wide", "cifar10_vit_dinov2.before"])
def test_a_name_of_nothing_is_one_line(tool, monkeypatch, name):
    monkeypatch.delenv("BEFORE", raising=False)
    with pytest.raises(UserError, match=f"^{re.escape(name)}: "):
        tool.network(name, [])


def test_a_network_that_is_not_shipped_is_trained_once_with_what_its_claims_need(
    tool, monkeypatch, tmp_path
):
    run = []
    monkeypatch.setattr(tool, "OUT", tmp_path)
    monkeypatch.setattr(tool, "command", lambda *words: run.append(words))
    options = tool.network("scenes_vit.seed1", ["data.root=here", "name=other"])
    folder = tmp_path / "claims_trained" / "scenes_vit.seed1"
    assert options == [f"weights={folder}", f"evidence.runs.training={folder}"]
    (words,) = run
    assert {"+experiment=scenes_vit", "seed=1", "data.root=here", "+callback=settling"} <= {*words}
    assert "name=other" not in words
    folder.mkdir(parents=True)
    (folder / "results.json").write_text("{}")
    assert tool.network("scenes_vit.seed1", []) == options and len(run) == 1


def table(folder, verdict):
    """Write a claims.csv that has one claim."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"claim": "some_heads_are_sinks", "says": "Some heads are sinks."} | row(verdict)
    with (folder / "claims.csv").open("w", newline="") as lines:
        writer = csv.DictWriter(lines, about)
        writer.writeheader()
        writer.writerow(about)
    return folder / "claims.csv"


def test_one_network_is_judged_again_without_the_runs_of_the_others(
    tool, monkeypatch, tmp_path, capsys
):
    kept = tmp_path / "docs"
    monkeypatch.setattr(tool, "OUT", tmp_path)
    monkeypatch.setattr(tool, "TABLES", kept)
    monkeypatch.setattr(tool, "FIGURE", tmp_path / "claims.png")
    table(kept, "holds").rename(kept / "elsewhere.csv")
    table(kept, "holds").rename(kept / "here.csv")
    new = table(tmp_path / "claims" / "here" / "tables", "contradicted")
    tool.write_tables(["here", "elsewhere"])
    assert (kept / "here.csv").read_text() == new.read_text()
    assert "holds" in (kept / "elsewhere.csv").read_text()
    assert capsys.readouterr().out.startswith("elsewhere: no run in ")
    with Image.open(tmp_path / "claims.png") as drawn:
        told = drawn.info
    assert told["Source"] == "python tools/claims_matrix.py write here elsewhere"
    with pytest.raises(UserError, match=r"nowhere.*does not exist"):
        tool.write_tables(["here", "nowhere"])
