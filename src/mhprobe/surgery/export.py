"""A model as an ONNX file and as a torch.export file, each checked by running it.

Both take batches of any size. The bytes are made and run in memory first: what is written has given
the right logits.
"""

import copy
import importlib.util
import io
import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from mhprobe.errors import UserError, first_line, short
from mhprobe.gates.meanwhile import meanwhile

# before torch 2.7 the newer exporter fails beside today's onnxscript
OLDER = torch.__version__ < "2.7"
NAMES: dict[str, Any] = dict(input_names=["images"], output_names=["logits"], verbose=False)


def export_bytes(
    model: nn.Module, images: Tensor, onnx: bool, torch_export: bool
) -> dict[str, bytes]:
    """Return the files that are asked for, by the end of their names: "onnx" and "pt2".

    If both are, ``model`` is captured once. images: (B >= 2, 3, height, width). UserError as of
    ``onnx_bytes``.
    """
    program = captured(_on_cpu(model), images) if onnx and torch_export else None
    files = {"onnx": onnx_bytes(model, images, program=program)} if onnx else {}
    if torch_export:
        files["pt2"] = torch_export_bytes(model, images, program=program)
    return files


def captured(model: nn.Module, images: Tensor) -> ExportedProgram:
    """Capture ``model``, on the CPU and in eval mode, for batches of any size.

    images: (B >= 2, 3, height, width).
    """
    with torch.no_grad():
        return torch.export.export(
            model, (images,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
        )


def torch_export_bytes(
    model: nn.Module,
    images: Tensor,
    tolerance: float = 1e-5,
    program: ExportedProgram | None = None,
) -> bytes:
    """``torch.export.save`` of ``model``: what ``torch.export.load`` reads.

    images: (B >= 2, 3, height, width). program: ``model`` as it was ``captured``, if it was.
    """
    model = _on_cpu(model)
    program = program or captured(model, images)
    data = io.BytesIO()
    torch.export.save(program, data)
    data.seek(0)
    with warnings.catch_warnings(action="ignore"):  # torch 2.6 warns about names of its own
        loaded = torch.export.load(data).module()
    with torch.no_grad():
        for batch in (images, images[:1]):
            _same("torch.export", model(batch), loaded(batch), tolerance)
    return data.getvalue()


def onnx_bytes(
    model: nn.Module,
    images: Tensor,
    tolerance: float = 1e-4,
    program: ExportedProgram | None = None,
) -> bytes:
    """Export ``model`` to ONNX: input "images" (B, 3, height, width), output "logits" (B, C), checked with onnxruntime.

    images: (B >= 2, 3, height, width). tolerance: relative to the largest logit; other kernels
    round differently. program: ``model`` as it was ``captured``, if it was; torch before 2.7 does
    without. UserError if a package is missing, or if ONNX Runtime does not run what torch before
    2.7 wrote.
    """
    needs_onnx()
    model = _on_cpu(model)
    for library in ("onnx_ir", "onnxscript", "torch.onnx"):
        logging.getLogger(library).setLevel(logging.WARNING)  # what they optimise
    # the exporter warns about its own parts
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        data = _older_onnx(model, images) if OLDER else _onnx(program or model, images)
    session = _session(data)
    with torch.no_grad():
        for batch in (images, images[:1]):
            (logits,) = _run(session, batch)
            _same("ONNX", model(batch), torch.from_numpy(logits), tolerance)
    return data


def _on_cpu(model: nn.Module) -> nn.Module:
    """Return a copy of ``model`` on the CPU, in eval mode."""
    return copy.deepcopy(model).cpu().eval()


def _run(session: Any, images: Tensor) -> Any:
    try:
        return session.run(["logits"], {"images": images.numpy()})
    except Exception as error:  # of ONNX Runtime, which has many
        if not OLDER:
            raise
        raise UserError(
            f"onnx: ONNX Runtime does not run what torch {torch.__version__} wrote of this network "
            f"({short(first_line(error), 200)}). Take torch 2.7 or later, or leave the ONNX file out."
        ) from error


def _onnx(model: nn.Module | ExportedProgram, images: Tensor) -> bytes:
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    program = torch.onnx.export(model, (images,), dynamo=True, dynamic_shapes=shapes, **NAMES)
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def _older_onnx(model: nn.Module, images: Tensor) -> bytes:
    """Return the bytes of the export by the older exporter, which knows no fused attention of torch's own modules."""
    data: Any = io.BytesIO()
    of_any_batch = {name: {0: "batch"} for name in ("images", "logits")}
    alone = _OfImages(model).eval()
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        torch.onnx.export(alone, (images,), data, dynamo=False, dynamic_axes=of_any_batch, **NAMES)
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
    return bytes(data.getvalue())


class _OfImages(nn.Module):
    """A model that takes nothing but images: the older exporter passes defaults of others on as tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits


def onnx_sessions(model: nn.Module, images: Tensor) -> dict[str, Any]:
    """ONNX Runtime on the CPU with as many threads as torch: "onnx" in float32, "int8" with dynamic quantisation."""
    data = onnx_bytes(model, images)
    from onnxruntime.quantization import quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        dense, small = (Path(folder) / f"{name}.onnx" for name in ("whole", "small"))
        dense.write_bytes(data)
        with meanwhile([logging.getLogger()], disabled=True):  # it advises on the root logger
            quantize_dynamic(dense, small, op_types_to_quantize=["MatMul", "Gemm"])
        return {"onnx": _session(data), "int8": _session(small.read_bytes())}


def _session(data: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def needs_onnx() -> None:
    """UserError if a package that ``onnx_bytes`` needs is not installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"onnx: needs the package {package}: pip install 'mhprobe[export]'.")


def _same(form: str, expected: Tensor, got: Tensor, tolerance: float) -> None:
    difference = (got - expected).abs().max().item()
    if not difference <= tolerance * max(1.0, expected.abs().max().item()):
        raise RuntimeError(
            f"{form}: the exported model's logits differ by up to {difference:.3g} from the "
            "model's."
        )
