"""Clusters of heads by attention, and their agreement with functions of heads (Clark et al. 2019, Fig. 6).

Distances are Jensen-Shannon divergences. Classical scaling gives points, and Ward's linkage the
clusters of largest mean silhouette (average linkage cuts off single outliers). p is the share of
Gaussian clouds of the same extents with as large a silhouette (after Liu, Hayes, Nobel & Marron
2008, JASA 103:1281). Functions are tested by permutations: the silhouette of the functions as
clusters, against relabellings of the heads.

Shapes: N heads of one group.
"""

from typing import Any

import torch
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import silhouette_score
from torch import Tensor

from mhprobe.errors import UserError
from mhprobe.framework.questions.material import Material
from mhprobe.lab.papers.panels.columns import of_heads
from mhprobe.measures.js_distance import JSDistance
from mhprobe.measures.parts.embedding import embed, scaled
from mhprobe.measures.parts.functions import labels
from mhprobe.recording.measuring import measure_or_raise
from mhprobe.report import tables
from mhprobe.report.figures import pairs as figure
from mhprobe.report.result import Result

LEAST = 5  # heads that are worth cutting into clusters
MOST = 8  # clusters


def clusters(material: Material, images: int = 500, draws: int = 200) -> dict[str, Result]:
    """Cluster the heads of a ViT, or of each stage, and colour them by function.

    images: test images for the distances, at most. draws: of each p. Tables: clusters (group,
    heads, clusters, silhouette, p, functions, silhouette_functions, p_functions) and heads
    (function, cluster). UserError where no group has enough heads.
    """
    layout = material.layout
    measure = JSDistance(layout, pairs="stage", permutations=1, null_images=0)
    columns = measure_or_raise(material.model, {"js": measure}, material.walk(images))
    functions = labels(of_heads(material), layout.num_heads)
    groups, rows = [], list[list[Any]]()
    number_A = torch.full((layout.num_heads,), -1)
    for stage in range(layout.num_stages):
        heads = torch.tensor(
            [flat for flat, (_, _, site) in enumerate(layout) if site.stage == stage]
        )
        if len(heads) < LEAST:
            continue
        distance = columns["js"]["value"][heads][:, heads].double().fill_diagonal_(0)
        number, apart, p_apart = best_clusters(distance, draws, material.seed)
        does = [functions[head] for head in heads.tolist()]
        together, p = alike(distance, does, 5 * draws, material.seed)
        number_A[heads] = number
        name, many = (
            "all heads" if layout.num_stages == 1 else f"stage {stage}",
            int(number.max()) + 1,
        )
        title = f"{name}: {many} clusters\nsilhouette {apart:.2f} (p = {p_apart:.2g})\n"
        title += (
            "nothing to tell functions by"
            if p != p
            else f"same function: {together:.2f} (p = {p:.2g})"
        )
        groups.append(figure.Group(title, embed(distance)[0], does, number))
        rows.append([name, len(heads), many, len(set(does)), apart, p_apart, together, p])
    if not groups:
        raise UserError(
            f"clusters: no group of heads that attend to the same tokens has {LEAST} heads or more."
        )
    header, plain, kind = tables.per_head(layout, {"cluster": number_A})
    with_function = [[*row, function] for row, function in zip(plain, functions, strict=True)]
    names = [
        "group",
        "heads",
        "clusters",
        "functions",
        "silhouette",
        "p",
        "silhouette_functions",
        "p_functions",
    ]
    result = Result(tables.Table(names, rows), figure.behaviours(groups), of=material.of(images))
    heads_table = tables.Table([*header, "function"], with_function, kind)
    named = Result(heads_table).saying("the head's cluster", "nothing: clusters have no order")
    return {"clusters": result.saying("mean silhouette", "more distinct clusters"), "heads": named}


def best_clusters(distance: Tensor, draws: int, seed: int) -> tuple[Tensor, float, float]:
    """(N,) clusters of largest mean silhouette by distances (N, N); it, and its p among Gaussian clouds."""
    points = scaled(distance)
    number, observed = _cut(points)
    generator = torch.Generator().manual_seed(seed)
    spread = points.std(0, correction=0)
    clouds = (
        torch.randn(points.shape, generator=generator, dtype=torch.float64) * spread
        for _ in range(draws)
    )
    return number, observed, (1 + sum(_cut(cloud)[1] >= observed for cloud in clouds)) / (draws + 1)


def _cut(points: Tensor) -> tuple[Tensor, float]:
    """Return the clusters (N,) of largest silhouette among 2 to MOST clusters, and the silhouette."""
    best = torch.zeros(len(points), dtype=torch.long), -1.0
    if not points.std(0).any():  # all heads at one place
        return best
    for many in range(2, min(MOST, len(points) - 1) + 1):
        number = AgglomerativeClustering(many, linkage="ward").fit_predict(points.numpy())
        score = float(silhouette_score(points.numpy(), number))
        best = (torch.from_numpy(number), score) if score > best[1] else best
    return best


def alike(
    distance: Tensor, functions: list[str], permutations: int, seed: int
) -> tuple[float, float]:
    """Mean silhouette of functions as clusters, and its permutation p; NaN with one function, or one head each."""
    distance = distance.clone().fill_diagonal_(0)  # not a rounding error away from it
    number = torch.tensor([functions.index(name) for name in functions])
    if not 2 <= len(set(functions)) < len(functions):
        return float("nan"), float("nan")
    generator = torch.Generator().manual_seed(seed)

    def score(of: Tensor) -> float:
        return float(silhouette_score(distance.numpy(), of.numpy(), metric="precomputed"))

    observed = score(number)
    draws = [
        score(number[torch.randperm(len(number), generator=generator)]) for _ in range(permutations)
    ]
    return observed, (1 + sum(value >= observed for value in draws)) / (permutations + 1)
