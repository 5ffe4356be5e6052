"""Distance of attention from the first block to the last."""

import math

import torch

from mhprobe.errors import UserError
from mhprobe.io.written import rounded
from mhprobe.looking.facts import Facts
from mhprobe.looking.sentences import Sentence
from mhprobe.stats.agreement import spearman, spearman_interval

ORDER = 6
QUESTION = "how distance changes with depth"
LEAST = 5  # blocks: fewer cannot be told from shuffled ones
SHUFFLES = 2000


def tell(facts: Facts) -> list[Sentence]:
    """The rank correlation of depth with the mean distance of a block's heads, as a share of even attention's."""
    found = facts.columns("attention_distance")
    shares = facts.layout.split(found["value"] / found["uniform"])
    distance = torch.stack([part.mean() for part in shares])
    depth = torch.arange(len(distance), dtype=distance.dtype)
    if len(distance) < LEAST:
        raise UserError(f"it has {len(distance)} blocks, fewer than {LEAST}")
    rho = spearman(depth, distance)
    low, high = spearman_interval(rho, len(distance))
    generator = torch.Generator().manual_seed(0)
    shuffled = [
        abs(spearman(depth, distance[torch.randperm(len(depth), generator=generator)])) for _ in range(SHUFFLES)
    ]
    chance = torch.tensor(shuffled, dtype=torch.float64).quantile(0.95).item()
    if math.isnan(rho) or abs(rho) <= chance:
        return []
    many = f"95 % interval {rounded(low)} to {rounded(high)}"
    third = max(1, len(distance) // 3)
    return [
        Sentence(
            f"Heads look {'farther' if rho > 0 else 'less far'} the deeper they stand: in the first {third} blocks "
            f"{rounded(distance[:third].mean())} times as far as even attention, in the last {third} "
            f"{rounded(distance[-third:].mean())} times: a rank correlation with depth of {rounded(rho)} "
            f"({many}; shuffled blocks stay within {rounded(chance)} in 95 % of cases)."
        )
    ]
