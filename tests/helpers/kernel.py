"""python kernel.py <connection file>: a notebook's kernel, in a fork of the process that has imported everything."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import forks


def launch(file: str) -> None:
    """In the fork."""
    from ipykernel import kernelapp

    kernelapp.launch_new_instance(["-f", file])


if __name__ == "__main__":
    # what watches over the process that started it would not find it
    plain = {name: value for name, value in os.environ.items() if name != "JPY_PARENT_PID"}
    end = forks.ask("kernel.launch", Path.cwd(), plain, sys.argv[1])
    sys.stderr.write(end.out + end.err)
    sys.exit(end.code)
