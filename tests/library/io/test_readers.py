"""What is printed when nobody reads it any more is dropped, and the work goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

LINES = """
import sys
from mhprobe.io.stopping import outlive_readers
outlive_readers()
for number in range(20000):
    print("line", number, flush=True)
print("warning", file=sys.stderr)
open("done", "w").write("all of the work")
"""


@pytest.mark.parametrize(
    "shell", ["{} | head -1", "{} >&-", "{} 2>&-", "{} >&- 2>&-", "{} | true", "{} 2>&1 | head -1"]
)
def test_a_reader_that_leaves_does_not_take_the_work_along(tmp_path, shell):
    (tmp_path / "work.py").write_text(LINES)
    command = shell.format(f"{sys.executable} work.py") + '; echo "${PIPESTATUS[0]}" > code'
    ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (tmp_path / "done").read_text() == "all of the work"
    assert (tmp_path / "code").read_text().strip() == "0"
    assert "Traceback" not in ended.stderr and "Exception" not in ended.stderr


def test_without_it_the_work_is_lost(tmp_path):
    """Negative control."""
    (tmp_path / "work.py").write_text(LINES.replace("outlive_readers()", ""))
    subprocess.run(
        ["bash", "-c", f"{sys.executable} work.py | head -1"], cwd=tmp_path, capture_output=True
    )
    assert not (tmp_path / "done").exists()


def test_a_file_that_is_opened_later_is_not_standard_output(tmp_path):
    code = "from mhprobe.io.stopping import outlive_readers as o; o(); f = open('x', 'w'); print('lost'); f.close()"
    subprocess.run(["bash", "-c", f'{sys.executable} -c "{code}" >&-'], cwd=tmp_path, check=True)
    assert (tmp_path / "x").read_text() == ""
