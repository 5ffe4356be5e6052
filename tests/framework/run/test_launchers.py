"""Sweeps by other engines: each composes, and those that are installed run a tiny sweep to the same numbers."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import OmegaConf

import runs
from mhprobe.errors import UserError
from mhprobe.framework.run import cli, composing, jobs, launch
from mhprobe.framework.run.sections import CONF

ENGINES = [
    (kind, path.stem)
    for kind in ("launcher", "sweeper")
    for path in sorted((CONF / "hydra" / kind).glob("*.yaml"))
]
MODULES = {
    "joblib": "hydra_plugins.hydra_joblib_launcher",
    "submitit": "hydra_plugins.hydra_submitit_launcher",
}
EXTRAS = {
    "parallel": "joblib",
    "slurm": "submitit",
    "slurm_local": "submitit",
}  # others are called as their engine is


def installed(extra: str) -> bool:
    try:
        return importlib.util.find_spec(MODULES.get(extra, extra)) is not None
    except ModuleNotFoundError:
        return False


def needs(engine: str) -> pytest.MarkDecorator:
    extra = EXTRAS.get(engine, engine)
    return pytest.mark.skipif(not installed(extra), reason=f'pip install "mhprobe[{extra}]"')


@pytest.mark.parametrize(
    ("kind", "engine"),
    [pytest.param(*engine, marks=needs(engine[1]), id=engine[1]) for engine in ENGINES],
)
def test_every_engine_composes_and_takes_the_options_it_is_given(kind, engine):
    hydra = runs.composed("mask", "weights=random", f"hydra/{kind}={engine}", hydra=True).hydra
    assert hydra.mode.name == "MULTIRUN"  # it means a sweep, also without -m
    made = Plugins.instance()._instantiate(hydra[kind])
    assert type(made).__module__ in hydra[kind]._target_


def test_an_engine_that_is_not_installed_is_answered_with_what_to_install(monkeypatch):
    def find(name: str) -> None:
        raise ModuleNotFoundError

    monkeypatch.setattr("mhprobe.framework.run.composing.importlib.util.find_spec", find)
    with pytest.raises(
        UserError, match=r'hydra/launcher=parallel: not installed; pip install "mhprobe\[joblib\]"'
    ):
        runs.composed("mask", "weights=random", "hydra/launcher=parallel", hydra=True)


def test_a_job_that_was_lost_is_named_at_the_end(tmp_path, capsys):
    jobs.note_lost(tmp_path / "3", ["masking.step=3"], "the machine went away")
    with pytest.raises(SystemExit) as stop:
        jobs.SaysWhatFailed().on_multirun_end(
            OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
        )
    assert stop.value.code == 1
    assert "3 (masking.step=3): the machine went away" in capsys.readouterr().err


@needs("slurm")
def test_a_job_that_submitit_lost_leaves_word_and_the_others_are_waited_for(tmp_path, monkeypatch):
    import submitit

    def results(job):
        if job.number == 0:
            raise submitit.core.utils.UncompletedJobError(
                "Job 7 has not produced any output\nits log ..."
            )
        return ["done"]

    class Job:
        def __init__(self, number: int) -> None:
            self.number = number

        def submission(self):
            return SimpleNamespace(
                args=(["masking.step=3"], "hydra.sweep.dir", self.number, "id", None)
            )

    monkeypatch.setattr(submitit.Job, "results", results)
    jobs.submitit_names_lost_jobs(tmp_path)
    lost, done = (submitit.Job.results(Job(number)) for number in (0, 1))
    assert done == ["done"] and lost[0].return_value is None
    assert (
        json.loads((tmp_path / "0" / jobs.FAILED).read_text())["message"]
        == "Job 7 has not produced any output"
    )
    assert not (tmp_path / "1").exists()


@needs("parallel")
def test_a_sweep_whose_process_was_killed_is_told_so_in_a_line(tmp_path, monkeypatch):
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    def run(*_):
        raise TerminatedWorkerError("a hundred lines")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["mhprobe.probe", *runs.known("probe", runs.TINY), "weights=random"]
    )
    monkeypatch.setattr(launch, "run", run)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(SystemExit, match=r"a process of the sweep was killed.*n_jobs=1"):
        cli.main("probe")
    for number, handler in before.items():
        signal.signal(number, handler)


LOCAL = [
    name for kind, name in ENGINES if kind == "launcher" and name != "slurm"
]  # what one machine can do


@pytest.mark.slow
@pytest.mark.parametrize("engine", [pytest.param(name, marks=needs(name)) for name in LOCAL])
def test_jobs_share_a_folder_and_scores_and_the_end_knows_who_failed(engine, trained, tmp_path):
    weights = f"weights={trained.folder / 'model.safetensors'}"
    command = [
        *runs.TINY,
        weights,
        "masking=six_curves",
        "trainer.precision=32-true",
        f"hydra/launcher={engine}",
    ]
    result = runs.run("mask", *command, "masking.step=2,99", cwd=tmp_path)
    [sweep] = (tmp_path / "outputs" / "digits_vit").iterdir()  # not one for each process
    assert result.code == 2, result.err
    assert (
        "1 of 2 jobs failed" in result.err
        and "masking.step: steps 0 to 3 exist, got 99" in result.err
    )
    assert {row["step"] for row in runs.rows(sweep / "0" / "tables" / "masking_curves.csv")} == {
        "2"
    }
    assert (
        len(list((tmp_path / ".cache" / "mhprobe" / "orders").iterdir())) == 2
    )  # of validation and test, for all jobs


@pytest.mark.slow
@needs("optuna")
def test_optuna_finds_the_front_between_accuracy_and_heads(trained, tmp_path):
    weights = f"weights={trained.folder / 'model.safetensors'}"
    command = [part for part in runs.TINY if not part.startswith(("+experiment", "backbone"))]
    command += [
        "+experiment=digits_gates",
        weights,
        "masking=none",
        "measure=[]",
        "hydra/sweeper=optuna",
    ]
    command += [
        "gates.penalty.weight=tag(log, interval(0.001, 100))",
        "optim.lr=1e-3,1e-4",
        "gates.lr=1",
    ]
    result = runs.run(
        "train", *command, "hydra.sweeper.n_trials=3", "hydra.sweeper.n_jobs=2", cwd=tmp_path
    )
    assert result.code == 0, result.err
    [sweep] = (tmp_path / "outputs" / "digits_gates").iterdir()
    rows = runs.rows(sweep / "tables" / "trials.csv")
    assert [row["job"] for row in rows] == ["0", "1", "2"]
    assert len({row["gates.penalty.weight"] for row in rows}) == 3 and {
        row["optim.lr"] for row in rows
    } <= {
        "0.001",
        "0.0001",
    }
    points = [(float(row["gates/binary_accuracy"]), -float(row["gates/kept"])) for row in rows]
    beaten = [any(a >= x and b >= y and (a, b) != (x, y) for a, b in points) for x, y in points]
    assert [row["best"] for row in rows] == ["0" if worse else "1" for worse in beaten]
    assert "best: job" in result.out


@pytest.mark.slow
@needs("optuna")
def test_optuna_over_mask_steps_sees_what_the_masked_networks_can_do(trained, tmp_path):
    """It saw the whole network's accuracy, the same for every step."""
    command = [*runs.TINY, f"weights={trained.folder / 'model.safetensors'}"]
    command += ["masking=single_heads", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=5"]
    sampler = "hydra.sweeper.sampler=BruteForceSampler"
    result = runs.run("mask", "-m", *command, sampler, "masking.step=1,5", cwd=tmp_path)
    assert result.code == 0, result.err
    [trials] = (tmp_path / "outputs").rglob("trials.csv")
    rows = {row["masking.step"]: row for row in runs.rows(trials)}
    assert (
        rows.keys() == {"1", "5"} and rows["1"]["masked/accuracy"] != rows["5"]["masked/accuracy"]
    )
    for step, row in rows.items():
        folder = trials.parent.parent / row["job"]
        metrics = json.loads((folder / "metrics.json").read_text())
        points = runs.rows(folder / "tables" / "masking_curves.csv")
        [point] = [of for of in points if of["split"] == "test" and of["curve"] == "greedy"]
        assert point["step"] == step and float(point["heads_masked"]) == float(row["masked/heads"])
        assert float(row["masked/accuracy"]) == pytest.approx(float(point["accuracy"]), abs=1e-6)
        assert metrics["test/accuracy"] != metrics["masked/accuracy"]  # the control


@needs("optuna")
@pytest.mark.parametrize("command", ["mask", "prune", "train"])
def test_optuna_aims_at_what_the_command_makes(monkeypatch, capsys, command):
    from hydra_plugins.mhprobe_optuna import OptunaSweeper

    class Asked(Exception):
        """No job is started."""

    def study(sweeper):
        raise Asked

    monkeypatch.setattr(OptunaSweeper, "_study", study)
    gates = {"gates/binary_accuracy": "maximize", "gates/kept": "minimize"}
    found = {}
    for name, typed in {"default": gates, "typed": {"test/loss": "minimize"}}.items():
        sweeper = OptunaSweeper(typed, 1, 1, "TPESampler", 0, None, None)
        sweeper.config = OmegaConf.create({"hydra": {"job": {"config_name": command}}})
        with pytest.raises(Asked):
            sweeper.sweep([])
        found[name] = list(sweeper.directions)
    aims = {
        "mask": ["masked/accuracy", "masked/heads"],
        "prune": ["test/accuracy", "prune/flops"],
        "train": list(gates),
    }
    assert found == {"default": aims[command], "typed": ["test/loss"]}
    assert ("directions:" in capsys.readouterr().out) == (command != "train")


@needs("optuna")
def test_aims_that_no_job_has_are_named(tmp_path):
    from hydra_plugins.mhprobe_optuna import OptunaSweeper

    sweeper = OptunaSweeper({"test/beauty": "maximize"}, 1, 1, "TPESampler", 0, None, None)
    (tmp_path / "metrics.json").write_text('{"test/accuracy": 0.5}')
    with pytest.raises(UserError, match=r"has no test/beauty; its metrics: test/accuracy"):
        sweeper._values(tmp_path)
    assert sweeper._values(tmp_path / "failed") is None
    masked = OptunaSweeper({"test/accuracy": "maximize"}, 1, 1, "TPESampler", 0, None, None)
    assert masked._values(tmp_path) == [0.5]
    (tmp_path / "metrics.json").write_text('{"test/accuracy": 0.5, "masked/accuracy": 0.4}')
    with pytest.raises(UserError, match="that of the whole network, whatever is masked"):
        masked._values(tmp_path)
    with pytest.raises(UserError, match="sampler: expected one of"):
        OptunaSweeper({"a": "maximize"}, 1, 1, "Guesser", 0, None, None)._study()
    with pytest.raises(UserError, match="sampler: GridSampler needs more than a seed"):
        OptunaSweeper({"a": "maximize"}, 1, 1, "GridSampler", 0, None, None)._study()
    with pytest.raises(UserError, match="directions"):
        OptunaSweeper({"a": "up"}, 1, 1, "TPESampler", 0, None, None)._study()
    assert "ray" not in sys.modules  # Hydra imports every plugin at each start


@pytest.mark.parametrize(
    ("swept", "name"),
    [
        ("+experiment=digits_vit,digits_swin", "digits_vit_and_1_more"),
        ("name=a,b,c", "a_and_2_more"),
        ("seed=0,1", "vit_tiny_patch16_224"),
    ],
)
def test_a_sweep_over_what_names_its_jobs_has_a_name_of_its_own(tmp_path, monkeypatch, swept, name):
    """Not that of the first job, nor of what the command would be without them."""
    composing.compose_for("train")
    monkeypatch.chdir(tmp_path)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        cfg = loader.load_configuration("train", [swept], RunMode.MULTIRUN)
    assert Path(cfg.hydra.sweep.dir).parent == Path("outputs", name)
