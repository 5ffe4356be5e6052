"""hydra/launcher=ray: run the jobs of a sweep as tasks of a Ray cluster; without an address, on this machine.

On Ray's own interface, since hydra-ray-launcher needs an older cloudpickle and a cloud's command
line. Jobs share images, orders and scores in ``cache_dir``. Hydra imports plugins at each start:
heavy imports stand inside functions.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import (
    JobReturn,
    JobStatus,
    configure_log,
    filter_overrides,
    run_job,
    setup_globals,
)
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from mhprobe.errors import UserError


class RayLauncher(Launcher):
    """Launcher by Ray.

    init: of ``ray.init``, e.g. address. remote: of ``ray.remote``: num_cpus, num_gpus ...
    """

    def __init__(self, init: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
        self.init, self.remote = dict(init), dict(remote)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        """Return the result of each job; a job whose process or machine was lost leaves a note in its folder."""
        from mhprobe.framework.run.jobs import note_lost

        try:
            import ray
        except ImportError:
            raise UserError(
                'hydra/launcher=ray: Ray is not installed; pip install "mhprobe[ray]".'
            ) from None
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(self.config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)
        if not ray.is_initialized():  # a sweeper may launch often; Ray ends with this process
            ray.init(**self.init)
        task = ray.remote(**self.remote)(_job)
        common = (self.context, self.config, self.task, Singleton.get_state(), os.getcwd())
        jobs = list(enumerate(map(list, job_overrides), initial_job_idx))
        futures = [task.remote(number, overrides, *common) for number, overrides in jobs]
        for number, overrides in jobs:
            print(f"  #{number} : {' '.join(filter_overrides(overrides))}", flush=True)
        results = []
        for future, (number, overrides) in zip(futures, jobs, strict=True):
            try:
                results.append(ray.get(future))
            except ray.exceptions.RayError as error:
                note_lost(
                    Path(self.config.hydra.sweep.dir) / str(number),
                    overrides,
                    " ".join(str(error).split()),
                )
                results.append(JobReturn(overrides=overrides, status=JobStatus.COMPLETED))
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
    """Run a job, wherever Ray puts it.

    folder: that the sweep was started in, for relative paths.
    """
    os.chdir(folder)
    setup_globals()
    Singleton.set_state(state)
    job = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(job):
        job.hydra.job.id = job.hydra.job.num = number
    result = run_job(task, job, "hydra.sweep.dir", "hydra.sweep.subdir", context)
    result.cfg = result.hydra_cfg = OmegaConf.create()  # large, and unused
    return result
