"""The notebooks run from the first cell to the last, and are committed as somebody wants to read them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KERNEL = Path(__file__).parent / "helpers" / "kernel.py"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FEWER = {"range(0, 316, 63)": "(0, 158)", "range(0, 529, 66)": "(0, 528)"}  # crops: 8 of 108
SHORTER = {
    "2_objects": {"number = 200": "number = 40"},
    "3_prune": {**FEWER, "range(6)": "range(2)"},
    "6_your_model": {
        **{
            "images[:84:3]": "images[:84:21]",
            "images[84::3]": "images[84::21]",
            "images.split": "images[::8].split",
        },
        **{
            "chosen_on, steps=12": "chosen_on, steps=3",
            "repeats=3, steps=12": "repeats=2, steps=3",
        },
    },
}
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def pictures(cell: dict) -> list[str]:
    return [
        out["data"]["image/png"]
        for out in cell.get("outputs", ())
        if "image/png" in out.get("data", {})
    ]


@pytest.mark.slow
@each
def test_runs_from_the_first_cell_to_the_last(path, tmp_path):
    """In a folder of its own, by the Python that runs the tests, whatever kernels the user has beside it.

    Those with a network of 22 million parameters have fewer photographs here.
    """
    pytest.importorskip("nbclient", reason="nbclient is not installed: pip install -e .[test]")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install -e .[test]")
    (tmp_path / "weights").symlink_to(ROOT / "weights")  # notebooks stand beside the weights
    (tmp_path / "notebooks").mkdir()
    copy = tmp_path / "notebooks" / path.name
    copy.write_text(_without_outputs(path))
    folders = {
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "IPYTHONDIR": "ipython",
    }
    environment = {
        **os.environ,
        **{name: str(tmp_path / folder) for name, folder in folders.items()},
    }
    kernel = {
        "argv": [sys.executable, str(KERNEL), "{connection_file}"],
        "display_name": "of tests",
    }
    (tmp_path / "data" / "kernels" / "tests").mkdir(parents=True)
    (tmp_path / "data" / "kernels" / "tests" / "kernel.json").write_text(json.dumps(kernel))
    run = "from nbclient.cli import main; main()"
    patience = ["--startup_timeout=300", "--timeout=500"]  # seconds: of a busy machine
    command = [sys.executable, "-c", run, "--inplace", "--kernel_name=tests", *patience, str(copy)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=550
    )
    assert done.returncode == 0, done.stderr
    assert pictures(json.loads(copy.read_text())["cells"][-1])


def _without_outputs(path: Path) -> str:
    text = path.read_text()
    for written, instead in SHORTER.get(path.stem, {}).items():
        assert text.count(written) == 1
        text = text.replace(written, instead)
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
    return json.dumps(notebook)


@each
def test_is_short_and_ends_in_a_picture(path):
    """Its outputs are committed with it, and say nothing of the machine that made them."""
    text = path.read_text()
    cells = json.loads(text)["cells"]
    assert len(cells) <= 12 and path.stat().st_size < 300_000
    assert cells[0]["cell_type"] == "markdown" and pictures(cells[-1])
    assert all(
        cell["outputs"] or cell["execution_count"] for cell in cells if cell["cell_type"] == "code"
    )
    assert not [
        out for cell in cells for out in cell.get("outputs", ()) if out["output_type"] == "error"
    ]
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)


@each
def test_is_linked(path):
    assert f"notebooks/{path.name}" in (ROOT / "README.md").read_text()


def test_there_are_notebooks():
    assert NOTEBOOKS
