"""The command line: Hydra composes, one of the tasks runs, and the user's mistakes are answered in one line.

Exit codes: 0 done, 2 bad input, 143 stopped by SIGTERM after saving; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mhprobe.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

PACKAGE = Path(__file__).parents[1]
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parents[1] / "conf"


def main(task: str) -> None:
    """Run ``task`` (train, probe or mask) as a Hydra application; sweeps with -m."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let exceptions through to us instead of Hydra's own print and exit
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    started = False
    mistakes: list[UserError] = []

    @hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    def application(cfg: DictConfig) -> None:
        from mhprobe.run.launch import run

        nonlocal started
        started = True
        try:
            run(task, cfg, Path(HydraConfig.get().runtime.output_dir))
        except UserError as error:  # not through Hydra, which adds lines of its own; a sweep goes on with its next job
            mistakes.append(error)
            say(str(error))

    try:
        application()
    except (HydraException, OmegaConfBaseException) as error:
        fail(explain(error))
    except OSError as error:
        if started:  # the parts answer for their own files
            raise
        fail(f"out: {error.filename} cannot be written ({error.strerror}). Choose another folder with out=<folder>.")
    except KeyboardInterrupt:
        print("interrupted; go on with ckpt_path=last", file=sys.stderr)
        sys.exit(130)
    if mistakes:
        sys.exit(2)


def say(message: str) -> None:
    """One line to stderr."""
    print(f"mhprobe: {' '.join(message.split())}", file=sys.stderr)


def fail(message: str) -> NoReturn:
    """One line to stderr, exit code 2."""
    say(message)
    sys.exit(2)


def explain(error: Exception) -> str:
    """Hydra's and OmegaConf's complaints in one line that lists the valid choices."""
    text = str(error).partition("Config search path:")[0]  # where Hydra looked is not the user's concern
    reasons = [str(error.__cause__)] if error.__cause__ is not None else []
    for line in [text, *reasons]:
        if "is not in struct" in line or "Could not override" in line:
            return _unknown_key(text)
    override = getattr(error, "override", None)  # a parser quotes only the end of what it could not read
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if override is not None and override not in text:
        lines[0] = f"{override}: {lines[0]}"
    group = re.search(r"Could not load '(\w+)/", text)
    if group is not None and "Available options" not in text:
        lines.append(f"Available options: {', '.join(sorted(f.stem for f in (CONF / group[1]).glob('*.yaml')))}.")
    return " ".join([lines[0] + ("" if lines[0].endswith((".", ":")) else "."), *lines[1:]])


def _unknown_key(text: str) -> str:
    """``Could not override 'trainer.max_epoch'`` plus the keys that are there."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import DictConfig, OmegaConf

    key = text.split("'")[1] if "'" in text else ""
    parent, _, leaf = key.rpartition(".")
    experiment = [arg for arg in sys.argv[1:] if arg.startswith("+experiment=") and "," not in arg]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config", overrides=experiment)
    while parent and not isinstance(OmegaConf.select(cfg, parent), DictConfig):
        parent, _, leaf = parent.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else cfg
    keys = [str(k) for k in node]
    close = difflib.get_close_matches(leaf, keys, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    where = parent or "the configuration"
    new = f" Use +{key}=... to add a key that the target takes." if "_target_" in keys or parent == "trainer" else ""
    return f"unknown key {key!r}: {hint}{where} has {', '.join(k for k in keys if k != '_target_')}.{new}"
