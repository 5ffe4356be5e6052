"""hydra/launcher=ray: run the jobs of a sweep as tasks of a Ray cluster; without an address, on this machine.

Thin, and on Ray's own interface: hydra-ray-launcher asks for an older cloudpickle and for a cloud's command line. Jobs
share what machines share: folders. So images, orders and scores in ``cache_dir`` are found by every job.

Hydra imports every plugin at each start, so nothing heavy is imported here.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict


class RayLauncher(Launcher):
    """init: of ``ray.init``, e.g. address. remote: of ``ray.remote``, what a job needs: num_cpus, num_gpus ..."""

    def __init__(self, init: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
        self.init, self.remote = dict(init), dict(remote)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        """What each job returns. One whose process or machine was lost leaves word in its folder; the others go on."""
        from mhprobe.errors import UserError
        from mhprobe.run.jobs import lost

        try:
            import ray
        except ImportError:
            raise UserError('hydra/launcher=ray: Ray is not installed; pip install "mhprobe[ray]".') from None
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(self.config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)
        if not ray.is_initialized():  # a sweeper may launch often; Ray ends with this process
            ray.init(**self.init)
        task = ray.remote(**self.remote)(_job)
        common = (self.context, self.config, self.task, Singleton.get_state(), os.getcwd())
        jobs = [(initial_job_idx + number, list(told)) for number, told in enumerate(job_overrides)]
        futures = [task.remote(number, told, *common) for number, told in jobs]
        for number, told in jobs:
            print(f"  #{number} : {' '.join(filter_overrides(told))}", flush=True)
        results = []
        for future, (number, told) in zip(futures, jobs, strict=True):
            try:
                results.append(ray.get(future))
            except ray.exceptions.RayError as error:
                lost(Path(self.config.hydra.sweep.dir) / str(number), told, " ".join(str(error).split()))
                results.append(JobReturn(overrides=told, status=JobStatus.COMPLETED))
        return results


def _job(
    number: int,
    overrides: list[str],
    context: HydraContext,
    config: DictConfig,
    task: TaskFunction,
    state: Any,
    folder: str,
) -> JobReturn:
    """One job, wherever Ray runs it; paths are meant from the folder that the sweep was started in."""
    os.chdir(folder)
    setup_globals()
    Singleton.set_state(state)
    job = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(job):
        job.hydra.job.id = job.hydra.job.num = number
    found = run_job(task, job, "hydra.sweep.dir", "hydra.sweep.subdir", context)
    found.cfg = found.hydra_cfg = OmegaConf.create()  # large, and nobody asks
    return found
