"""One process, or one per device: how a composed task gets its processes.

Lightning starts its helpers by running the command line again, which under a Hydra sweep runs the whole sweep again.
Here each job's helpers are started by torch's own elastic agent with the composed configuration as a file: one
failing rank ends the others, and nothing of one job is left for the next. Under torchrun or SLURM the processes
are there already.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import uuid
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from mhprobe.errors import UserError
from mhprobe.run.memory import explained
from mhprobe.run.quiet import quiet

MISTAKE = "mistake.txt"  # in the run's folder: what the first rank that found one has to say


def run(task: str, cfg: DictConfig, folder: Path) -> None:
    """Run ``task`` on the composed configuration, writing into ``folder``."""
    from mhprobe.run.schema import check

    plain = check(task, cfg)
    processes = _processes(plain["trainer"])
    if processes == 1 or "RANK" in os.environ or "SLURM_PROCID" in os.environ:
        with explained(plain):
            module(task).run(plain, folder)
    else:
        _start(task, cfg, folder, processes)


def module(task: str) -> Any:
    """The module behind a command: mhprobe.train, mhprobe.studies.voita; where that is a room, its door."""
    quiet()
    found = importlib.import_module(f"mhprobe.{task}")
    return importlib.import_module(f"{found.__name__}.__main__") if hasattr(found, "__path__") else found


def _processes(trainer: dict[str, Any]) -> int:
    devices = trainer["devices"]
    if trainer.get("strategy", "auto") == "auto" and devices in (1, "1", "auto"):
        return 1
    if devices in ("auto", -1, "-1"):
        import torch

        # two processes on a CPU: enough to prove that the numbers do not depend on how many there are
        gpus = torch.cuda.device_count() if trainer["accelerator"] in ("auto", "gpu", "cuda") else 0
        return gpus or 2
    if isinstance(devices, list):
        return len(devices)
    try:
        return int(devices)
    except ValueError:
        raise UserError(f"trainer.devices: expected a number, a list or auto, got {devices!r}.") from None


def _start(task: str, cfg: DictConfig, folder: Path, processes: int) -> None:
    import logging

    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks say themselves what failed
    job = OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))
    if job.trainer.devices in ("auto", -1, "-1"):
        job.trainer.devices = processes
    path, mistake = folder / "job.yaml", folder / MISTAKE
    OmegaConf.save(job, path)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
    )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    try:
        elastic_launch(config, sys.executable)("-m", "mhprobe.run.launch", task, str(path), str(folder))
    except SignalException as stopped:  # the ranks had their time to save
        sys.exit(128 + stopped.sigval)
    except ChildFailedError as error:
        if mistake.exists():
            raise UserError(mistake.read_text()) from None
        _, first = error.get_first_failure()
        sys.exit(first.exitcode if first.exitcode > 0 else 128 - first.exitcode)
    finally:
        path.unlink(missing_ok=True)
        mistake.unlink(missing_ok=True)


def _rank(task: str, job: str, folder: Path) -> None:
    """One of several processes. Any of them may find the user's mistake; whoever started them says it, once."""
    try:
        run(task, cast(DictConfig, OmegaConf.load(job)), folder)
    except UserError as error:
        with contextlib.suppress(FileExistsError), (folder / MISTAKE).open("x") as file:
            file.write(str(error))
        sys.exit(2)
    except Exception:
        if (folder / MISTAKE).exists():  # a rank that left has broken this one's collective
            sys.exit(2)
        raise


if __name__ == "__main__":
    _rank(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
