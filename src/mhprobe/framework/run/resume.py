"""Resuming a training run from a checkpoint of the same run, or with the differences that are allowed.

Facts decide the numbers of a training: seed, images, backbone, gates, optimizer, early stopping,
precision, processes, versions. Where files lie and what is measured (folders, loggers, measures,
curves) are no facts. They are plain values.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L

from mhprobe.errors import UserError, nearest
from mhprobe.framework.run.constructors import defaults_of
from mhprobe.framework.run.schema import Config
from mhprobe.framework.training.checkpoints import SameRun
from mhprobe.io.code import file_digest
from mhprobe.io.moved import current
from mhprobe.io.nested import leaves
from mhprobe.weights.checkpoint import load_checkpoint

Facts = Mapping[str, Any]

# settings that change no number of a training
INDIFFERENT = {
    "data": {"root", "cache_dir", "download_dir", "num_workers", "eval_batch_size", "limit_test"}
    | {"calibration_fraction", "limit_calibration"},  # data.images says which are left
    "trainer": {
        "accelerator",
        "devices",
        "num_nodes",
        "strategy",
        "precision",
        "log_every_n_steps",
        "benchmark",
    },
    "gates": {"keep", "threshold"},
}
# facts that nobody can allow to differ: the network, and the images of a step
FIXED = (
    "seed",
    "data",
    "processes",
    "backbone",
    "heads",
    "weights",
    "gates.relaxation",
    "gates.mask",
    "gates.frozen",
)
ABSENT = "absent"
LAST = Path("checkpoints", "last.ckpt")
SWEEP = "multirun.yaml"  # what Hydra leaves in the folder of a sweep
WHY = {"processes": " (they share out the images of a step)"}


def resume(cfg: Config, folder: Path, trainer: L.Trainer, part: bool = False) -> Path | None:
    """Return the checkpoint that ``ckpt_path`` names; None to start anew.

    UserError if it is missing or of another run.

    folder: of this run; nothing begins anew in one that holds a stopped run. part: True for a part
    of a study, which may begin anew with ``last``. Prints the differences that are allowed.
    """
    named = cfg.ckpt_path
    if named is None:
        if (folder / LAST).is_file() and not (folder / "model.safetensors").is_file():
            raise UserError(
                f"hydra.run.dir: {folder} holds a training that was stopped. Go on with it by "
                "ckpt_path=last; or start "
                f"anew in another folder, or after removing {folder / LAST.parent}."
            )
        return None
    ours = next(part for part in trainer.callbacks if isinstance(part, SameRun)).facts(trainer)  # type: ignore[attr-defined]
    paths, runs = [Path(named)], Path(cfg.out) / cfg.name
    if named == "last" and not (paths := earlier(runs, folder)):
        if part:
            return None
        raise UserError(
            f"ckpt_path=last: no last.ckpt of this run under {runs}; leave ckpt_path out to start "
            "anew."
        )
    if "://" in named:
        raise UserError(
            f"ckpt_path: {named} is remote, where pickled code could hide; download it first."
        )
    if not paths[0].is_file():
        raise UserError(
            f"ckpt_path: no file {named}; ckpt_path=last takes the last checkpoint of this run."
        )
    refusals = []
    for path in paths:  # the newest first
        try:
            lines = allowed_differences(
                load_checkpoint(path).get("run"), ours, cfg.resume.allow if cfg.resume else [], path
            )
        except UserError as error:
            refusals.append(error)
            continue
        if trainer.is_global_zero:
            print("\n".join([f"resuming from {path}", *lines]))
        return path
    raise refusals[0]


def facts_of_run(cfg: Config, description: Mapping[str, Any], images: str) -> dict[str, Any]:
    """Return the facts of a run, by key.

    description: of the network. images: digest of training and validation.
    """
    import timm
    import torch

    from mhprobe import __version__

    assert cfg.optim is not None, "a section of commands that train"
    parts = {
        "data": dict(cfg.data),
        "optim": dict(cfg.optim),
        "gates": dict(cfg.gates),
        "trainer": dict(cfg.trainer),
    }
    for name, key in (("gates", "mask"), ("optim", "teacher")):
        parts[name][key] = _digest(parts[name].get(key))
    parts |= {
        "versions": {
            "mhprobe": __version__,
            "torch": str(torch.__version__),
            "timm": timm.__version__,
        }
    }
    network = {
        "backbone": description["backbone"],
        "heads": description.get("kept"),
        "weights": _digest(cfg.weights),
    }
    values = leaves(
        {"seed": cfg.seed, "compile": cfg.compile, **parts, "data.images": images, **network}
    )
    differ = {
        path: value for path, value in values if not INDIFFERENT.get(path[0], set()) & {*path}
    }
    named = {
        ".".join(path): list(value) if isinstance(value, tuple) else value
        for path, value in differ.items()
    }
    return {key: value for key, value in named.items() if not key.startswith("trainer.enable_")}


def differences(theirs: Facts | None, ours: Facts) -> dict[str, tuple[Any, Any]]:
    """Return old and new values by key, where they differ.

    A missing option at its default does not differ.
    """
    if theirs is None:
        return {"run": ("unknown", "known")}

    theirs = {
        key: current(str(value)) if key.endswith("_target_") else value
        for key, value in theirs.items()
    }

    def value(key: str, here: Facts, other: Facts) -> Any:
        part, _, option = key.rpartition(".")
        default = defaults_of(str(other.get(f"{part}._target_"))).get(option, ABSENT)
        return here.get(key, default if default == other.get(key) else ABSENT)

    pairs = {
        key: (value(key, theirs, ours), value(key, ours, theirs))
        for key in sorted({*theirs, *ours})
    }
    return {key: (was, now) for key, (was, now) in pairs.items() if was != now}


def allowed_differences(
    theirs: Facts | None, ours: Facts, allow: Sequence[str], path: Path
) -> list[str]:
    """Return a line for each allowed difference; UserError for others.

    allow: keys, or their beginnings (``optim``).
    """
    _refuse_unknown(allow, {**ours, **(theirs or {})})
    changes = differences(theirs, ours)
    was, now = changes.get("trainer.max_epochs", (None, None))
    grows = isinstance(was, int) and isinstance(now, int) and was < now
    longer = ["trainer.max_epochs"] if grows else []
    fixed = [key for key in changes if _under(key, FIXED)]
    refused = [key for key in changes if not _under(key, (*longer, *allow, *fixed))]
    lines = {
        key: f"{key} was {was}, is {now}{WHY.get(key, '')}" for key, (was, now) in changes.items()
    }
    if fixed or refused:
        ways = ["Use the old settings"]
        if not fixed:
            ways.append(f"change them on purpose with 'resume.allow=[{','.join(refused)}]'")
        ways.append(f"start anew from its weights with weights={path}")
        wrong = "; ".join(lines[key] for key in (*fixed, *refused))
        raise UserError(f"ckpt_path: {path} is of another run: {wrong}. {', or '.join(ways)}.")
    since = "the schedule is the longer run's from here on, so this is not the run that had it from the start"
    allowed = [
        f"{line}: allowed, and in force from here on"
        for key, line in lines.items()
        if key not in longer
    ]
    return allowed + [f"{lines[key]}: {since}" for key in longer]


def _refuse_unknown(allow: Sequence[str], keys: Iterable[str]) -> None:
    """UserError for an allowed difference that no part of a run is called."""
    unknown = [
        name for name in allow if name != "run" and not any(_under(key, [name]) for key in keys)
    ]
    if not unknown:
        return
    names = {".".join(key.split(".")[:depth]): None for key in keys for depth in (1, 2, 3)}
    hint = (
        nearest(unknown[0], names)
        + f"parts: {', '.join(name for name in names if '.' not in name)}."
    )
    raise UserError(f"resume.allow: no part of a run is called {unknown[0]}; {hint}")


def earlier(runs: Path, folder: Path) -> list[Path]:
    """Return the last.ckpt of the run in ``folder``; else those of runs beside it in ``runs``, newest first.

    For a job of a sweep they are those of the same number in earlier sweeps.
    """
    if (folder / LAST).is_file():
        return [folder / LAST]
    sweep = next((parent for parent in folder.parents if (parent / SWEEP).is_file()), None)
    if sweep is not None:
        sweeps = [
            other.parent for other in sweep.parent.glob(f"*/{SWEEP}") if other.parent != sweep
        ]
        paths = [other / folder.relative_to(sweep) / LAST for other in sweeps]
    else:
        folder, runs = folder.resolve(), runs.resolve()
        inside = folder.relative_to(runs).parts if folder.is_relative_to(runs) else ("",)
        paths = [
            other.joinpath(*inside[1:]) / LAST
            for other in runs.glob("*")
            if other.name != inside[0]
        ]
    return sorted(
        (path for path in paths if path.is_file()),
        key=lambda path: path.stat().st_mtime_ns,
        reverse=True,
    )


def _under(key: str, names: Iterable[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _digest(file: str | None) -> str | None:
    """Return the digest of a file; the name of a file that is missing."""
    return file if file is None or not Path(file).is_file() else file_digest(file)[:16]
