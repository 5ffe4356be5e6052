"""A head that writes less and less: its columns of W_O are scaled down, at last to zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from mhprobe.headbench.graft import Graft
from mhprobe.headbench.network import Network, digits


class Faded(Graft):
    question = "does it hardly write anything?"
    signs: ClassVar = {
        "write_norm": -1,
        "ablation_delta": -1,
        "gate_importance": -1,
        "fisher": -1,
        "lrp_relevance": -1,
        "logit_attribution.size": -1,
    }
    amounts = (0.5, 0.25, 0.1, 0.03, 0.0)
    unit = "share of its write that is left"
    low, high = 0.3, 0.95

    def grown(self, network: Network, site: int, heads: Sequence[int]) -> Iterator[Network]:
        output = network.parts(site, heads[0])["output"]
        for amount in self.amounts:
            copy = network.copied()
            copy.write(site, heads[0], output=amount * output)
            yield copy

    def shown(self, network: Network, before: Network, site: int, heads: Sequence[int]) -> float:
        """1 less how far the logits move without the head, over how far they moved when it was whole."""
        now, whole = (_moved(each, site, heads[0]) for each in (network, before))
        return 1 - now / whole if whole > 1e-4 else 0.0  # a head that was silent cannot fade


def _moved(network: Network, site: int, head: int) -> float:
    images = digits().verify.images
    return float((network.logits(images) - network.logits(images, [(site, head)])).abs().mean())
