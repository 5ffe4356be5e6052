"""Export a model as ONNX pieces with its gates as inputs, so that a web page can switch heads without Python.

One piece is the stem, one each residual block, and one the tail: a change in block 5 keeps what
blocks 0 to 4 gave. A model that cannot be taken apart is one piece.

Shapes: B images, H heads of a site, W windows, K places of a window, A heads of all sites.
"""

import contextlib
import copy
import functools
import importlib.util
import io
import itertools
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, backbone_of, family_of
from mhprobe.errors import UserError
from mhprobe.heads import HeadLayout
from mhprobe.recording.state import inspecting

OPSET = 17
Stored = Literal["float32", "float16", "int8"]
_LARGE = 1024  # numbers of a tensor that is worth storing as something smaller


class ModelPart(NamedTuple):
    """A part of a model."""

    # "stream" (B, ...), "gates" (heads,) -> "out", and "attention<site>" (B * W, H, K, K) of its
    # sites
    onnx: bytes
    first: int  # of the heads that "gates" has
    heads: int  # 0: "gates" is no input
    sites: list[int]


def parts_of_model(model: nn.Module, images: Tensor) -> list[ModelPart]:
    """Take a model apart into ONNX; chained, the pieces give its logits.

    images: (B >= 2, C, height, width), normalised. Gates that the model has are in the pieces: an
    input of 1 leaves a head as it is, 0 switches it off. Raises UserError where the package onnx is
    missing, and for what ONNX cannot hold.
    """
    if importlib.util.find_spec("onnx") is None:
        raise UserError("live: needs the package onnx: pip install 'mhprobe[live]'.")
    whole = copy.deepcopy(model).cpu().float().eval()
    layout, backbone = attach(whole).layout.of("head"), backbone_of(whole)
    family, exports, stream = family_of(backbone), [], images.cpu()
    every = list(range(len(layout.sites)))
    parts: list[tuple[str, Callable[[Tensor], Any], list[int]]] = [("", whole, every)]
    with inspecting(whole, gradients=False):  # also what segments compute for all blocks
        if (segments := None if backbone is not whole else family.segments(backbone)) is not None:
            count = len(segments.blocks)
            of_block = [
                [site for site in every if layout.sites[site].block == block]
                for block in range(count)
            ]
            blocks = zip(
                [block.name for block in layout.blocks], segments.blocks, of_block, strict=True
            )
            parts = [
                ("the stem", segments.stem, []),
                *blocks,
                ("the classifier", segments.tail, []),
            ]
        for name, part, sites in parts:
            module = _Gated(backbone, layout, part, sites)
            exports.append(_exported(module, name, stream))
            stream = module(stream, torch.ones(module.count))[0]
    return exports


class _Gated(nn.Module):
    """A part of a model as a function of its input and its gates."""

    def __init__(
        self, model: nn.Module, layout: HeadLayout, part: Callable[[Tensor], Any], sites: list[int]
    ) -> None:
        super().__init__()
        self.model, self.layout, self.part, self.sites = model, layout, part, sites
        spans = [layout.span(site) for site in sites]
        self.first = spans[0].start if spans else 0
        self.count = spans[-1].stop - self.first if spans else 0
        self.eval()  # the exporter puts back the mode that it found, in all that is inside

    def forward(self, stream: Tensor, gates: Tensor) -> tuple[Tensor, ...]:
        seen: dict[int, Tensor] = {}

        def close(wide: Tensor, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return inputs[0] * wide, *inputs[1:]

        def see(number: int, module: nn.Module, inputs: tuple[Any, ...]) -> None:
            seen[number] = inputs[0]

        with contextlib.ExitStack() as stack:
            for number in self.sites:
                site, span = self.layout.sites[number], self.layout.span(number)
                seam = family_of(self.model).seam(self.model, site)
                wide = gates[span.start - self.first : span.stop - self.first].repeat_interleave(
                    site.head_dim
                )
                stack.enter_context(
                    seam.point.register_forward_pre_hook(functools.partial(close, wide))
                )
                if seam.weights is not None:
                    stack.enter_context(seam.watched(functools.partial(see, number)))
            out = self.part(stream)
        return getattr(out, "logits", out), *(seen[site] for site in sorted(seen))


def _exported(part: _Gated, name: str, stream: Tensor) -> ModelPart:
    gates = torch.ones(part.count)
    data: Any = io.BytesIO()  # the exporter takes a file, too, and does not say so
    tensors = part(stream, gates)
    outputs = ["out", *(f"attention{site}" for site in part.sites)][: len(tensors)]
    moving = {name: {0: "images"} for name in ("stream", *outputs)}
    graphs: list[
        Any
    ] = []  # the exporter's, where it fails: it would write them to the standard output
    log: dict[str, Any] = {
        "_jit_onnx_log": lambda *parts: graphs.extend(parts),
        "_jit_is_onnx_log_enabled": None,
    }
    with (
        warnings.catch_warnings(action="ignore"),
        mock.patch.multiple(torch._C, **log),
    ):  # of shapes taken as fixed
        try:
            torch.onnx.export(
                part,
                (stream, gates),
                data,
                dynamo=False,
                opset_version=OPSET,
                dynamic_axes=moving,
                input_names=["stream", "gates"],
                output_names=outputs,
            )
        except Exception as error:  # the exporter raises a dozen unrelated types
            operator = re.search(r"aten::\w+", str(error))
            reason = operator[0] if operator else " ".join(str(error).split())[:100]
            where = _module(name, operator[0], graphs) if operator else name
            raise UserError(
                f"live: {where or 'the whole model'}: ONNX cannot hold it ({reason})."
            ) from error
    return ModelPart(data.getvalue(), part.first, part.count, part.sites[: len(outputs) - 1])


def _module(part: str, operator: str, graphs: Sequence[Any]) -> str:
    """Name of the innermost module that calls an operator ("blocks.1.mlp"); of the part where no graph tells."""
    nodes = [node for graph in graphs if isinstance(graph, torch.Graph) for node in graph.nodes()]
    for node in [node for node in nodes if node.kind() == operator]:
        # its scope: "<type>::/<type>::part/<type>::mlp/<type>::mlp.0", where what a Sequential
        # holds has both names
        scope = [module.rpartition("::")[2] for module in node.scopeName().split("/")][1:]
        holders = [
            name for name, held in itertools.pairwise(scope) if not held.startswith(f"{name}.")
        ]
        return re.sub(r"^(part\b\.?)?(model\b\.?)?", "", ".".join([*holders, *scope[-1:]])) or part
    return part


def stored(piece: ModelPart, kind: Stored) -> ModelPart:
    """The piece with its large weights kept as float16, or as int8 with a scale per row or column.

    It computes in float32 as before: whoever opens it turns the weights back, once.
    """
    if kind == "float32":
        return piece
    import onnx
    from onnx import helper, numpy_helper

    graph, back = (model := onnx.load_from_string(piece.onnx)).graph, []
    wide = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
    for kept in [
        tensor for tensor in wide if len(tensor.dims) > 1 and math.prod(tensor.dims) >= _LARGE
    ]:
        name, small = kept.name, f"{kept.name}/{kind}"
        weights = numpy_helper.to_array(kept)
        graph.initializer.remove(kept)
        if kind == "float16":
            graph.initializer.append(numpy_helper.from_array(weights.astype("float16"), small))
            back.append(helper.make_node("Cast", [small], [name], to=onnx.TensorProto.FLOAT))
        else:
            whole, scale = _whole_numbers(torch.from_numpy(weights.copy()))
            graph.initializer.append(numpy_helper.from_array(whole.numpy(), small))
            graph.initializer.append(numpy_helper.from_array(scale.numpy(), f"{name}/scale"))
            back.append(
                helper.make_node("Cast", [small], [f"{name}/whole"], to=onnx.TensorProto.FLOAT)
            )
            back.append(helper.make_node("Mul", [f"{name}/whole", f"{name}/scale"], [name]))
    for number, node in enumerate(back):
        graph.node.insert(number, node)
    return piece._replace(onnx=model.SerializeToString())


def _whole_numbers(weights: Tensor) -> tuple[Tensor, Tensor]:
    """int8 numbers, and the scale that they are multiplied by: along the rows or the columns, whichever errs less."""
    tried = []
    for axis in (0, weights.dim() - 1):
        others = [dim for dim in range(weights.dim()) if dim != axis]
        scale = weights.abs().amax(others, keepdim=True).clamp(min=1e-12) / 127
        whole = (weights / scale).round()
        tried.append((float((whole * scale - weights).square().sum()), whole.to(torch.int8), scale))
    return min(tried, key=lambda one: one[0])[1:]
