"""Layer-wise relevance propagation: how much of a logit came through each neuron of the heads' outputs.

Achtibat et al. 2024 (AttnLRP), arXiv 2402.05602; Bach et al. 2015. A neuron's relevance is its
activation times a modified gradient, R = a * c. So a rule changes the backward pass of an
operation, and one forward and one backward pass of the real modules give all relevances:

    linear layer     gamma rule: input i of output j gets the share of its contribution a_i w_ij, where contributions
                     of the output's own sign count 1 + gamma times; the bias is one more input,
                     which keeps its share
    normalisation    standard deviation constant
    GELU, SiLU, ...  f(x) = x * gate, gate constant
    A @ V, Q @ K.T   half to each factor (so do gates that multiply activations)
    softmax          its first-order term; the remainder keeps its share
    sums, residual   in proportion to the terms: nothing to change

Relevance is conserved up to what biases, softmax remainders and epsilon keep. Unlike the paper's
code, gamma is one number for all linear layers, and the patch embedding is not propagated through.

Shapes: I inputs and O outputs of a linear layer.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mhprobe.backbones import backbone_of, family_of
from mhprobe.errors import UserError, quoted
from mhprobe.gates import gates_of
from mhprobe.heads import Relevance, Relevances
from mhprobe.recording.outputs import logits_of, objective, refuse_features, slopes_along
from mhprobe.recording.state import inspecting, usable


def relevances(
    model: nn.Module, images: Tensor, labels: Tensor | None, rule: Relevance
) -> Relevances:
    """Relevances of the heads' outputs for each image's logit, per site (B * windows, tokens, H * D).

    labels: needed for ``rule.target == "label"``. Raises UserError as ``record`` does.
    """
    layout, backbone = gates_of(model).layout, backbone_of(model)
    family = family_of(backbone)
    points = [family.seam(backbone, site).point for site in layout.sites]
    begins = [backbone.get_submodule(block.name) for block in layout.blocks]
    middles = [backbone.get_submodule(block.middle) for block in layout.blocks]
    inputs: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs[module] = args[0]

    with inspecting(model, gradients=True), contextlib.ExitStack() as stack:
        for module in {*points, *begins, *middles}:
            stack.enter_context(module.register_forward_pre_hook(keep))
        explained, _ = _explained(model, backbone, images, labels, rule)
        along = [inputs[module] for module in (*points, *middles)]
        slopes = slopes_along(explained.sum(), along)
        skipped = [
            (inputs[module].reshape(slope.shape) * slope).flatten(1).sum(1)
            for module, slope in zip(begins, slopes[len(points) :], strict=True)
        ]
        return Relevances(
            explained.detach(),
            tuple(
                (z * slope).detach() for z, slope in zip(along[: len(points)], slopes, strict=False)
            ),
            torch.stack(skipped, 1).detach(),
        )


def patch_relevances(
    model: nn.Module, images: Tensor, labels: Tensor | None, rule: Relevance
) -> tuple[Tensor, Tensor]:
    """(B,) explained logit, and (B, tokens) relevance of each patch's embedding, in raster order."""
    with inspecting(model, gradients=True):
        explained, patches = _explained(model, backbone_of(model), images, labels, rule)
        (slope,) = slopes_along(explained.sum(), [patches])
        shares = family_of(backbone_of(model)).patches(patches * slope)
        return explained.detach(), shares.sum(-1).flatten(1).detach()


def _explained(
    model: nn.Module, backbone: nn.Module, images: Tensor, labels: Tensor | None, rule: Relevance
) -> tuple[Tensor, Tensor]:
    """Explained scalar, and patch embeddings, at which the graph under the rules begins."""
    if rule.target not in ("top1", "label", "norm"):
        raise UserError(f"relevance: target is top1, label or norm, got {quoted(rule.target)}.")
    refuse_features(model, rule.target, "relevance")
    if rule.target == "label" and labels is None:
        raise UserError(
            "relevance: target=label explains the label's logit, so it needs labels, got None."
        )
    family = family_of(backbone)
    start: list[Tensor] = []

    def begin(_module: nn.Module, _args: Any, out: Tensor) -> Tensor:
        start.append(out.detach().requires_grad_())
        return start[0]

    # fused attention hides its two products from the rules
    with (
        family.stem(backbone).register_forward_hook(begin),
        family.materialised(backbone),
        _Rules(rule),
    ):
        logits = logits_of(model(usable(images)), model)
    # outside the rules: backward passes call torch functions too
    return objective(logits, labels, rule.target), start[0]


class _Rules(TorchFunctionMode):
    """While it is on, some operations get another backward pass; their values stay."""

    def __init__(self, rule: Relevance) -> None:
        super().__init__()
        self.rule, self.changed = rule, {**_CHANGED, F.linear: self._linear}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        changed = self.changed.get(func)
        return (
            func(*args, **(kwargs or {}))
            if changed is None
            else changed(func, *args, **(kwargs or {}))
        )

    def _linear(
        self, _func: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> Tensor:
        return _Linear.apply(input, weight, bias, self.rule.gamma, self.rule.epsilon)


class _Linear(torch.autograd.Function):
    """y = x W^T + b, where output j hands to input i the share of x_i w_ji (1 + gamma, where its sign is y's).

    With P the sum of contributions of y's own sign: share = contribution / (y + gamma P + epsilon
    sign y), and P = (y + sign(y) (|x| |W|^T + |b|)) / 2: two products forward and two backward.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, gamma: float, epsilon: float
    ) -> Tensor:
        y = F.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, bias, y)
        ctx.gamma, ctx.epsilon = gamma, epsilon
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, y = ctx.saved_tensors
        sign = torch.where(y >= 0, 1.0, -1.0).to(y.dtype)
        shared = y + ctx.epsilon * sign
        if not ctx.gamma:
            return (slope * (y / shared)) @ weight, None, None, None, None
        # only now: below the first heads nobody asks for it
        size = F.linear(x.abs(), weight.abs(), None if bias is None else bias.abs())
        slope = slope * (y / (shared + ctx.gamma / 2 * (y + sign * size)))
        favoured = x.sign() * ((slope * sign) @ weight.abs())
        return (
            (1 + ctx.gamma / 2) * (slope @ weight) + ctx.gamma / 2 * favoured,
            None,
            None,
            None,
            None,
        )


def _layer_norm(
    _func: Any,
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    dims = tuple(range(-len(shape), 0))
    return _scaled(x - x.mean(dims, keepdim=True), dims, weight, bias, eps)


def _rms_norm(
    _func: Any, x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    return _scaled(
        x,
        tuple(range(-len(shape), 0)),
        weight,
        None,
        torch.finfo(x.dtype).eps if eps is None else eps,
    )


def _scaled(
    x: Tensor, dims: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    x = x * (x.detach().square().mean(dims, keepdim=True) + eps).rsqrt()
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _gated(func: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """f(x) = x * gate; the gate at 0 is f's slope there, one half for GELU and SiLU."""
    kwargs.pop("inplace", None)
    with torch.no_grad():
        gate = torch.where(x == 0, 0.5, func(x, *args, **kwargs) / x)
    return x * gate


def _product(func: Callable[..., Tensor], a: Any, b: Any) -> Tensor:
    """Product of two activations, each of which gets half; a weight or a number is no activation."""
    both = isinstance(a, Tensor) and isinstance(b, Tensor) and a.requires_grad and b.requires_grad
    return _Half.apply(func(a, b)) if both else func(a, b)


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope / 2


_CHANGED: dict[Callable[..., Any], Callable[..., Any]] = {
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    **dict.fromkeys((F.gelu, F.silu), _gated),
    # a gate that was written out, as in x * sigmoid(1.702 x), is constant
    **dict.fromkeys((torch.sigmoid, Tensor.sigmoid), lambda func, x: func(x.detach())),
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _product),
    **dict.fromkeys((torch.mul, Tensor.mul, Tensor.__mul__), _product),
}
