"""python -m mhprobe.studies.causal: which heads are necessary, irrelevant or interfering (no training)."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mhprobe.framework.run.schema import Config


def run(cfg: "Config", folder: Path) -> None:
    from mhprobe.framework.questions.plan import Question
    from mhprobe.framework.run.construct import keyed, naming_keys
    from mhprobe.framework.run.questions import answer
    from mhprobe.lab.papers.causal_gates import causal_roles, refuse_options

    assert cfg.causal is not None
    options = cfg.causal.model_dump()
    with keyed(options, "causal"):
        refuse_options(**options)  # before anything is loaded
    roles = Question("causal", naming_keys(functools.partial(causal_roles, **options), "causal"))
    answer(cfg, folder, lambda *_: [roles]).complain()


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("studies.causal")
