"""SnapViT: without labels, squared slopes within a layer, and a factor per layer that an evolution strategy finds.

Simoncini et al. 2025, "Elastic ViTs from Pretrained Models without Retraining", NeurIPS, arXiv
2510.17700. Within a
layer: mean over images of squared slopes of DINO's objective (Caron et al. 2021, arXiv 2104.14294),
by which a crop is to look to the network as its whole image does. Between layers: a factor each,
found by exponential natural evolution (xNES; Glasmachers et al. 2010, GECCO), fit by the mean
cosine of pruned and dense outputs at several budgets.

Where we differ: slopes are along gates, not weights. Outputs are the network's, e.g. logits (the
paper: features, the cosine after PCA). A factor is exp of what evolves, one a layer (the authors'
code: the absolute value, one a head). Heads and neurons go by one list, by score per FLOP (the
paper: two ratios).

Shapes: A units of all sites, S sites, B images of a batch, K points of a generation, L budgets, C
outputs.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mhprobe import ranks
from mhprobe.backbones import layout_of
from mhprobe.data.draws import draw, fold
from mhprobe.errors import whole_number
from mhprobe.gates import gates_of
from mhprobe.heads import wide
from mhprobe.io.progress import progress
from mhprobe.masking.base import ROUNDING
from mhprobe.masking.parts.units import saving_of_each
from mhprobe.pruning.budget import mask_by, within
from mhprobe.pruning.rounds import Judge, Selection
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.patching import summed_along
from mhprobe.recording.state import inspecting
from mhprobe.recording.taps import Taps
from mhprobe.scoring.base import looked
from mhprobe.scoring.cosine import Cosine
from mhprobe.scoring.parts.evaluate import Evaluator

AREA = 0.25, 1.0  # of the image that a crop has
STEPS = 1 << 24  # of a random number


@dataclass(frozen=True)
class SnapViT:
    """Choose units by squared slopes of a label-free objective, times a factor per layer that evolves.

    crops: of each image. generations: of networks, each at ``levels`` budgets on the way to the
    budget; 0 leaves all factors at 1. shown: number of images that judge them. seed: of crops and
    points. multiple: as for ``Knapsack``, of the last mask alone. UserError for numbers below 1
    (generations: 0).
    """

    crops: int = 4
    generations: int = 4
    levels: int = 3
    shown: int = 256
    seed: int = 0
    multiple: int = 1

    def __post_init__(self) -> None:
        for name, least in (("crops", 1), ("generations", 0), ("levels", 1), ("shown", 1)):
            whole_number(name, getattr(self, name), least)

    def choose(self, model: nn.Module, judge: Judge, target: Mapping[str, float]) -> Tensor:
        """(A,) bool, units to remove so that at most ``target`` is left (units of it: ``within``).

        model: carries gates.
        """
        # refuses a budget that cannot be met
        layout = layout_of(model)
        units = within(model, target)
        site_A = layout.site_of_head
        cost_TA = saving_of_each(units.limits)
        selection = judge.selection
        within_A = self.within_layers(model, selection)
        count = len(selection.chosen)
        score = judge.scores.get("chosen")  # of this network: it chooses before any head has gone
        if not isinstance(score, Cosine):
            score = looked(Cosine, model, selection, count, show=True)
        evaluate = Evaluator(model, selection, count, "evolving", pick=selection, score=score)
        positions = evaluate.spread(self.shown)
        saved_TL = [
            (1 - share) * torch.arange(1, self.levels + 1) / self.levels
            for share in target.values()
        ]

        def likeness(points_KS: Tensor) -> Tensor:
            score_KA = within_A * points_KS.exp()[:, site_A]
            masks_KLA = torch.stack(
                [*map(functools.partial(cheapest, score_KA), cost_TA, saved_TL)]
            ).any(0)
            # one by one: units that all masks of a call switch off are not computed
            lost = [
                evaluate(mask_A[None], positions).mean_loss for mask_A in masks_KLA.flatten(0, 1)
            ]
            return -torch.cat(lost).view(len(points_KS), -1).mean(1)

        points = 1 + self.generations * population(len(layout.sites))
        with evaluate.watched(points * self.levels * len(positions)):
            factor_S = evolved(likeness, len(layout.sites), self.generations, self.seed).exp()
        return mask_by(within_A * factor_S[site_A], units, multiple=self.multiple)

    def within_layers(self, model: nn.Module, selection: Selection) -> Tensor:
        """(A,) float64, importance of a unit among those of its layer; larger is more important.

        The slope, along the gate, of the cross-entropy between outputs for a crop and for its whole
        image is summed over crops. Its square is averaged over images.
        """
        total_A = torch.zeros(
            layout_of(model).num_heads, dtype=torch.float64, device=selection.device
        )
        with progress("slopes of crops", len(selection.chosen)) as done:
            for batch in selection():
                images_BCHW, index = batch.images[batch.valid], batch.index[batch.valid]
                crops = [
                    cropped(images_BCHW, index, fold(self.seed, number))
                    for number in range(self.crops)
                ]
                total_A += slopes(model, images_BCHW, crops).square().sum(0)
                done(len(images_BCHW) * ranks.size())
        return ranks.total(total_A).cpu() / len(selection.chosen)


def cropped(images: Tensor, index: Tensor, key: int) -> Tensor:
    """Random crops of (B, 3, height, width) images, half of them mirrored, in the size of the images."""
    area, right, down, mirrored = (
        draw(fold(key, number), index, STEPS) / STEPS for number in range(4)
    )
    side = (AREA[0] + (AREA[1] - AREA[0]) * area).sqrt()
    where = torch.zeros(len(images), 2, 3, device=images.device)
    where[:, 0, 0], where[:, 1, 1] = torch.where(mirrored < 0.5, side, -side), side
    where[:, :, 2] = (1 - side)[:, None] * (2 * torch.stack([right, down], 1) - 1)
    grid = F.affine_grid(where.to(images), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


def slopes(model: nn.Module, whole: Tensor, crops: list[Tensor]) -> Tensor:
    """(B, A) float64, per image the slope of ``within_layers`` along each gate, times the gate."""
    gates = gates_of(model)
    slope_BA = torch.zeros(
        len(whole), gates.layout.num_heads, dtype=torch.float64, device=whole.device
    )
    with inspecting(model, gradients=False):
        wanted_BC = F.normalize(wide(logits_of(model(whole), model)), dim=1).softmax(1)
    for crop in crops:
        with inspecting(model, gradients=True), Taps(model, gates.layout, {"grad"}) as taps:
            said_BC = F.normalize(wide(logits_of(model(crop), model)), dim=1).log_softmax(1)
            grads, _ = taps.slopes(-(wanted_BC * said_BC).sum())
        slope_BA += summed_along(len(whole), taps.heads, grads, gates.layout)
    return slope_BA * gates.effective()


def cheapest(score_KA: Tensor, cost_A: Tensor, saved_L: Tensor) -> Tensor:
    """(K, L, A) bool: the units of lowest score per cost, until what they cost is no less than ``saved_L``.

    Units without a cost stay.
    """
    order_KA = torch.where(cost_A > 0, score_KA / cost_A, torch.inf).argsort(dim=1, stable=True)
    cost_KA = cost_A[order_KA]
    before_KA = cost_KA.cumsum(1) - cost_KA
    going_KLA = before_KA[:, None] < saved_L[:, None] - ROUNDING
    return torch.zeros_like(going_KLA).scatter(2, order_KA[:, None].expand_as(going_KLA), going_KLA)


def population(size: int) -> int:
    """Number of points of a generation, as the authors of xNES advise."""
    return 4 + int(3 * math.log(size))


def evolved(fitness: Callable[[Tensor], Tensor], size: int, generations: int, seed: int) -> Tensor:
    """(S,) float64, the fittest of all points that xNES tries, 0 first.

    fitness: of (K, S) points; larger is fitter.
    """
    count = population(size)
    weight_K = (math.log(count / 2 + 1) - torch.arange(1, count + 1).double().log()).clamp(min=0)
    weight_K = weight_K / weight_K.sum() - 1 / count
    rate = 3 * (3 + math.log(size)) / (5 * size * math.sqrt(size))
    numbers = torch.Generator().manual_seed(seed)
    mean_S = torch.zeros(size, dtype=torch.float64)
    spread_SS = torch.eye(size, dtype=torch.float64)
    best_S, most = mean_S, fitness(mean_S[None])[0]
    for _ in range(generations):
        normal_KS = torch.randn(count, size, generator=numbers, dtype=torch.float64)
        points_KS = mean_S + normal_KS @ spread_SS.mT
        fitness_K = fitness(points_KS)
        ranked_K = fitness_K.argsort(descending=True, stable=True)
        if fitness_K[first := ranked_K[0]] > most:
            best_S, most = points_KS[first], fitness_K[first]
        normal_KS = normal_KS[ranked_K]
        mean_S = mean_S + spread_SS @ (weight_K @ normal_KS)
        spread_SS = spread_SS @ torch.linalg.matrix_exp(
            rate / 2 * (normal_KS.mT * weight_K) @ normal_KS
        )
    return best_S
