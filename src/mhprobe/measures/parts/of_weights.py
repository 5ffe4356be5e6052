"""Measures of the model's weights: they read the first batch only, for no image changes the weights."""

import abc
from collections.abc import Sequence

from torch import Tensor

from mhprobe.heads import HeadBatch, HeadWeights, Need
from mhprobe.measures.base import Measure, counts


class OfWeights(Measure):
    """Its states are filled by ``look``; summed over ranks they are ``models`` times what one rank saw."""

    needs: frozenset[Need] = frozenset({"weights"})
    no_interval = "weights alone, which no image changes"
    of_images = False

    models: Tensor = counts()  # summed over ranks that have seen the weights, each once

    def add(self, batch: HeadBatch) -> None:
        recorded = batch.need("weights", self.name)
        if not self.models:
            self.models += 1
            self.look(recorded)

    @abc.abstractmethod
    def look(self, weights: Sequence[HeadWeights]) -> None:
        """Fill the states from the weights of each site."""
