"""python -m mhprobe.claims: which findings of the literature hold for trained weights (no training)."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mhprobe.framework.questions.material import Material
    from mhprobe.framework.run.schema import Config
    from mhprobe.report.report import Report


def run(cfg: "Config", folder: Path) -> None:
    from mhprobe.framework.questions.plan import Question
    from mhprobe.framework.run import image_data
    from mhprobe.framework.run.construct import construct
    from mhprobe.framework.run.questions import answer
    from mhprobe.lab.claims.parts.asking import verdicts_on
    from mhprobe.lab.claims.parts.claim import claims_named, refuse_left_out
    from mhprobe.lab.claims.parts.evidence import Counts

    claims, parts = claims_named(cfg.claims), cfg.evidence
    assert parts is not None
    refuse_left_out(claims, parts.measure)
    names = tuple(dict.fromkeys(name for claim in claims.values() for name in claim.measures))
    maps = {name: construct(part, f"evidence.maps.{name}") for name, part in parts.maps.items()}
    counts = Counts(
        parts.measures_of, parts.maps_of, parts.control_of, parts.chosen_on, parts.draws
    )

    def questions(material: "Material", _: "Report") -> list[Question]:
        second = parts.second and image_data.prepare(parts.second, "evidence.second")
        others: dict[str, Any] = {"second": second, "runs": parts.runs, "key": "evidence.runs"}
        ask = functools.partial(verdicts_on, claims=claims, maps=maps, counts=counts, **others)
        return [Question("claims", ask, names, control=cfg.control is not None)]

    answer(cfg, folder, questions).complain()


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("claims")
