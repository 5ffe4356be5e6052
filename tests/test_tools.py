"""The tools beside the package judge as they say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from packaging.utils import canonicalize_name

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GOOD = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1"}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([GOOD], 0, "1 packages, nothing known"),
        ([GOOD, BAD], 1, "b 2: CVE-1"),
        ([GOOD, UNKNOWN], 3, "NOT AUDITED: 1 of 2"),
        ([BAD, UNKNOWN], 1, "NOT AUDITED: 1 of 2"),
        ([], 3, "NOT AUDITED"),
    ],
)
def test_what_could_not_be_audited_is_no_success(packages, code, said):
    ended, lines = tool("dependencies").verdict(packages, "no network")
    assert ended == code and any(said in line for line in lines)


def test_a_soak_complains_about_what_grows_or_stays():
    soak = tool("soak")

    def samples(memory: float, files: int, threads: int) -> list:
        return [
            soak.Sample(n, 10 * n, 1000 + memory * n, 7 + files * n, 1 + threads * n)
            for n in range(1, 41)
        ]

    assert list(soak.complaints(samples(0, 0, 0), [])) == []
    assert list(soak.complaints(samples(0.2, 0, 0), [])) == []  # half a percent
    assert "memory" in next(soak.complaints(samples(2, 0, 0), []))
    assert "files" in next(soak.complaints(samples(0, 1, 0), []))
    assert "threads" in next(soak.complaints(samples(0, 0, 1), []))
    assert "tmp123" in next(soak.complaints(samples(0, 0, 0), ["tmp123"]))


def test_constraints_and_lock_hold_what_the_tests_need_and_name_no_server():
    """After an extra that the tests gained: make constraints lock."""
    lines = (TOOLS.parent / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    lock = (TOOLS.parent / "requirements.lock").read_text()
    needed = {canonicalize_name(requirement.name) for requirement in tool("dependencies").wanted()}
    assert {"torch", "transformers", "optuna"} <= needed  # of extras that the tests' own names, too
    assert not needed - pins.keys()
    assert not [name for name in needed if f"\n{name}=={pins[name]}" not in f"\n{lock}"]
    assert "://" not in lock
