"""The built wheel works where nothing of the clone is: conf/ is inside it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import runs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def done(*command: str | Path, cwd: Path) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**runs.environment(), "PYTHONPATH": ""},
        text=True,
        capture_output=True,
        timeout=runs.TIMEOUT,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        folder,
        ROOT,
        cwd=folder,
    )
    [wheel] = folder.glob("*.whl")
    return wheel


def test_the_wheel_holds_every_yaml_and_module_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    conf = {
        f"mhprobe/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "conf").rglob("*.yaml")
    }
    files = {
        path
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    package = {
        path.relative_to(ROOT / "src").as_posix() for path in files
    }  # modules, and what report.html is made of
    assert conf and package and names == conf | package


def test_the_wheel_holds_its_notice_and_says_that_it_has_types(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "mhprobe/py.typed" in names
    assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in names if ".dist-info/" in name}


def test_the_demo_runs_from_the_wheel_in_an_empty_folder(wheel, tmp_path):
    venv, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    done(sys.executable, "-m", "venv", "--without-pip", venv, cwd=tmp_path)
    python = venv / "bin" / "python"
    install = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
    )
    done(*install, cwd=tmp_path)
    [site] = venv.glob("lib/python*/site-packages")
    # the dependencies of this environment; a .pth line is only a path, so this clone does not come
    # along with them
    (site / "environment.pth").write_text(sysconfig.get_path("purelib") + "\n")

    home = done(python, "-c", "import mhprobe; print(mhprobe.__file__)", cwd=empty)
    assert Path(home.strip()).is_relative_to(venv)
    script = venv / "bin" / "mhprobe"  # as pipx and uvx call it
    assert done(script, "--complete", "mhprobe train data=dig", cwd=empty).split() == [
        "data=digits"
    ]
    _, *tiny = runs.TINY  # without the experiment: the word demo stands for one
    done(script, "demo", *tiny, "masking.steps=1", cwd=empty)
    assert (runs.newest(empty) / "figures" / "masking_curves.png").is_file()
