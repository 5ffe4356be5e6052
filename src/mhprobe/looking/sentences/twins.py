"""Pairs of heads of one block that attend alike and write alike."""

import torch

from mhprobe.io.written import counted, rounded
from mhprobe.looking.facts import Facts
from mhprobe.looking.sentences import NAMED, Sentence, head_name, measured

ORDER = 4
QUESTION = "which heads are twins"
NEAR = 0.5  # of the divergence by chance, at most
ALIKE = 0.5  # CKA, at least


def tell(facts: Facts) -> list[Sentence]:
    """Pairs whose attention is at most half as different as by chance, and whose outputs have a CKA of at least .5.

    Both for the whole interval; the CKA also above its chance.
    """
    seen, written = facts.columns("js_distance"), facts.columns("cka")
    near = seen["high"] <= NEAR * seen["null"]
    alike = (written["low"] >= ALIKE) & (written["low"] > written["null"])
    pairs = torch.nonzero((near & alike).triu(1))
    if not len(pairs):
        return []
    cka = written["value"]
    first, second = pairs[cka[pairs[:, 0], pairs[:, 1]].argmax()].tolist()
    pair = (first, second)
    heads = dict.fromkeys([first, second, *pairs.flatten().tolist()])
    more = [
        f"{head_name(facts.layout, a)} and head {list(facts.layout)[b][1]}" for a, b in pairs.tolist() if (a, b) != pair
    ][: NAMED - 1]
    chance = [f"by chance {rounded(columns['null'][pair])}" for columns in (written, seen)]
    also = f" Also {'; '.join(more)}." if more else ""
    are = "is twins: they look" if len(pairs) == 1 else "are twins: they look"
    return [
        Sentence(
            f"{counted(len(pairs), 'pair')} of heads {are} at the same places and write the same. Most alike are "
            f"{head_name(facts.layout, first)} and head {list(facts.layout)[second][1]}: outputs with a CKA of "
            f"{measured(written, pair, rounded, chance[0])}, attention with a divergence of "
            f"{measured(seen, pair, rounded, chance[1])}.{also}",
            tuple(heads),
        )
    ]
