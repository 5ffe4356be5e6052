"""python -m mhprobe.claims: which findings of the literature hold for trained weights (no training)."""

import fnmatch
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mhprobe.framework.questions.material import Material
    from mhprobe.framework.run.needed import Need
    from mhprobe.framework.run.schema import Config
    from mhprobe.lab.claims.parts.claim import Claim
    from mhprobe.report.report import Report


def needs(cfg: "Config", key: str) -> "list[Need]":
    """Return what an option of ``evidence`` or ``data`` needs: one of the claims that are asked has to read it.

    Other options need nothing, and none does where all claims are asked.
    """
    section, _, option = key.partition(".")
    if cfg.claims is None:
        return []
    if section == "data":
        return [_of_validation(cfg)]
    if section != "evidence":
        return []
    from mhprobe.framework.run.needed import Need
    from mhprobe.lab.claims.parts.claim import all_claims, claims_named

    def reads(claim: "Claim") -> bool:
        return any(fnmatch.fnmatchcase(option, pattern) for pattern in read_by(claim))

    users = [name for name, claim in all_claims().items() if reads(claim)]
    more = f" and {len(users) - 3} more" if len(users) > 3 else ""
    others = ", ".join(users[:3]) + more
    why = f"no claim that is asked reads it; leave it out, or ask one that does: {others}"
    asked = {*claims_named(cfg.claims)}
    return [Need((key,), lambda _: not users or bool(asked & {*users}), why, ("claims",))]


def _of_validation(cfg: "Config") -> "Need":
    """Return the need of options that decide which images are for validation: a claim has to look at some."""
    from mhprobe.framework.run.needed import OF_VALIDATION, TEST_ALONE, Need, select_first
    from mhprobe.lab.claims.parts.claim import claims_named

    assert cfg.evidence is not None
    asked = claims_named(cfg.claims).values()
    measures = {name for claim in asked for name in claim.measures} & {*cfg.evidence.measure}
    places = any(claim.asks.images and not claim.asks.maps for claim in asked)
    looks = places or any(claim.asks.choice for claim in asked)
    looks = looks or select_first({name: cfg.evidence.measure[name] for name in measures})
    return Need(OF_VALIDATION, lambda _: looks, TEST_ALONE, ("claims",))


def read_by(claim: "Claim") -> list[str]:
    """Return patterns of the options of ``evidence`` that a claim reads, e.g. measures_of."""
    asks = claim.asks
    patterns = [f"measure.{name}*" for name in claim.measures]
    patterns += [f"maps.{kind}*" for kind in asks.maps]
    patterns += [f"runs.{role}" for role in asks.runs]
    by_part = {
        ("measures_of", "control_of"): bool(claim.measures),
        ("masking*",): asks.masks,
        ("draws", "chosen_on"): asks.choice,
        ("maps_of",): asks.images,
        ("second*",): asks.second,
    }
    return patterns + [one for options, asked in by_part.items() if asked for one in options]


def run(cfg: "Config", folder: Path) -> None:
    from mhprobe.framework.questions.measured import second_to
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
        second = parts.second and second_to(
            material.data,
            image_data.prepare(parts.second, "evidence.second"),
            "evidence.second",
        )
        others: dict[str, Any] = {"second": second, "runs": parts.runs, "key": "evidence.runs"}
        ask = functools.partial(verdicts_on, claims=claims, maps=maps, counts=counts, **others)
        return [Question("claims", ask, names, control=cfg.control is not None)]

    answer(cfg, folder, questions).complain()


if __name__ == "__main__":
    from mhprobe.framework.run.cli import main

    main("claims")
