"""ONNX files beside the network they were made from: each exporter, precision and family; and broken files."""

from __future__ import annotations

import copy
import csv
import logging
import math
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import mhprobe
from mhprobe import differing
from mhprobe.differences import exported as exporting
from mhprobe.differences.graph import Graph
from mhprobe.surgery.export import OLDER, onnx_bytes
from models import TWINS, images_for, make_loud, tiny_deit, tiny_vit

IMAGES = 4
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def loud(name: str = "vit") -> nn.Module:
    model = tiny_deit() if name == "deit" else TWINS[name]()
    make_loud(model, 0.2)
    return model


def exported(model: nn.Module, file: Path) -> Path:
    file.write_bytes(onnx_bytes(model, images_for(model, 2), tolerance=1))
    return file


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[nn.Module, Path]:
    model = loud()
    return model, exported(model, tmp_path_factory.mktemp("onnx") / "vit.onnx")


def compared(model, file, **options):
    return mhprobe.diff(model, file, images_for(model, IMAGES), show_progress=False, **options)


def changed(file: Path, to: Path, change) -> Path:
    proto = onnx.load(str(file))
    change(proto)
    onnx.save(proto, str(to))
    return to


@pytest.mark.parametrize(
    "name", ["deit", "vit_registers", "swin", "swinv2", "eva", "beit", "torchvision_vit"]
)
def test_a_right_export_of_every_family_flags_nothing(name, tmp_path):
    model = loud(name)
    found = compared(model, exported(model, tmp_path / "right.onnx"))
    assert sum(found.heads.column("flagged")) == 0 and "No block computes differently" in str(found)
    assert 0 < max(found.heads.column("value")) < 1e-5  # read from the graph: it rounds otherwise
    assert max(found.heads.column("attention")) < 1e-10


def test_an_export_of_timms_exporter_of_one_image_is_read(tmp_path):
    from timm.utils.onnx import onnx_export

    model, file = loud(), tmp_path / "timm.onnx"
    with warnings.catch_warnings(action="ignore"):
        onnx_export(model, str(file), batch_size=1, input_size=(3, 16, 16), check=False)
    assert sum(compared(model, file).heads.column("flagged")) == 0


def by_dynamo(model: nn.Module, file: Path, opset: int | None = None) -> Path:
    if OLDER:
        pytest.skip("before torch 2.7 the newer exporter fails beside today's onnxscript")
    images = images_for(model, 2).to(next(model.parameters()).dtype)
    torch.onnx.export(
        model,
        (images,),
        str(file),
        dynamo=True,
        opset_version=opset,
        input_names=["images"],
        verbose=False,
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},),
    )
    return file


def by_the_older(model: nn.Module, file: Path) -> Path:
    """Ten times as fast as the newer exporter."""
    given = dict(input_names=["images"], dynamic_axes={"images": {0: "batch"}}, dynamo=False)
    with warnings.catch_warnings(action="ignore"):
        torch.onnx.export(model, (images_for(model, 2),), str(file), **given)
    return file


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("name", ["hf_vit", "hf_dinov2"])
def test_exports_of_hugging_face_by_both_exporters_are_read(name, dynamo, tmp_path):
    """Of torch's fused attention the newer one writes a softmax whose rows are guarded by a Where."""
    model, file = loud(name), tmp_path / "hf.onnx"
    if dynamo:
        by_dynamo(model, file)
        assert any(node.op_type == "IsNaN" for node in onnx.load(str(file)).graph.node)
    else:
        by_the_older(model, file)
    found = compared(model, file)
    assert sum(found.heads.column("flagged")) == 0 and max(found.heads.column("value")) < 1e-5
    assert max(found.heads.column("attention")) < 1e-10
    with torch.no_grad():
        list(model.parameters())[-3].mul_(1.5)  # the control: A is no longer what was exported
    assert compared(model, file).metrics["diff/error_of_logits"] > 1e-3


def split_heads(proto) -> None:
    """Put ONNX Runtime's MultiHeadAttention, whose heads lie side by side, in the place of ONNX's Attention."""
    nodes = []
    for node in proto.graph.node:
        if node.op_type != "Attention":
            nodes.append(node)
            continue
        names = []
        for value in node.input[:3]:
            names.append(f"{value}_side")
            nodes += [
                helper.make_node("Transpose", [value], [f"{value}_turned"], perm=[0, 2, 1, 3]),
                helper.make_node("Reshape", [f"{value}_turned", "flat"], [names[-1]]),
            ]
        out = node.output[0]
        nodes += [
            helper.make_node(
                "MultiHeadAttention", names, [f"{out}_side"], domain="com.microsoft", num_heads=3
            ),
            helper.make_node("Reshape", [f"{out}_side", "apart"], [f"{out}_turned"]),
            helper.make_node("Transpose", [f"{out}_turned"], [out], perm=[0, 2, 1, 3]),
        ]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    for name, shape in (("flat", [0, 0, 24]), ("apart", [0, 0, 3, 8])):
        proto.graph.initializer.append(numpy_helper.from_array(np.array(shape), name))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))


@pytest.fixture(scope="module")
def fused(tmp_path_factory) -> Path:
    """An opset that has attention as one operator."""
    return by_dynamo(loud(), tmp_path_factory.mktemp("fused") / "fused.onnx", opset=23)


@pytest.mark.parametrize("kind", ["Attention", "MultiHeadAttention"])
def test_of_fused_attention_all_but_its_weights_is_compared_and_the_operator_is_named(
    kind, fused, tmp_path
):
    model = loud()
    file = fused
    if kind == "MultiHeadAttention":
        file = changed(file, tmp_path / "fused.onnx", split_heads)
    found = compared(model, file)
    assert sum(found.heads.column("flagged")) == 0 and 0 < max(found.heads.column("value")) < 1e-5
    assert all(math.isnan(one) for one in found.heads.column("attention"))
    said = f"attention is one fused operator ({kind}) in 2 of 2 blocks and shows no weights"
    assert said in " ".join(found.notes)
    with torch.no_grad():
        model.blocks[1].attn.qkv.weight[2 * 24 + 8 : 2 * 24 + 16].mul_(1.3)
    found = compared(model, file)
    assert found.heads.column("flagged") == [0, 0, 0, 0, 1, 0]
    assert found.metrics["diff/first_block"] == 1 and len(found.neurons.rows) == 16
    assert "fused operator" in found.page()


def disturbed(weight: torch.Tensor, factor: float, rows: slice):
    """Return a change of a graph: these rows of a linear layer's weight, which stands there transposed."""

    def change(proto) -> None:
        (tensor,) = [
            one
            for one in proto.graph.initializer
            if np.array_equal(numpy_helper.to_array(one), weight.detach().T)
        ]
        values = numpy_helper.to_array(tensor).copy()
        values[:, rows] *= factor
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    return change


def test_a_disturbed_projection_in_the_graph_is_named_with_its_block(pair, tmp_path):
    model, file = pair
    projection = disturbed(model.blocks[1].attn.proj.weight, 1.1, slice(None))
    found = compared(model, changed(file, tmp_path / "other.onnx", projection))
    assert (
        found.metrics["diff/first_block"] == 1
        and "its attention's projection" in found.sentences[0]
    )
    values_of_a_head = slice(2 * 24 + 8, 2 * 24 + 16)
    head = disturbed(model.blocks[0].attn.qkv.weight, 1.3, values_of_a_head)
    found = compared(model, changed(file, tmp_path / "other.onnx", head))
    assert found.metrics["diff/first_block"] == 0 and found.heads.column("flagged") == [
        0,
        1,
        0,
        0,
        0,
        0,
    ]
    rows = {row["block"]: row for row in found.blocks.dicts()}
    assert rows[1]["value"] < 1e-5 < 1e-3 < rows[1]["inherited"]


def quantised(file: Path, to: Path, model: nn.Module, static: bool, whole: bool = False) -> Path:
    """whole: every operator in integers, in the QOperator form."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        quantize_dynamic,
        quantize_static,
    )

    logging.disable(logging.WARNING)
    try:
        if not static:
            quantize_dynamic(file, to, op_types_to_quantize=["MatMul", "Gemm"])
            return to

        class Reader(CalibrationDataReader):
            batches = iter([{"images": images_for(model, 2, seed=n).numpy()} for n in range(2)])

            def get_next(self):
                return next(self.batches, None)

        if whole:
            quantize_static(file, to, Reader(), quant_format=QuantFormat.QOperator)
        else:
            quantize_static(file, to, Reader(), op_types_to_quantize=["MatMul", "Gemm"])
        return to
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("static", [False, True])
def test_quantised_files_are_read_and_their_heads_flagged(pair, tmp_path, static):
    model, file = pair
    found = compared(model, quantised(file, tmp_path / "int8.onnx", model, static), tolerance=1e-5)
    assert sum(found.heads.column("flagged")) == 6 and found.outside
    assert 1e-4 < max(found.heads.column("value")) < 0.5


@pytest.mark.parametrize("given", [{"measures": ["entropy"]}, {"along": "."}])
def test_heads_of_an_export_cannot_be_measured(pair, given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({}, "weights.ckpt")
    with pytest.raises(mhprobe.UserError, match="is an export, whose heads cannot be measured"):
        compared(*pair, **given)


def test_heads_of_an_export_cannot_be_ablated(pair):
    with pytest.raises(mhprobe.UserError, match="is an export, whose heads cannot be masked"):
        compared(*pair, ablation=True)


@pytest.mark.parametrize("null", ["images", "a network"])
def test_the_null_of_trainings_is_refused_for_an_export(pair, null):
    model, file = pair
    with pytest.raises(mhprobe.UserError, match=r"null: vit.onnx is an export.* rounding") as error:
        compared(model, file, null=null if null == "images" else loud())
    assert "\n" not in str(error.value)
    assert "rounding" not in " ".join(compared(model, file, null="rounding").notes)


def test_of_a_file_that_hides_its_blocks_the_ends_are_compared_and_the_operator_is_named(
    pair, tmp_path
):
    model, file = pair

    proto = onnx.load(str(file))
    proto.graph.node[3].op_type = "SkipLayerNormalization"
    assert "Its SkipLayerNormalization hides the residual stream" in exporting._advice(proto)
    whole = quantised(file, tmp_path / "whole.onnx", model, static=True, whole=True)
    images, labels = images_for(model, IMAGES), torch.arange(IMAGES) % 5
    found = mhprobe.diff(model, whole, images, labels, tolerance=1e-5, show_progress=False)
    said = str(found)
    assert "Blocks and heads are not compared" in said and "in the QDQ form" in said
    session = onnxruntime.InferenceSession(str(whole), providers=["CPUExecutionProvider"])
    theirs = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    ours = model(images).detach()
    error = ((theirs - ours).norm(dim=1) / ours.norm(dim=1)).mean()
    assert found.metrics["diff/error_of_logits"] == pytest.approx(float(error), rel=1e-5)
    right = [(one.argmax(1) == labels).double().mean() for one in (ours, theirs)]
    assert found.metrics["diff/accuracy_after"] == pytest.approx(float(right[1]))
    assert found.metrics["diff/accuracy_before"] == pytest.approx(float(right[0]))
    written = found.save(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out" / "tables").iterdir()] == [
        "diff_photographs.csv"
    ]
    with (tmp_path / "out" / "tables" / "diff_photographs.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert [int(row["after"]) for row in rows] == theirs.argmax(1).tolist()
    order = sorted(rows, key=lambda row: (row["before"] == row["after"], -float(row["value"])))
    text = written.read_text()
    assert written.name == "diff.html" and "Photographs that are answered most" in text
    places = [text.index(f"{row['file']}</span>") for row in order]
    assert places == sorted(places)
    assert compared(model, whole, tolerance={"logits": 1e-6}).outside
    for limit in ("head", "block"):
        with pytest.raises(mhprobe.UserError, match=f"tolerance: {limit}: Blocks and heads are n"):
            compared(model, whole, tolerance={limit: 0.1})
    with pytest.raises(mhprobe.UserError, match="is an export"):
        compared(model, whole, measures=["entropy"])


def test_half_precision_is_held_against_a_right_cast(pair, tmp_path):
    model, _file = pair
    half = by_dynamo(copy.deepcopy(model).half(), tmp_path / "half.onnx")
    found = compared(model, half)
    assert sum(found.heads.column("flagged")) == 0 and max(found.heads.column("value")) > 1e-4


def test_files_that_are_no_export_of_it_are_one_line(pair, tmp_path):
    model, file = pair
    text = tmp_path / "text.onnx"
    text.write_text("no graph")
    deeper = by_the_older(tiny_vit(depth=3), tmp_path / "deeper.onnx")
    other = by_the_older(tiny_vit(num_classes=7), tmp_path / "classes.onnx")
    larger = by_the_older(tiny_vit(img_size=24), tmp_path / "larger.onnx")

    def strange(proto):
        proto.graph.node[5].op_type = "NotThere"

    def newer(proto):
        proto.opset_import[0].version = 99

    def without_scale(proto):
        names = [one.name for one in proto.graph.initializer if "scale" in one.name]
        for one in [one for one in proto.graph.initializer if one.name == names[0]]:
            proto.graph.initializer.remove(one)

    plain = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "plain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(torch.zeros(4, 2).numpy(), "w")],
    )
    onnx.save(helper.make_model(plain), str(tmp_path / "plain.onnx"))
    last = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "last",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16, 16, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    onnx.save(helper.make_model(last), str(tmp_path / "last.onnx"))
    cut, empty = tmp_path / "cut.onnx", tmp_path / "empty.onnx"
    cut.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    empty.write_bytes(b"")
    int8 = quantised(file, tmp_path / "int8.onnx", model, static=False)
    for broken, expected in (
        (text, "cannot be read as ONNX"),
        (tmp_path / "none.onnx", "there is no such file"),
        (deeper, "has 3 attentions of the form of those of A, and A has 2"),
        (other, "expected the same classes"),
        (larger, "takes images of 3 x 24 x 24 and A of 3 x 16 x 16"),
        (tmp_path / "plain.onnx", "expected one input"),
        (tmp_path / "last.onnx", "colours last"),
        (cut, "cannot be read as ONNX"),
        (empty, "Export it again"),
        (changed(file, tmp_path / "strange.onnx", strange), "ONNX Runtime cannot run strange.onnx"),
        (
            changed(file, tmp_path / "newer.onnx", newer),
            r"newer.onnx: it is of opset 99, and this version knows opsets up to \d+\. Export it",
        ),
        (
            changed(int8, tmp_path / "scale.onnx", without_scale),
            "ONNX Runtime cannot run|expected one input",
        ),
    ):
        with pytest.raises(mhprobe.UserError, match=expected) as error:
            compared(model, broken)
        assert "\n" not in str(error.value)
    with pytest.raises(
        mhprobe.UserError, match="give the PyTorch network that it was made from first"
    ):
        mhprobe.diff(file, model, images_for(model, IMAGES))


def test_blocks_are_found_without_names(pair):
    _model, file = pair
    proto = onnx.load(str(file))
    names = {}
    for node in proto.graph.node:  # an exporter may call tensors as it likes
        node.name = ""
        for at, name in enumerate(node.output):
            if name != "logits":
                names[name] = node.output[at] = f"t{len(names)}"
    for node in proto.graph.node:
        for at, name in enumerate(node.input):
            node.input[at] = names.get(name, name)
    places = Graph(proto).places()
    assert len(places) == 2 and all(place.neurons and place.before for place in places)
    assert places[0].after == places[1].before


def test_the_command_ends_with_one_where_something_leaves_its_tolerance(pair, tmp_path, capsys):
    from PIL import Image

    model, file = pair
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(4):
        pixels = torch.randint(
            0, 256, (16, 16, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(number)
        )
        Image.fromarray(pixels.numpy()).save(photos / f"{number}.png")
    int8 = quantised(file, tmp_path / "int8.onnx", model, static=False)

    def run(b, *options):
        return differing.main(
            [
                str(tmp_path / "model.safetensors"),
                str(b),
                str(photos),
                "--out",
                str(tmp_path / "out"),
                *options,
            ]
        )

    mhprobe.detach(model)
    from mhprobe.weights.checkpoint import save_weights

    settings = dict(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3)
    about = dict(
        backbone={"name": "vit_tiny_patch16_224", **settings},
        class_names=list("abcde"),
        data="none",
        made={"by": "test"},
    )
    save_weights(model, tmp_path / "model.safetensors", about)
    assert run(file, "--tolerance", ".01") == 0
    assert run(int8, "--tolerance", ".5") == 0
    assert run(int8, "--tolerance", "head=1e-5", "logits=1") == 1
    assert "Outside: 6 of 6 heads have an own error above 1e-05" in capsys.readouterr().out
    assert (tmp_path / "out" / "diff.html").exists() and (
        tmp_path / "out" / "tables" / "diff_heads.csv"
    ).exists()
    assert run(int8, "--tolerance", "accuracy=.01") == 2
    assert run(tmp_path / "none.onnx") == 2
    err = capsys.readouterr().err
    assert "accuracy needs labels" in err and "Traceback" not in err and err.count("\n") == 2
