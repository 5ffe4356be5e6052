"""Layer-wise relevance propagation down to the heads' outputs."""

from __future__ import annotations

from torch import Tensor, nn

from mhprobe.heads import Relevance


def relevances(
    model: nn.Module, images: Tensor, labels: Tensor | None, rule: Relevance
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """(B,) the explained logit, and per site the relevance of the projection's input rows, shaped like them."""
    raise NotImplementedError
