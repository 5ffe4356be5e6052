"""Every p and every interval keeps its promise under its own null, with few draws; ``make levels`` takes many.

What has to be simulated is found: columns of every measure, functions of stats/, and files that
fill tables.
"""

from __future__ import annotations

import ast
import csv
import inspect
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from test_measures import LAYOUT, MEASURES, build, random_batch, selected

import coverage_by_images
import levels
import mhprobe
import mhprobe.stats

pytestmark = [
    pytest.mark.filterwarnings("ignore::mhprobe.measures.parts.pairs.FewImages"),
    pytest.mark.filterwarnings("ignore::mhprobe.measures.activation_patching.NothingToRestore"),
]

P = re.compile(r"(^|_)p(_holm)?$")
SOURCE = Path(mhprobe.__file__).parent


def ids(simulation: levels.Simulation) -> str:
    return next(iter(simulation.promises))


QUICK = [simulation for simulation in levels.SIMULATIONS if simulation.few]


@pytest.mark.parametrize("simulation", QUICK, ids=ids)
def test_what_is_so_is_called_significant_no_more_often_than_is_said(simulation):
    broken = [row for row in levels.shares(simulation, simulation.few) if not row.kept]
    assert not broken


def test_a_test_that_rejects_too_often_is_seen():
    def draw(seed: int) -> dict[str, torch.Tensor]:
        return {"p": torch.rand(5, generator=torch.Generator().manual_seed(seed)) < 0.1}

    for kind in ("p", "at most"):
        (row,) = levels.shares(levels.Simulation(draw, {"p": kind}), 150)
        assert not row.kept


@pytest.fixture(scope="module")
def columns() -> dict[str, list[str]]:
    found = {}
    for name in MEASURES:
        measure = selected(build(name, LAYOUT))
        measure.update(random_batch(range(12), needs=measure.needs))
        found[name] = list(measure.columns())
    return found


def test_every_p_of_a_measure_is_simulated(columns):
    simulated = {promise for simulation in levels.SIMULATIONS for promise in simulation.promises}
    named = {
        f"{measure}.{name}"
        for measure, names in columns.items()
        for name in names
        if P.search(name)
    }
    assert len(named) > 8 and named <= simulated


def test_every_interval_of_a_measure_is_simulated(columns):
    simulated = {
        promise for simulation in QUICK for promise in [*simulation.promises, *simulation.draw(0)]
    }
    named = {
        f"{measure}.{name}"
        for measure, names in columns.items()
        for name in names
        if levels.LOW.fullmatch(name)
    }
    nulls = {name for name in named if "null_low" in name}  # of draws of chance: quantiles of them
    slow = {
        promise
        for simulation in levels.SIMULATIONS
        if not simulation.few
        for promise in simulation.promises
    }
    assert len(named) > 30 and named - nulls <= simulated | slow


def test_an_interval_that_is_too_narrow_is_seen():
    def draw(seed: int) -> dict[str, levels.Interval]:
        value = torch.randn(5, generator=torch.Generator().manual_seed(seed))
        return {"low": levels.Interval(value, value - 1.6, value + 1.6)}

    for kind in ("interval", "at least"):
        (row,) = levels.shares(levels.Simulation(draw, {"low": kind}), 150)
        assert row.share == pytest.approx(0.89, abs=0.02) and not row.kept


def test_every_law_of_a_p_or_an_interval_is_simulated():
    laws = {law for simulation in levels.SIMULATIONS for law in simulation.laws}
    said = {
        function
        for function in functions()
        if re.search(r"\bp\b|interval|quantile", inspect.getdoc(function) or "")
    }
    assert len(said) > 8 and {law.__name__ for law in said - laws} <= ELSEWHERE


ELSEWHERE = {  # simulated where their own promise is explained
    "kept_promise",  # tests/library/stats/test_promise.py: 1,000 re-draws at every level
    "loses_more",
    "ranking",  # its p are those of crossed: tests/library/stats/test_significance.py
    "agreement",  # its intervals are spearman_interval's
    # of resampled means: bootstrap's; of an error and its freedom:
    # tests/library/contracts/test_intervals.py
    "interval",
    "p_of_interval",  # there it is Student's test
    "percentiles",  # the ends of bootstrap's
    "significant",  # it compares a p with 5 %: tests/library/stats/test_significance.py
}


def functions() -> Iterator[object]:
    for module in pkgutil.iter_modules(mhprobe.stats.__path__, "mhprobe.stats."):
        loaded = import_module(module.name)
        for name, function in inspect.getmembers(loaded, inspect.isfunction):
            if function.__module__ == module.name and not name.startswith("_"):
                yield function


def test_a_table_has_its_p_from_a_law_that_is_simulated():
    """Files outside of measures/ that write a column of p: they call a simulated law, or are one."""
    laws = {law.__name__ for simulation in levels.SIMULATIONS for law in simulation.laws}
    homes = {
        inspect.getsourcefile(law) for simulation in levels.SIMULATIONS for law in simulation.laws
    }
    writers = [
        path for path in SOURCE.rglob("*.py") if path.parent.name != "measures" and _writes_p(path)
    ]
    assert len(writers) > 5
    without = [p for p in writers if str(p) not in homes and not laws & _names(p)]
    assert {path.relative_to(SOURCE).as_posix() for path in without} <= HANDED_ON


HANDED_ON = {  # they write the p of a curve or a comparison that another file tested
    "report/tables.py",
    "pages/html/curves.py",
    "lab/claims/parts/asking.py",
}


def _writes_p(path: Path) -> bool:
    tree = ast.parse(path.read_text())
    keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
    return any(
        isinstance(key, ast.Constant) and isinstance(key.value, str) and P.search(key.value)
        for key in keys
    )


def _names(path: Path) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}


def test_intervals_of_skewed_heads_hold_the_truth_where_those_of_students_law_do_not():
    """Heads of two shipped networks; Student's law on the logarithmic scale is what they had before."""
    for population in coverage_by_images.populations():
        if population.interval != "gate_importance":
            continue
        got = coverage_by_images.coverage(population, 50, 500)
        before = coverage_by_images.coverage(
            population._replace(ends=coverage_by_images.of_log), 50, 500
        )
        assert got.mean > 0.925 and got.worst > 0.89, population.of
        assert got.mean > before.mean + 0.01, population.of


def test_the_table_of_coverage_has_every_population_at_every_number_of_images():
    with open(coverage_by_images.TABLE, newline="") as file:
        rows = list(csv.DictReader(file))
    expected = {
        (each.interval, each.of, str(images))
        for each in coverage_by_images.populations()
        for images in coverage_by_images.SIZES
    }
    assert {(row["interval"], row["of"], row["images"]) for row in rows} == expected
    assert all(int(row["draws"]) >= 500 for row in rows)
    right = [row for row in rows if row["interval"] == "gate_importance"]
    assert min(float(row["mean_percent"]) for row in right) > 93
