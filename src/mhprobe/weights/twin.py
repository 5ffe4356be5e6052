"""The random twin of a network: the control of every measure.

Deep networks begin with residual branches that are nearly shut (LayerScale of 1e-5, norms of Swin
V2 at 0). A fresh twin would be the identity, below any trained head. So the twin takes these
scales, alone, from the network itself.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mhprobe.backbones import attach, build
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.recording.state import moved
from mhprobe.weights.description import portable

log = logging.getLogger(__name__)

SHUT = 0.1  # a scale that starts below this leaves the stream as it was; others start at 1


class RandomTwin:
    """The architecture of a network with gates, freshly initialised, but for the scales that start shut.

    model: what the twin is of; its scales are read when the twin is asked for, so after a training.
    layout: its heads.
    description: what rebuilds it. seed: of the run; the twin is drawn with the next one, so that it
    is not what the run started from. UserError for pruned weights.
    """

    def __init__(
        self, model: nn.Module, layout: HeadLayout, description: Mapping[str, Any], seed: int
    ) -> None:
        settings = portable(description["backbone"])  # without a path to weights
        # its weights may be asked for slopes, whatever mode the test is in
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            torch.manual_seed(seed + 1)
            twin = build(
                **{**settings, "pretrained": False}, num_classes=len(description["class_names"])
            )
        if attach(twin, units=layout.kinds).layout != layout:
            raise UserError(
                "control: expected weights whose heads are those of their architecture, got pruned "
                "ones, which have "
                "no random twin. Leave it out (control=null, in probe or in the study), or take "
                "the weights "
                "before the removal."
            )
        self.model, self.twin = model, twin.eval()
        # vectors that multiply, of one number that lets nearly nothing through
        vectors = [
            (n, weight)
            for n, weight in twin.named_parameters()
            if weight.dim() == 1 and not n.endswith("bias")
        ]
        self.shut = [
            name
            for name, weight in vectors
            if (weight == weight[0]).all() and abs(weight[0].item()) < SHUT
        ]

    def __call__(self) -> nn.Module:
        """The twin where the network is now, with its scales; a line says so where it takes any."""
        moved(self.twin, next(self.model.parameters()).device)
        with torch.no_grad():
            for name in self.shut:
                self.twin.get_parameter(name).copy_(self.model.get_parameter(name))
        if self.shut:
            note = "control: the random network has this network's scales of residual branches, which start at about 0"
            log.info("%s (%s and %d more)", note, self.shut[0], len(self.shut) - 1)
        return self.twin
