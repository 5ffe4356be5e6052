"""hydra/sweeper=optuna: settings are searched for by Optuna, for one aim or several at once.

Thin, and on Optuna's ask and tell: hydra-optuna-sweeper needs Optuna 2. What a job is worth is read from its
metrics.json, so any launcher will do. At the end ``tables/trials.csv`` has every job, its settings and its metrics;
``best`` is 1 for those that no other job beats in every aim (of one aim: the best).

Hydra imports every plugin at each start, so nothing heavy is imported here.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class OptunaSweeper(Sweeper):
    """directions: metric -> maximize or minimize. n_trials: jobs in all; n_jobs: asked for at once, for a launcher.

    sampler: the name of one of optuna.samplers. seed: of the sampler. storage, study_name: where Optuna keeps the
    trials, e.g. sqlite:///sweep.db: a sweep with the same ones goes on from what they know. None for memory.
    """

    def __init__(
        self,
        directions: Mapping[str, str],
        n_trials: int,
        n_jobs: int,
        sampler: str,
        seed: int,
        storage: str | None,
        study_name: str | None,
    ) -> None:
        self.directions, self.n_trials, self.n_jobs = dict(directions), n_trials, n_jobs
        self.sampler, self.seed = sampler, seed
        self.storage, self.study_name = storage, study_name

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Ask for settings, run them, tell what they were worth; ``n_trials`` times."""
        study = self._study()
        from optuna.trial import TrialState

        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        told = parser.parse_overrides(arguments)
        fixed = [each.input_line for each in told if not each.is_sweep_override()]
        space = {each.get_key_element(): _distribution(each) for each in told if each.is_sweep_override()}
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        rows: list[list[Any]] = []
        while len(rows) < self.n_trials:
            trials = [study.ask(space) for _ in range(min(self.n_jobs, self.n_trials - len(rows)))]
            jobs = [[*fixed, *(f"{key}={value}" for key, value in trial.params.items())] for trial in trials]
            self.validate_batch_is_legal(jobs)
            self.launcher.launch(jobs, initial_job_idx=len(rows))
            for trial in trials:
                values = self._values(folder / str(len(rows)))
                study.tell(trial, values, TrialState.FAIL if values is None else None)
                rows.append([len(rows), *trial.params.values(), *(values or [""] * len(self.directions)), trial.number])
        self._write(folder, list(space), rows, {trial.number for trial in study.best_trials})

    def _study(self) -> Any:
        from mhprobe.errors import UserError

        try:
            import optuna
        except ImportError:
            raise UserError('hydra/sweeper=optuna: Optuna is not installed; pip install "mhprobe[optuna]".') from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        if not self.directions or set(self.directions.values()) - {"maximize", "minimize"}:
            raise UserError(f"hydra.sweeper.directions: expected metrics, maximize or minimize, got {self.directions}.")
        if self.sampler not in optuna.samplers.__all__:
            raise UserError(
                f"hydra.sweeper.sampler: expected one of {', '.join(optuna.samplers.__all__)}, got {self.sampler}."
            )
        return optuna.create_study(
            sampler=getattr(optuna.samplers, self.sampler)(seed=self.seed),
            directions=list(self.directions.values()),
            storage=self.storage,
            study_name=self.study_name,
            load_if_exists=True,
        )

    def _values(self, job: Path) -> list[float] | None:
        """What a job is worth; None if it failed. UserError if its metrics are others."""
        from mhprobe.errors import UserError

        if not (job / "metrics.json").is_file():
            return None
        metrics = json.loads((job / "metrics.json").read_text())
        if missing := [name for name in self.directions if name not in metrics]:
            raise UserError(
                f"hydra.sweeper.directions: {job} has no {', '.join(missing)}; its metrics: {', '.join(metrics)}."
            )
        return [float(metrics[name]) for name in self.directions]

    def _write(self, folder: Path, keys: list[str], rows: Sequence[list[Any]], best: set[int]) -> None:
        from mhprobe.report.report import Report, Result
        from mhprobe.report.tables import Table

        columns = ["job", *keys, *self.directions, "best"]
        table = Table(columns, [[*row[:-1], int(row[-1] in best)] for row in rows])
        Report(folder).add("trials", Result(table))
        for row in table.rows:
            if row[-1]:
                print(f"best: {', '.join(f'{name} {value}' for name, value in zip(columns, row[:-1], strict=False))}")
        print(f"all trials: {folder / 'tables' / 'trials.csv'}")


def _distribution(told: Override) -> Any:
    """interval(a, b), with the tags log or int; range(a, b, step) and lists are choices."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    from mhprobe.errors import UserError

    value = told.value()
    if not isinstance(value, IntervalSweep):
        return CategoricalDistribution(list(told.sweep_string_iterator()))
    try:
        if "int" in value.tags:
            return IntDistribution(int(value.start), int(value.end), log="log" in value.tags)
        return FloatDistribution(float(value.start), float(value.end), log="log" in value.tags)
    except ValueError as error:
        raise UserError(f"{told.input_line}: {error}") from None
