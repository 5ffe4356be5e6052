"""From which checkpoint a training run goes on: a run that goes on is the same run, or says what is different.

The facts are what makes the numbers: seed, images, backbone, gates, optimizer, precision, processes, versions. Settings
that only say where files lie or what is measured (folders, loggers, measures, curves) are not among them. All facts are
plain values.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L

from mhprobe.errors import UserError
from mhprobe.io.code import file_digest
from mhprobe.run.constructors import options
from mhprobe.run.schema import Config
from mhprobe.training.checkpoints import SameRun
from mhprobe.weights.checkpoint import load_checkpoint

Facts = Mapping[str, Any]

# where things lie, how fast they come and what is shown: no two runs differ by these
INDIFFERENT = {
    "data": {"root", "cache_dir", "download_dir", "num_workers", "eval_batch_size", "limit_test"}
    | {"calibration_fraction", "limit_calibration"},  # data.images says which are left
    "trainer": {"accelerator", "devices", "num_nodes", "strategy", "precision", "log_every_n_steps", "benchmark"},
    "gates": {"keep", "threshold"},
}
# what decides which images a step sees, and which network: it cannot change under a run
FIXED = ("seed", "data", "processes", "backbone", "heads", "weights", "gates.relaxation", "gates.mask", "gates.frozen")
ABSENT = "absent"
LAST = Path("checkpoints", "last.ckpt")
SWEEP = "multirun.yaml"  # what Hydra leaves in the folder of a sweep
WHY = {"processes": " (they share out the images of a step)"}


def resume(cfg: Config, folder: Path, trainer: L.Trainer) -> Path | None:
    """The checkpoint that ``ckpt_path`` asks for; None to start anew. UserError if it is of another run.

    folder: of this run. What is different and allowed is printed.
    """
    asked = cfg.ckpt_path
    if asked is None:
        return None
    ours = next(part for part in trainer.callbacks if isinstance(part, SameRun)).facts(trainer)  # type: ignore[attr-defined]
    path, lines = _judged(_candidates(cfg, folder, asked), ours, cfg.resume.allow if cfg.resume else [])
    if trainer.is_global_zero:
        print("\n".join([f"resuming from {path}", *lines]))
    return path


def begun(cfg: Config, folder: Path) -> bool:
    """Return True if a part of a study has the checkpoint that ``ckpt_path`` asks for; with ``last`` it need not."""
    return cfg.ckpt_path is not None and (cfg.ckpt_path != "last" or bool(earlier(_runs(cfg), folder)))


def _runs(cfg: Config) -> Path:
    return Path(cfg.out) / cfg.name


def _candidates(cfg: Config, folder: Path, asked: str) -> Sequence[Path]:
    """The checkpoints that ``ckpt_path`` may mean, the newest first. UserError where there is none."""
    if asked == "last":
        if paths := earlier(_runs(cfg), folder):
            return paths
        raise UserError(
            f"ckpt_path=last: no last.ckpt of this run under {_runs(cfg)}; leave ckpt_path out to start anew."
        )
    if "://" in asked:
        raise UserError(f"ckpt_path: {asked} is remote, where pickled code could hide; download it first.")
    if not Path(asked).is_file():
        raise UserError(f"ckpt_path: no file {asked}; ckpt_path=last takes the last checkpoint of this run.")
    return [Path(asked)]


def _judged(paths: Sequence[Path], ours: Facts, allow: Sequence[str]) -> tuple[Path, list[str]]:
    """The first checkpoint that is of this run, and what is different. UserError says why the first of all is not."""
    refusals = []
    for path in paths:
        try:
            return path, judge(load_checkpoint(path).get("run"), ours, allow, path)
        except UserError as error:
            refusals.append(error)
    raise refusals[0]


def facts(cfg: Mapping[str, Any], description: Mapping[str, Any], images: str) -> dict[str, Any]:
    """Return the facts of a run, by key, from a checked configuration; the trainer adds its processes and precision.

    description: of the network (mhprobe.weights). images: the digest of those to train and validate on.
    """
    import timm
    import torch

    from mhprobe import __version__

    parts = {name: _without(cfg[name], INDIFFERENT.get(name, set())) for name in ("data", "optim", "gates", "trainer")}
    parts["gates"]["mask"] = _digest(cfg["gates"].get("mask"))
    parts["trainer"] = {key: value for key, value in parts["trainer"].items() if not key.startswith("enable_")}
    parts["optim"] = {**parts["optim"], "teacher": _digest(parts["optim"].get("teacher"))}
    return dict(
        _flat(
            {
                "seed": cfg["seed"],
                "compile": cfg.get("compile", False),
                **parts,
                "data.images": images,
                "backbone": description["backbone"],
                "heads": description.get("kept"),
                "weights": _digest(cfg.get("weights")),
                "versions": {"mhprobe": __version__, "torch": str(torch.__version__), "timm": timm.__version__},
            }
        )
    )


def differences(theirs: Facts | None, ours: Facts) -> dict[str, tuple[Any, Any]]:
    """Key -> (what the checkpoint's run had, what this one has), where they are not the same.

    An option that only one of them names, at its default, is none: a version before may not have named it.
    """
    if theirs is None:
        return {"run": ("unknown", "known")}
    keys = [
        key
        for key in sorted({*theirs, *ours})
        if (key in theirs or not _by_default(ours, key)) and (key in ours or not _by_default(theirs, key))
    ]
    pairs = {key: (theirs.get(key, ABSENT), ours.get(key, ABSENT)) for key in keys}
    return {key: (was, now) for key, (was, now) in pairs.items() if was != now}


def _by_default(facts: Facts, key: str) -> bool:
    part, _, option = key.rpartition(".")
    return bool(options(str(facts.get(f"{part}._target_"))).get(option, ABSENT) == facts[key])


def judge(theirs: Facts | None, ours: Facts, allow: Sequence[str], path: Path) -> list[str]:
    """Lines on what is different and may be; UserError with every difference that may not.

    allow: keys, or what they begin with (``optim`` allows ``optim.lr``). More epochs need no permission.
    """
    if unknown := [name for name in allow if name != "run" and not any(_under(key, [name]) for key in ours)]:
        raise UserError(f"resume.allow: no part of a run is called {', '.join(unknown)}; parts: {', '.join(ours)}.")
    found = differences(theirs, ours)
    was, now = found.get("trainer.max_epochs", (None, None))
    longer = {"trainer.max_epochs"} if isinstance(was, int) and isinstance(now, int) and was < now else set()
    fixed = [key for key in found if _under(key, FIXED)]
    refused = [key for key in found if key not in longer and not _under(key, allow) and key not in fixed]
    said = {key: f"{key} was {was}, is {now}{WHY.get(key, '')}" for key, (was, now) in found.items()}
    if fixed or refused:
        ways = ["Use the old settings"]
        if refused and not fixed:
            ways.append(f"change them on purpose with 'resume.allow=[{','.join(refused)}]'")
        ways.append(f"start anew from its weights with weights={path}")
        raise UserError(
            f"ckpt_path: {path} is of another run: {'; '.join(said[key] for key in (*fixed, *refused))}. "
            f"{', or '.join(ways)}."
        )
    lines = [f"{said[key]}: allowed, and in force from here on" for key in found if key not in longer]
    return lines + [
        f"{said[key]}: the schedule is the longer run's from here on, so this is not the run that had it from the start"
        for key in sorted(longer)
    ]


def earlier(runs: Path, folder: Path) -> list[Path]:
    """The last.ckpt that the run in ``folder`` may go on from, newest first.

    Its own, if it has one. Else those of runs beside it in ``runs``; a job of a sweep, wherever that lies, has only the
    jobs of the same number in earlier sweeps beside it.
    """
    own = folder / LAST
    if own.is_file():
        return [own]
    sweep = next((parent for parent in folder.parents if (parent / SWEEP).is_file()), None)
    if sweep is not None:
        sweeps = [other.parent for other in sweep.parent.glob(f"*/{SWEEP}") if other.parent != sweep]
        found = [other / folder.relative_to(sweep) / LAST for other in sweeps]
    else:
        folder, runs = folder.resolve(), runs.resolve()
        inside = folder.relative_to(runs).parts if folder.is_relative_to(runs) else ("",)
        others = [other for other in runs.glob("*") if other.name != inside[0]]
        found = [other.joinpath(*inside[1:]) / LAST for other in others]
    return sorted((path for path in found if path.is_file()), key=lambda path: path.stat().st_mtime_ns, reverse=True)


def _under(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _without(part: Any, keys: set[str]) -> Any:
    if not isinstance(part, Mapping):
        return part
    return {key: _without(value, keys) for key, value in part.items() if key not in keys}


def _flat(part: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in part.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", list(value) if isinstance(value, (list, tuple)) else value


def _digest(file: str | None) -> str | None:
    """Digest of a file that decides the run; a file that is not there stands for itself."""
    return file if file is None or not Path(file).is_file() else file_digest(file)[:16]
