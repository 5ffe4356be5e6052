"""Units that Torch-Pruning would remove (Fang et al. 2023, "DepGraph", CVPR, arXiv 2301.12900), by its own code.

Its global pruner scores heads and neurons of MLPs, at one ratio, which is searched for until the
FLOPs are met. Its choice is a mask, removed and repaired by mhprobe's own code.

Shapes: A units of all sites.
"""

import functools
import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from timm.layers import GluMlp
from torch import Tensor, nn

from mhprobe.backbones import family_of, layout_of
from mhprobe.backbones.parts.narrow import fix_position_biases
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout, HeadSite
from mhprobe.io.progress import progress
from mhprobe.masking.base import PathTarget
from mhprobe.masking.parts.units import saving_of_each
from mhprobe.pruning.budget import within
from mhprobe.pruning.rounds import Judge
from mhprobe.recording.outputs import objective
from mhprobe.surgery.removal import prune_heads

HALVINGS = 12  # of the interval of ratios: to 1 in 4,096


@dataclass(frozen=True)
class TorchPruning:
    """Choose units as Torch-Pruning's MetaPruner does, globally.

    importance: of a group of weights, as its classes: "magnitude" (GroupMagnitudeImportance),
    "taylor" (of the summed gradient) or "hessian" (the diagonal, from squared gradients of single
    images; OBD).
    isomorphic: ranks groups of one structure among themselves (Isomorphic Pruning, arXiv
    2407.04616).
    multiple: widths of MLPs are rounded down to it.

    UserError where the package is not installed.
    """

    importance: Literal["magnitude", "taylor", "hessian"] = "taylor"
    isomorphic: bool = False
    multiple: int = 1

    def __post_init__(self) -> None:
        if importlib.util.find_spec("torch_pruning") is None:
            raise UserError("torch_pruning is not installed: pip install torch-pruning.")

    def choose(self, model: nn.Module, judge: Judge, target: Mapping[str, float]) -> Tensor:
        """(A,) bool, the units that go so that at most ``target`` is left, as of ``within``.

        model: carries gates.

        Shares of each kind have a ratio each. UserError for a gated MLP that it cannot cut, and if
        more is left at each
        ratio that is tried: it never takes a whole layer.
        """
        limits = within(model, target).limits
        layout = layout_of(model)
        assert limits is not None
        for site in layout.of("neuron").sites:
            if isinstance(model.get_submodule(site.name), GluMlp):
                why = f"torch_pruning cannot cut {site.name}, where one layer makes both halves of a gated MLP"
                raise UserError(f"{why}. Choose among heads alone, or take another order.")
        bare = prune_heads(model, []).eval()
        fix_position_biases(bare)
        options = {"isomorphic": self.isomorphic, "round_to": self.multiple}
        at = functools.partial(
            _chosen, bare, layout, judge.selection.first()[:1], self._scored(bare, judge), **options
        )
        goals = zip(limits.targets, saving_of_each(limits) > 0, strict=True)
        return torch.stack([_searched(at, goal) & those for goal, those in goals]).any(0)

    def _scored(self, model: nn.Module, judge: Judge) -> Any:
        from torch_pruning import importance

        if self.importance == "magnitude":
            return importance.GroupMagnitudeImportance()
        if self.importance == "taylor":
            _add_slopes(model, judge)
            return importance.GroupTaylorImportance()
        squares = {parameter: torch.zeros_like(parameter) for parameter in model.parameters()}

        def add_squares() -> None:
            for parameter, square in squares.items():
                if parameter.grad is not None:
                    square += parameter.grad**2
                    parameter.grad = None

        _add_slopes(model, judge, behind_each_image=add_squares)
        # where it reads them: its accumulate_grad keeps the last image alone
        for parameter, square in squares.items():
            parameter.grad = square / len(judge.selection.chosen)
        return importance.GroupHessianImportance()


def _add_slopes(
    model: nn.Module, judge: Judge, behind_each_image: Callable[[], None] | None = None
) -> None:
    """Add slopes of the loss of the images that choose to ``grad``: of batches, or of an image at a time."""
    with progress("slopes for torch_pruning", len(judge.selection.chosen)) as done:
        for shown, labels in judge.sloped():
            size = 1 if behind_each_image else len(shown)
            for part, right in zip(shown.split(size), labels.split(size), strict=True):
                with torch.enable_grad():
                    objective(model(part), right, judge.of).sum().backward()
                if behind_each_image:
                    behind_each_image()
                done(len(part))


def _linear_layers(model: nn.Module, site: HeadSite) -> list[nn.Linear]:
    """Return the linear layers inside the attention or MLP of a site."""
    return [
        part for part in model.get_submodule(site.name).modules() if isinstance(part, nn.Linear)
    ]


def _chosen(
    model: nn.Module, layout: HeadLayout, image: Tensor, score: Any, ratio: float, **options: Any
) -> Tensor:
    """(A,) bool, the units of the groups that its pruner would remove at this ratio.

    options: of its pruner.
    """
    import torch_pruning

    outputs = [family_of(model).seam(model, site).output for site in layout.sites]
    inside = [_linear_layers(model, site) for site in layout.sites]
    free = {part for parts in inside for part in parts} - set(outputs)
    heads = {
        part: site.num_heads
        for site, parts in zip(layout.sites, inside, strict=True)
        if site.kind == "head"
        for part in parts
        if part in free
    }
    ignored = [part for part in model.modules() if not list(part.children()) and part not in free]
    with warnings.catch_warnings(
        action="ignore"
    ):  # of parameters that belong to no layer, as class tokens
        pruner = torch_pruning.pruner.MetaPruner(
            model,
            image,
            score,
            global_pruning=True,
            pruning_ratio=ratio,
            ignored_layers=ignored,
            num_heads=heads,
            prune_num_heads=True,
            prune_head_dims=False,
            head_pruning_ratio=ratio,
            **options,
        )
        return _mask_of_groups(pruner, outputs, layout)


def _mask_of_groups(pruner: Any, outputs: Sequence[nn.Module], layout: HeadLayout) -> Tensor:
    """(A,) bool, the units whose channels its next step would take from what enters ``outputs``, one of each site."""
    mask = torch.zeros(layout.num_heads, dtype=torch.bool)
    for group in pruner.step(interactive=True):
        for dependency, channels in group:
            if dependency.target.module not in outputs:
                continue
            if pruner.DG.is_in_channel_pruning_fn(dependency.handler):
                number = outputs.index(dependency.target.module)
                units = torch.as_tensor(channels) // layout.sites[number].head_dim
                mask[layout.offsets[number] + units] = True
    return mask


def _searched(at: Callable[[float], Tensor], target: PathTarget) -> Tensor:
    """(A,) bool, what goes at the least ratio that meets the target."""
    low, high, least, best = 0.0, 1.0, 1.0, None
    with progress("ratios of torch_pruning", HALVINGS, "ratios") as done:
        for _ in range(HALVINGS):
            ratio = (low + high) / 2
            mask = at(ratio)
            now = target.left(mask)
            least = min(least, now)
            if now <= target.value:
                high, best = ratio, mask
            else:
                low = ratio
            done(1)
    if best is None:
        raise UserError(
            f"target: torch_pruning takes no layer whole and leaves {target.unit}={least:.3g} or "
            "more, expected at "
            f"most {target.value:g}. Ask for more, or take another order."
        )
    return best
