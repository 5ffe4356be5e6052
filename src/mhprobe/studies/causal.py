"""python -m mhprobe.studies.causal: which heads are necessary, irrelevant or interfering (no training)."""

import functools
from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.questions.plan import Question
    from mhprobe.run.questions import answer
    from mhprobe.studies.causal_roles import causal_roles

    roles = Question("causal", functools.partial(causal_roles, **cfg["causal"]))
    answer(cfg, folder, lambda material: [roles]).complain()


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("studies.causal")
