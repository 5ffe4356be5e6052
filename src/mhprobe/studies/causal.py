"""python -m mhprobe.studies.causal: which heads are necessary, sufficient or interfering (no training)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def run(cfg: dict[str, Any], folder: Path) -> None:
    """The task itself, in one process or in every rank; ``cfg`` is composed and checked."""
    from mhprobe.run.session import Session
    from mhprobe.studies.causal_roles import CausalRoles

    session = Session("causal", cfg, folder)
    session.trainer.callbacks.append(CausalRoles(session.report, cfg["seed"], **cfg["causal"]))
    session.test()
    session.close()


if __name__ == "__main__":
    from mhprobe.run.cli import main

    main("studies.causal")
