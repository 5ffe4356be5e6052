"""The folder that travels: the source, the images and the wheels that a machine with torch and timm lacks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from mhprobe.errors import UserError

ROOT = Path(__file__).parents[2]
LARGEST = 60 * 2**20
SOURCE = ("src", "conf", "benchmarks", "launch", "tests", "pyproject.toml", "README.md")
# of mhprobe's own dependencies, those that do not come with torch, torchvision, timm, lightning and
# torchmetrics ...
WHEELS = (
    "hydra-core",
    "omegaconf",
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "rich",
)
WHEELS += (
    "markdown-it-py",
    "mdurl",
    "pygments",
    "jinja2",
    "markupsafe",
    "pytest",
    "pytest-timeout",
    "pluggy",
    "iniconfig",
)
BUILT = ("antlr4-python3-runtime",)  # ... and one that is published as source only
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def pack(folder: Path, cifar: Path) -> int:
    """Make ``folder``; its size in bytes.

    UserError where the images are missing or all of it is too large.
    """
    if not cifar.is_file():
        raise UserError(f"--cifar: no file {cifar}; expected the archive of CIFAR-10.")
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    versions = [_pinned(name) for name in (*WHEELS, *BUILT)]
    pip = [sys.executable, "-m", "pip"]
    fixed = ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp"]
    fixed += [part for platform in PLATFORMS for part in ("--platform", platform)]
    subprocess.run(
        [*pip, "download", "-q", "--no-deps", *fixed, "-d", wheels, *versions[: len(WHEELS)]],
        check=True,
    )
    subprocess.run(
        [*pip, "wheel", "-q", "--no-deps", "-w", wheels, *versions[len(WHEELS) :]], check=True
    )
    shutil.copy(cifar, folder / f"cifar10{''.join(cifar.suffixes)}")
    for part in SOURCE:
        _copy(ROOT / part, folder / "mhprobe" / part)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > LARGEST:
        raise UserError(
            f"{folder}: {size / 2**20:.0f} MiB, expected at most {LARGEST / 2**20:.0f}."
        )
    return size


def _pinned(name: str) -> str:
    """``name==version`` as it is installed here, where it is: the version that the tests ran with."""
    import importlib.metadata

    try:
        return f"{name}=={importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return name


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
    else:
        shutil.copytree(
            source,
            target,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.pyc"),
        )
