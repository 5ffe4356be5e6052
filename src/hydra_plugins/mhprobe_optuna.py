"""hydra/sweeper=optuna: a search for settings by Optuna, for one metric or several at once.

On Optuna's ask and tell, since hydra-optuna-sweeper needs Optuna 2. Metrics are read from each
job's metrics.json, so any launcher will do. ``tables/trials.csv`` has every job, its settings and
metrics; ``best`` is 1 for jobs that no other beats in every metric. Hydra imports plugins at each
start, so heavy imports stand inside functions.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from mhprobe.errors import UserError

# of commands whose jobs have no learned gates, as the default has it: what, and its metrics
AIMS = {
    "mask": ("masked", {"masked/accuracy": "maximize", "masked/heads": "maximize"}),
    "prune": ("pruned", {"test/accuracy": "maximize", "prune/flops": "minimize"}),
}


@dataclass
class OptunaSweeper(Sweeper):
    """Sweeper by Optuna.

    directions: metric -> maximize or minimize. n_trials: jobs in all; n_jobs: at once.

    sampler: the name of one of optuna.samplers. seed: of the sampler. storage, study_name: Optuna's
    place of the trials, e.g. sqlite:///sweep.db, from which a later sweep goes on; None for memory.
    """

    directions: Mapping[str, str]
    n_trials: int
    n_jobs: int
    sampler: str
    seed: int
    storage: str | None
    study_name: str | None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Ask for settings, run them, and report their metrics, ``n_trials`` times."""
        of_gates = all(name.startswith("gates/") for name in self.directions)
        if of_gates and (aims := AIMS.get(self.config.hydra.job.config_name)) is not None:
            what, self.directions = aims
            print(f"hydra.sweeper.directions: {self.directions}, of the {what} networks")
        study, ended = self._study(), list[bool]()
        study.stop = lambda: ended.append(True)  # a sampler that has asked for everything calls it
        from optuna.trial import TrialState

        overrides = OverridesParser.create(self.hydra_context.config_loader).parse_overrides(
            arguments
        )
        fixed = [override.input_line for override in overrides if not override.is_sweep_override()]
        space = {o.get_key_element(): _distribution(o) for o in overrides if o.is_sweep_override()}
        folder = Path(self.config.hydra.sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, folder / "multirun.yaml")
        rows: list[list[Any]] = []
        while len(rows) < self.n_trials and not ended:
            trials = [study.ask(space) for _ in range(min(self.n_jobs, self.n_trials - len(rows)))]
            jobs = [
                [*fixed, *(f"{key}={value}" for key, value in trial.params.items())]
                for trial in trials
            ]
            self.validate_batch_is_legal(jobs)
            self.launcher.launch(jobs, initial_job_idx=len(rows))
            for trial in trials:
                values = self._values(folder / str(len(rows)))
                study.tell(trial, values, TrialState.FAIL if values is None else None)
                rows.append(
                    [
                        len(rows),
                        *trial.params.values(),
                        *(values or [""] * len(self.directions)),
                        trial.number,
                    ]
                )
        self._write(folder, list(space), rows, {trial.number for trial in study.best_trials})

    def _study(self) -> Any:
        try:
            import optuna
        except ImportError:
            raise UserError(
                'hydra/sweeper=optuna: Optuna is not installed; pip install "mhprobe[optuna]".'
            ) from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        if not self.directions or set(self.directions.values()) - {"maximize", "minimize"}:
            raise UserError(
                "hydra.sweeper.directions: expected metrics, maximize or minimize, got "
                f"{self.directions}."
            )
        if self.sampler not in optuna.samplers.__all__:
            raise UserError(
                f"hydra.sweeper.sampler: expected one of {', '.join(optuna.samplers.__all__)}, got "
                f"{self.sampler}."
            )
        try:
            sampler = getattr(optuna.samplers, self.sampler)(seed=self.seed)
        except TypeError as error:
            raise UserError(
                f"hydra.sweeper.sampler: {self.sampler} needs more than a seed ({error}); expected "
                "one that does not, such as TPESampler or BruteForceSampler."
            ) from None
        return optuna.create_study(
            sampler=sampler,
            directions=list(self.directions.values()),
            storage=self.storage,
            study_name=self.study_name,
            load_if_exists=True,
        )

    def _values(self, job: Path) -> list[float] | None:
        """Return the metrics of a job; None if it failed.

        UserError for a metric that it has not, and for the whole network's of a masked one.
        """
        if not (job / "metrics.json").is_file():
            return None
        metrics = json.loads((job / "metrics.json").read_text())
        if missing := [name for name in self.directions if name not in metrics]:
            raise UserError(
                f"hydra.sweeper.directions: {job} has no {', '.join(missing)}; its metrics: "
                f"{', '.join(metrics)}."
            )
        whole = [name for name in self.directions if name.startswith("test/")]
        if whole and any(name.startswith("masked/") for name in metrics):
            raise UserError(
                f"hydra.sweeper.directions: {whole[0]} is that of the whole network, whatever is "
                "masked; expected metrics such as masked/accuracy."
            )
        return [float(metrics[name]) for name in self.directions]

    def _write(
        self, folder: Path, keys: list[str], rows: Sequence[list[Any]], best: set[int]
    ) -> None:
        from mhprobe.report.report import Report, Result
        from mhprobe.report.tables import Table

        columns = ["job", *keys, *self.directions, "best"]
        table = Table(columns, [[*row[:-1], int(row[-1] in best)] for row in rows])
        larger = ", ".join(
            "better" if way == "maximize" else "worse" for way in self.directions.values()
        )
        Report(folder).add({"trials": Result(table).saying(", ".join(self.directions), larger)})
        for row in table.rows:
            if row[-1]:
                print(
                    f"best: {', '.join(f'{name} {value}' for name, value in zip(columns, row[:-1], strict=False))}"
                )
        print(f"all trials: {folder / 'tables' / 'trials.csv'}")


def _distribution(override: Override) -> Any:
    """Return the distribution of interval(a, b), with the tags log or int; range(a, b, step) and lists are choices."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value = override.value()
    if not isinstance(value, IntervalSweep):
        return CategoricalDistribution(list(override.sweep_string_iterator()))
    try:
        kind, number = (IntDistribution, int) if "int" in value.tags else (FloatDistribution, float)
        return kind(number(value.start), number(value.end), log="log" in value.tags)
    except ValueError as error:
        raise UserError(f"{override.input_line}: {error}") from None
