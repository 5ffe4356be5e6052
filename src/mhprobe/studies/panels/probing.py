"""Probing classifiers on the attention of all heads: relations between patches.

Clark et al., 2019, arXiv 1906.04341, section 5. A probe scores each key j of a query i; the largest score is its
answer. Attention-only: sum over heads of w_h a_h(i, j) + u_h a_h(j, i), with a_h the attention of head h in units of
even attention. Attention-and-embedding: w_h and u_h depend on mean colour and contrast of the two patches and on their
products, in place of word vectors. Fitted on validation images, scored on test images, beside baselines.

Shapes: n queries, K keys (all patches), F = 2 A features, V facts about a pair of patches, R relations.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhprobe import ranks
from mhprobe.errors import UserError
from mhprobe.questions.material import Material
from mhprobe.recording.measuring import recorded
from mhprobe.report import tables
from mhprobe.report.figures import attention as figure
from mhprobe.report.result import Result
from mhprobe.studies.panels.relations import RELATIONS, colours, joined, palette_of, patch_pixels, right_keys, summary


class Queries(NamedTuple):
    """Queries: features (n, K, F), facts (n, K, V), right (n, K, R) bool, offset and itself (n, K), image (n,)."""

    features: Tensor
    facts: Tensor
    right: Tensor
    offset: Tensor
    image: Tensor
    itself: Tensor


def probing(
    material: Material, images: int = 200, queries: int = 8, steps: int = 150, clusters: int = 8
) -> dict[str, Result]:
    """Score each relation and way to answer on test images.

    images: of each split, at most. queries: drawn from each image. steps: of the fit. clusters: of colours. UserError
    for a model whose heads do not all look at the same patches. Table: relation, way, score, low, high, images.
    """
    first = material.layout.sites[0]
    for site in material.layout.sites:
        if site.windows is not None or site.token_grid != first.token_grid:
            why = "looks at windows" if site.windows is not None else f"has another grid of patches than {first.name}"
            raise UserError(
                f"probing: {site.name} {why}; a probe over all heads needs the same patches for each, as in a ViT."
            )
    centres = palette_of(material, images, clusters)
    (fit, test), (dull_fit, dull_test) = (
        tuple(collect(material, model, split, images, centres, queries) for split in ("val", "test"))
        for model in (material.model, material.untrained())
    )
    rows: list[dict[str, Any]] = []
    for r, relation in enumerate(RELATIONS):
        asked = test.right[..., r].any(1)
        if not fit.right[..., r].any() or not asked.any():
            continue
        scores = {
            "attention and embedding": probe(fit, test, r, steps, embedded=True),
            "attention only": probe(fit, test, r, steps),
            "untrained attention": probe(dull_fit, dull_test, r, steps),
            "best fixed offset": _by_offset(fit, test, r),
            "most similar pixels": -test.facts[..., -1],
        }
        for way, score in scores.items():
            rows.append({"relation": relation, "way": way, "who": "", **_judge(score, test, r)})
        even = test.right[..., r].double().sum(1) / (~test.itself).sum(1)
        rows.append({"relation": relation, "way": "even draw", "who": "", **_mean(even, asked, test.image)})
    return {"probes": Result(tables.from_rows(rows), figure.relation_scores(rows), of=material.of(images))}


def collect(material: Material, model: nn.Module, split: str, images: int, centres: Tensor, queries: int) -> Queries:
    """Return the features of a split for probes, on the CPU, the same on every rank."""
    site = material.layout.sites[0]
    grid, prefix = site.token_grid, site.prefix_tokens
    patches = grid[0] * grid[1]
    across = torch.arange(patches) % grid[1]
    offsets = (torch.arange(patches) - torch.arange(patches)[:, None]) * 2 * grid[1] + across - across[:, None]
    parts: list[Queries] = []
    for batch, heads in recorded(model, material.walk(images, split)(), {"attn"}):
        attn = [weights[:, 0, :, prefix:, prefix:] for weights in heads.need("attn", "probing")]
        every = torch.cat(attn, 1).float().cpu() * patches
        shown = batch.images.cpu()
        facts, right = pair_facts(shown, grid), right_keys(shown, grid, centres)
        for row in torch.nonzero(batch.valid).flatten().tolist():
            generator = torch.Generator().manual_seed(material.seed * 1_000_003 + int(batch.index[row]))
            at = torch.randperm(patches, generator=generator)[:queries]
            both = torch.cat([every[row][:, at], every[row].transpose(1, 2)[:, at]])  # to and from the keys
            itself = at[:, None] == torch.arange(patches)
            image = torch.full((len(at),), int(batch.index[row]))
            keys = right[row][:, at].permute(1, 2, 0)
            parts.append(Queries(both.permute(1, 2, 0), facts[row][at].float(), keys, offsets[at], image, itself))
    return joined(ranks.gather(joined(parts)))


def pair_facts(pictures: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, T, T, V): 1, colour and contrast of query and key, their products, and how far apart their pixels are."""
    colour = colours(pictures, grid)
    squares = F.adaptive_avg_pool2d(pictures.double() ** 2, grid).flatten(2).transpose(1, 2)
    contrast = (squares - colour**2).mean(-1, keepdim=True).clamp(min=0).sqrt()
    shown = torch.cat([colour, contrast], -1)
    query, key = torch.broadcast_tensors(shown[:, :, None], shown[:, None, :])
    pixels = patch_pixels(pictures.double(), grid)
    apart = torch.cdist(pixels, pixels)[..., None] / pixels.shape[-1] ** 0.5
    return torch.cat([torch.ones_like(apart), query, key, query * key, apart], -1)


def probe(fit: Queries, test: Queries, relation: int, steps: int, embedded: bool = False) -> Tensor:
    """(n, K) scores of a probe fitted to ``fit`` by the softmax over keys. embedded: with the facts about the pair."""
    wide = fit.facts.shape[-1] if embedded else 1

    def score(features: Tensor, facts: Tensor, itself: Tensor) -> Tensor:
        return ((features @ weight) * facts[..., :wide]).sum(-1).masked_fill(itself, -torch.inf)

    with torch.inference_mode(False), torch.enable_grad():
        fit, test = (Queries(*(part.clone() for part in each)) for each in (fit, test))  # not of inference mode
        asked = fit.right[..., relation].any(1)
        features, facts, right, _, _, itself = (part[asked] for part in fit)
        right = right[..., relation]
        weight = torch.zeros(features.shape[-1], wide, requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.05)
        for _ in range(steps):
            logits = score(features, facts, itself).log_softmax(1)
            loss = -logits.masked_fill(~right, -torch.inf).logsumexp(1).mean() + 1e-3 * weight.square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return score(test.features, test.facts, test.itself).detach()


def _by_offset(fit: Queries, test: Queries, relation: int) -> Tensor:
    """(n, K) scores, 1 at the key of the offset that is right most often."""
    numbers, place = fit.offset.unique(return_inverse=True)
    counts = torch.zeros(len(numbers)).index_add_(0, place.flatten(), fit.right[..., relation].float().flatten())
    return (test.offset == numbers[counts.argmax()]).float() - 2 * test.itself


def _judge(score: Tensor, test: Queries, relation: int) -> dict[str, float]:
    """Hit rate of the key with the largest score; where several keys share it, their share."""
    score = score.masked_fill(test.itself, -torch.inf)
    best = score == score.amax(1, keepdim=True)
    # an offset that leaves the image names no key: wrong
    named = best & (best.sum(1, keepdim=True) < score.shape[1] - 1)
    hit = (named & test.right[..., relation]).sum(1).double() / best.sum(1)
    return _mean(hit, test.right[..., relation].any(1), test.image)


def _mean(hit: Tensor, asked: Tensor, image: Tensor) -> dict[str, float]:
    """Mean hit rate over images, each the mean over its asked queries."""
    _, place = image[asked].unique(return_inverse=True)
    count = torch.zeros(int(place.max()) + 1, dtype=torch.float64)
    total = count.clone().index_add_(0, place, hit[asked])
    return summary(total / count.index_add_(0, place, torch.ones(len(place), dtype=torch.float64)))
