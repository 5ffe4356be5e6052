"""Sensitivity of measures to grafts, grade by grade, in trained networks.

A measure finds a graft if its AUROC in the expected direction is 0.95 or more; grade 0, before any
change, is chance. The sensitivity is the grade from which on half of the grafts are found, by
isotonic regression of the share found (Ayer et al., 1955) and linear interpolation. Intervals
resample networks, since grafts of one share its other heads.

Shapes: N networks, G grades and grade 0, D grafts of a kind per network.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from scipy.optimize import isotonic_regression
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.lab.headbench.bench import Make, Told, columns_on, told_of
from mhprobe.lab.headbench.grafts import GRADES, Graft, known_grafts
from mhprobe.lab.headbench.network import TrainedNetwork, digits
from mhprobe.stats.intervals import percentiles, resampled_means

FOUND = 0.95
DRAWS = 2  # grafts of a kind in each network
RESAMPLES = 1000


class Grade(NamedTuple):
    """One detector of one graft at one grade. direction: as in ``Graft.signs``.

    amount: of the graft, NaN at grade 0. shown: mean of ``Graft.shown``. found: share of the grafts
    found, with low and high (95 % by bootstrap over networks, NaN of one). auroc: mean, in the
    direction. numbers: grafts with a number.
    """

    graft: str
    measure: str
    direction: int
    grade: int
    amount: float
    shown: float
    found: float
    low: float
    high: float
    auroc: float
    grafts: int
    networks: int
    numbers: int


class Sensitivity(NamedTuple):
    """Grade from which on half of the grafts are found, inf for none, with 95 % (NaN of one network). chance: at 0."""

    graft: str
    measure: str
    direction: int
    grade: float
    low: float
    high: float
    chance: float
    grafts: int
    networks: int


class Trial(NamedTuple):
    """One graft in one network: ``shown`` and each detector's AUROC, at grade 0 and every later grade."""

    network: int
    graft: str
    shown: list[float]
    scores: list[dict[str, Told]]


def sensitivities(
    makes: Mapping[str, Make],
    entered: Sequence[str],
    seeds: Sequence[int],
    draws: int = DRAWS,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[list[Grade], list[Sensitivity]]:
    """Test each measure that a graft names on that graft, and the ``entered`` ones, of large values, on all.

    seeds: of networks, which are trained here. draws: grafts of a kind in each. UserError as in
    ``refuse_without_grafts``.
    """
    refuse_without_grafts(makes, entered)
    kinds = known_grafts()
    trials: list[Trial] = []
    for seed in seeds:
        network = TrainedNetwork(seed)
        verified = [
            trial
            for name in kinds
            for trial in _trials(network, name, kinds[name], makes, entered, draws)
        ]
        counts = ", ".join(
            f"{name} {sum(trial.graft == name for trial in verified)}" for name in kinds
        )
        say(
            f"network {seed}: {100 * network.right:.1f} % right; verified of {draws} each: {counts}"
        )
        trials += verified
    grades: list[Grade] = []
    over_grades: list[Sensitivity] = []
    for name, graft in kinds.items():
        of_kind = [trial for trial in trials if trial.graft == name]
        for detector, direction in _signs(graft, makes, entered).items():
            if of_kind and all(detector in scores for trial in of_kind for scores in trial.scores):
                of_grades, sensitivity = _rows(graft, name, detector, direction, of_kind)
                grades += of_grades
                over_grades.append(sensitivity)
    return grades, over_grades


def refuse_without_grafts(makes: Mapping[str, Make], entered: Sequence[str] = ()) -> None:
    """Raise UserError where no graft names any of these measures."""
    if not any(_signs(graft, makes, entered) for graft in known_grafts().values()):
        raise UserError(
            f"headbench: no graft names {', '.join(makes)}. Give --heads written, or --enter yours."
        )


def _signs(graft: Graft, makes: Mapping[str, Make], entered: Sequence[str]) -> dict[str, int]:
    named = {name: sign for name, sign in graft.signs.items() if name.partition(".")[0] in makes}
    return {**dict.fromkeys(entered, 1), **named}


def _trials(
    network: TrainedNetwork,
    name: str,
    graft: Graft,
    makes: Mapping[str, Make],
    entered: Sequence[str],
    draws: int,
) -> Iterator[Trial]:
    """The verified ones of ``draws`` grafts of a kind."""
    detectors = _signs(graft, makes, entered)
    used = {name: makes[name] for name in (detector.partition(".")[0] for detector in detectors)}
    for site, heads, others in itertools.islice(places(network, name, graft), draws):
        copies = [network, *graft.grown(network, site, heads)]
        assert len(copies) == 1 + GRADES
        if not graft.verified(network, copies[-1], site, heads, others):
            continue
        flat = [network.layout.flat(site, head) for head in heads]
        shown = [graft.shown(copy, network, site, heads) for copy in copies]
        yield Trial(
            network.seed, name, shown, [_scores(copy, used, detectors, flat) for copy in copies]
        )


def places(
    network: TrainedNetwork, name: str, graft: Graft
) -> Iterator[tuple[int, list[int], list[int]]]:
    """Draw sites without end, each with heads to graft and as many other heads of the layer."""
    generator = torch.Generator().manual_seed(1000 * network.seed + len(name))
    while True:
        site = int(torch.randint(len(network.layout.sites), (), generator=generator))
        order = torch.randperm(network.site(site).num_heads, generator=generator).tolist()
        yield site, order[: graft.heads], order[graft.heads : 2 * graft.heads]


def _scores(
    network: TrainedNetwork,
    makes: Mapping[str, Make],
    detectors: Mapping[str, int],
    heads: Sequence[int],
) -> dict[str, Told]:
    layout, splits, scores = network.layout, digits(), {}
    columns, _ = columns_on(network.gated(), layout, makes, splits.look, splits.choose)
    for detector, direction in detectors.items():
        name, _, column = detector.partition(".")
        value = columns.get(name, {}).get(column or "value")
        score = Told(0.5, False) if value is None else told_of(layout, direction * value, heads)
        if score is not None:
            scores[detector] = score
    return scores


def _rows(
    graft: Graft, name: str, detector: str, direction: int, trials: Sequence[Trial]
) -> tuple[list[Grade], Sensitivity]:
    hits = [[float(scores[detector].auroc >= FOUND) for scores in trial.scores] for trial in trials]
    found_TG = torch.tensor(
        hits, dtype=torch.float64
    )  # (T, 1 + GRADES), 1 where the graft is found
    shares_RG = _resampled(found_TG, trials)
    found_G = found_TG.mean(0)
    low_G, high_G = percentiles(shares_RG)
    about, counts = (
        (name, detector, direction),
        (len(trials), len({trial.network for trial in trials})),
    )
    grades = []
    for grade, amount in enumerate((math.nan, *graft.amounts)):
        scores = [trial.scores[grade][detector] for trial in trials]
        shown = sum(trial.shown[grade] for trial in trials) / len(trials)
        share, low, high = (float(of_grades[grade]) for of_grades in (found_G, low_G, high_G))
        auroc = sum(score.auroc for score in scores) / len(scores)
        numbers = sum(score.complete for score in scores)
        grades.append(
            Grade(*about, grade, float(amount), shown, share, low, high, auroc, *counts, numbers)
        )
    halves = sorted(half_reached(shares) for shares in shares_RG) if counts[1] > 1 else [math.nan]
    low, high = (halves[int(end * len(halves))] for end in (0.025, 0.975))
    return grades, Sensitivity(*about, half_reached(found_G), low, high, float(found_G[0]), *counts)


def _resampled(found_TG: Tensor, trials: Sequence[Trial]) -> Tensor:
    """(R, 1 + GRADES) shares found, of networks drawn with replacement; NaN of one network, which does not vary."""
    _, network_T = torch.tensor([trial.network for trial in trials]).unique(return_inverse=True)
    of_network_NT = torch.nn.functional.one_hot(network_T).T.double()
    means_RG = resampled_means(
        (of_network_NT @ torch.nn.functional.pad(found_TG, (0, 1), value=1)).mT, RESAMPLES
    )
    return means_RG[:, :-1] / means_RG[:, -1:]  # the last are numbers of grafts


def half_reached(shares: Tensor) -> float:
    """Grade at which shares (1 + GRADES,), made to rise, reach one half; 0 if they do at once, inf if never.

    >>> half_reached(torch.tensor([0.0, 0.0, 0.25, 0.75, 1.0, 1.0]))
    2.5
    >>> half_reached(torch.tensor([0.0, 0.2, 0.1, 0.4, 0.4, 0.4]))
    inf
    """
    risen = isotonic_regression(shares.double().numpy()).x.tolist()
    half = 0.5 - 1e-9  # a share that was pooled from others is one half up to rounding
    if risen[0] >= half:
        return 0.0
    for grade, (before, after) in enumerate(itertools.pairwise(risen)):
        if after >= half:
            return grade + min(1.0, (0.5 - before) / (after - before))
    return math.inf
