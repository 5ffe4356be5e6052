"""Units that Torch-Pruning would remove (Fang et al. 2023, "DepGraph", CVPR, arXiv 2301.12900), by its own code.

Its global pruner scores heads and neurons of MLPs, at one ratio, which is searched for until the FLOPs are met. Its
choice is a mask, removed and repaired by mhprobe's own code.

Shapes: A units of all sites.
"""

import importlib.util
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mhprobe.backbones import family_of, layout_of
from mhprobe.backbones.parts.narrow import fix_position_biases
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.recording.outputs import objective
from mhprobe.surgery.costs import costs
from mhprobe.surgery.removal import prune_heads
from mhprobe.surgery.rounds import Images

HALVINGS = 12  # of the interval of ratios: to 1 in 4,096


@dataclass(frozen=True)
class TorchPruning:
    """Choose units as Torch-Pruning's MetaPruner does, globally.

    importance: of a group of weights, as its classes: "magnitude" (GroupMagnitudeImportance), "taylor" (of the summed
    gradient) or "hessian" (the diagonal, from squared gradients of single images; OBD).
    isomorphic: ranks groups of one structure among themselves (Isomorphic Pruning, arXiv 2407.04616).

    UserError where the package is not installed.
    """

    importance: Literal["magnitude", "taylor", "hessian"] = "taylor"
    isomorphic: bool = False

    def __post_init__(self) -> None:
        if importlib.util.find_spec("torch_pruning") is None:
            raise UserError("torch_pruning is not installed: pip install torch-pruning.")

    def choose(self, model: nn.Module, images: Images, share: float) -> Tensor:
        """(A,) bool, the units that go so that at most ``share`` of the FLOPs is left. ``model`` carries gates.

        UserError if it leaves more at each ratio that is tried: it never takes a whole layer.
        """
        layout, batch = layout_of(model), images.first()[:1]
        bare = prune_heads(model, torch.zeros(layout.num_heads, dtype=torch.bool)).eval()
        fix_position_biases(bare)
        left = costs(bare, layout, batch, {"flops"})["flops"]
        score = self._scored(bare, images)
        low, high, least, best = 0.0, 1.0, 1.0, None
        for _ in range(HALVINGS):
            ratio = (low + high) / 2
            mask = _chosen(bare, layout, batch, score, ratio, self.isomorphic)
            least = min(least, now := float(left(mask[None])[0]))
            if now <= share:
                high, best = ratio, mask
            else:
                low = ratio
        if best is None:
            raise UserError(
                f"prunebench: torch_pruning takes no layer whole and leaves {least:.3g} of the FLOPs or more, expected "
                f"at most {share:g}. Ask for more, or take another method."
            )
        return best

    def _scored(self, model: nn.Module, images: Images) -> Any:
        from torch_pruning import importance

        if self.importance == "magnitude":
            return importance.GroupMagnitudeImportance()
        single = self.importance == "hessian"
        score = importance.GroupHessianImportance() if single else importance.GroupTaylorImportance()
        squares = {parameter: torch.zeros_like(parameter) for parameter in model.parameters()} if single else {}
        for shown, labels in images.sloped():
            for part, right in zip(*(x.split(1 if single else len(x)) for x in (shown, labels)), strict=True):
                with torch.enable_grad():
                    objective(model(part), right, images.of).sum().backward()
                for parameter, square in squares.items():
                    if parameter.grad is not None:
                        square += parameter.grad**2
                        parameter.grad = None
        for parameter, square in squares.items():  # where it reads them: its accumulate_grad keeps the last image alone
            parameter.grad = square / len(images.chosen)
        return score


def _chosen(model: nn.Module, layout: HeadLayout, image: Tensor, score: Any, ratio: float, isomorphic: bool) -> Tensor:
    """(A,) bool, the units of the groups that its pruner would remove at this ratio."""
    import torch_pruning

    outputs = [family_of(model).seam(model, site).output for site in layout.sites]
    inside = [[part for part in model.get_submodule(site.name).modules() if isinstance(part, nn.Linear)]
              for site in layout.sites]  # fmt: skip
    free = {part for parts in inside for part in parts} - set(outputs)
    heads = {part: site.num_heads for site, parts in zip(layout.sites, inside, strict=True) if site.kind == "head"
             for part in parts if part in free}  # fmt: skip
    ignored = [part for part in model.modules() if not list(part.children()) and part not in free]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parameters that belong to no layer, as class tokens
        pruner = torch_pruning.pruner.MetaPruner(
            model,
            image,
            score,
            global_pruning=True,
            isomorphic=isomorphic,
            pruning_ratio=ratio,
            ignored_layers=ignored,
            num_heads=heads,
            prune_num_heads=True,
            prune_head_dims=False,
            head_pruning_ratio=ratio,
        )
        mask = torch.zeros(layout.num_heads, dtype=torch.bool)
        for group in pruner.step(interactive=True):
            for dependency, channels in group:
                if dependency.target.module in outputs and pruner.DG.is_in_channel_pruning_fn(dependency.handler):
                    number = outputs.index(dependency.target.module)
                    units = torch.as_tensor(channels) // layout.sites[number].head_dim
                    mask[layout.offsets[number] + units] = True
    return mask
