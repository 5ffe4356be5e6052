"""What jobs take of memory: each in a fork of one fresh process that has imported everything, with a single thread.

python -m benchmarks.harness.memory <module> <jobs as JSON>: what ``module.in_fork(*job)`` gives, a
line of JSON each.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any


def in_forks(module: str, jobs: Sequence[Sequence[object]]) -> Iterator[Any]:
    """What ``module.in_fork(*job)`` gives for each job. RuntimeError for one that fails."""
    command = [sys.executable, "-m", "benchmarks.harness.memory", module, json.dumps(jobs)]
    single_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=single_thread) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)
    if process.returncode:
        raise RuntimeError(f"{module}: a process ended with {process.returncode}")


def peak() -> int:
    """KiB of resident memory that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _main(module: str, jobs: Sequence[Sequence[object]]) -> None:
    imported = importlib.import_module(module)
    for job in jobs:
        child = os.fork()
        if child == 0:
            print(json.dumps(imported.in_fork(*job)), flush=True)
            os._exit(0)
        if code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            sys.exit(f"{module}: {job} ended with {code}")


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
