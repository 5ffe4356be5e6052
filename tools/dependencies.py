"""What mhprobe and its tests are installed with: python tools/dependencies.py constraints | licences | audit.

All walk from pyproject.toml through what is installed, so that nothing else of this machine is in
them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def wanted() -> list[Requirement]:
    """The project's own requirements, with those of its tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {project["name"]: project["optional-dependencies"]}
    return list(_others([*project["dependencies"], f"{project['name']}[test]"], extras))


def _others(
    lines: Iterable[str], extras: Mapping[str, Mapping[str, list[str]]]
) -> Iterator[Requirement]:
    """Requirements that are not the project itself; where one of its extras is named, what is in that."""
    for requirement in map(Requirement, lines):
        if requirement.name not in extras:
            yield requirement
        for extra in requirement.extras if requirement.name in extras else ():
            yield from _others(extras[requirement.name][extra], extras)


def closure(requirements: Iterable[Requirement]) -> dict[str, str]:
    """Name -> version of everything that is installed for them."""
    versions: dict[str, str] = {}
    seen, left = set(), list(requirements)
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if (name, key := tuple(sorted(requirement.extras))) in seen:
            continue
        seen.add((name, key))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # for another system, or an extra that is not here
        versions[name] = package.version.partition("+")[0]  # without the name of a build
        for line in package.requires or ():
            inner = Requirement(line)
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": extra}) for extra in (*key, "")
            ):
                left.append(inner)
    return dict(sorted(versions.items()))


def constraints() -> str:
    """No hashes: they differ from system to system, and one in the file would make pip demand all."""
    here = f"Python {sys.version_info.major}.{sys.version_info.minor}, {sys.platform.capitalize()}"
    head = f"# The versions that the whole suite last passed with ({here}): pip install -c constraints.txt .\n"
    return head + "".join(f"{name}=={version}\n" for name, version in closure(wanted()).items())


def licences() -> str:
    lines = []
    for name, version in closure(wanted()).items():
        about = distribution(name).metadata
        classes = [
            text.rpartition(" :: ")[2]
            for text in about.get_all("Classifier") or ()
            if "License" in text
        ]
        lines.append(
            f"{name} {version}: {about.get('License-Expression') or ', '.join(classes) or 'see its files'}\n"
        )
    return "".join(lines)


def audit() -> int:
    """pip-audit's answer about constraints.txt: 0 nothing known, 1 something is, 3 not everything could be looked up.

    pip-audit itself calls what it could not look up a success.
    """
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--no-deps",
        "--disable-pip",
        "--progress-spinner=off",
    ]
    done = subprocess.run(
        [*command, "--format=json", "-r", str(ROOT / "constraints.txt")],
        capture_output=True,
        text=True,
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        packages = []
    code, lines = verdict(packages, (done.stderr.strip().splitlines() or ["no answer"])[-1])
    print(*lines, sep="\n")
    return code


def verdict(packages: Sequence[Mapping[str, Any]], reason: str = "") -> tuple[int, list[str]]:
    """packages: as in pip-audit's JSON. reason: why there are none."""
    holes = [
        f"{one['name']} {one['version']}: {hole['id']}"
        for one in packages
        for hole in one.get("vulns", ())
    ]
    skipped = [package for package in packages if "skip_reason" in package]
    if skipped or not packages:
        why = skipped[0]["skip_reason"] if skipped else reason
        holes.append(
            f"NOT AUDITED: {len(skipped)} of {len(packages)} packages could not be looked up "
            f"({why})"
        )
        return (1 if len(holes) > 1 else 3), holes
    return (1, holes) if holes else (0, [f"{len(packages)} packages, nothing known against them"])


if __name__ == "__main__":
    if sys.argv[1] == "audit":
        sys.exit(audit())
    print({"constraints": constraints, "licences": licences}[sys.argv[1]](), end="")
