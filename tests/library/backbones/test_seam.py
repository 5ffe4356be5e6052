"""One family is one file: nothing else in the house knows how an attention module is written."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mhprobe
from mhprobe.backbones import (
    backbone_of,
    build,
    families,
    family_of,
    input_spec,
    layout_of,
    slice_sites,
)
from mhprobe.backbones.base import Family, Seam, submodule
from mhprobe.backbones.parts.units import layer_scale
from mhprobe.heads import Block, HeadSite, HeadWeights
from models import images_for, labels_for, tiny_swin, tiny_vit

PACKAGE = Path(mhprobe.__file__).parent
# what attention modules and their blocks call their parts, in timm, torch and transformers
PARTS = (
    *(
        "proj",
        "qkv",
        "q_proj",
        "k_proj",
        "v_proj",
        "in_proj",
        "in_proj_weight",
        "in_proj_bias",
        "out_proj",
        "c_proj",
    ),
    *(
        "q_bias",
        "k_bias",
        "v_bias",
        "attn_drop",
        "proj_drop",
        "fused_attn",
        "attn_dim",
        "q_norm",
        "k_norm",
        "rope",
    ),
    *(
        "relative_position_bias_table",
        "relative_position_index",
        "rel_pos",
        "logit_scale",
        "cpb_mlp",
        "attn_mask",
    ),
    *(
        "ls",
        "ls1",
        "ls2",
        "gamma_1",
        "gamma_2",
        "gamma1",
        "gamma2",
        "layer_scale1",
        "layer_scale2",
        "layerscale",
    ),
    *(
        "patch_embed",
        "pos_embed",
        "cls_token",
        "reg_token",
        "drop_path1",
        "drop_path2",
        "num_attention_heads",
    ),
    *("attention_probs", "is_causal", "shift_size"),
)
WORD = re.compile(rf"(?<!\w)({'|'.join(PARTS)})(?!\w)")
# an option of mhprobe.backbones.build, by its name in a weights file
OPTIONS = {("weights/description.py", "fused_attn")}
ELSEWHERE = {("report", "ls")}  # matplotlib's style of a line
# how libraries call their tensors and options, by which files are recognised, read and written
FOREIGN = {
    "weights/foreign.py",
    "weights/others.py",
    "weights/saving.py",
    "weights/translated.py",
}


def parts_named(package: Path) -> list[str]:
    """Every attribute, keyword and text (no docstring) outside backbones/ that names a part of an attention module."""
    found = []
    for path in sorted(package.rglob("*.py")):
        where = path.relative_to(package)
        if where.parts[0] == "backbones" or str(where) in FOREIGN:
            continue
        tree = ast.parse(path.read_text())
        said = {
            id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
        }  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, (ast.Attribute, ast.keyword)):
                words = {node.attr if isinstance(node, ast.Attribute) else node.arg} & set(PARTS)
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in said
            ):
                words = set(WORD.findall(node.value))
            else:
                continue
            words -= {
                word for place, word in OPTIONS | ELSEWHERE if place in (str(where), where.parts[0])
            }
            found += [f"{where}:{node.lineno} {word}" for word in words]
    return found


def test_only_families_name_the_parts_of_attention():
    assert parts_named(PACKAGE) == []


@pytest.mark.parametrize(
    "line",
    [
        *(
            "x = block.attn.{}",
            "m.{} = False",
            "x = f'{{name}}.{}'",
            "x = getattr(block, '{}')",
            "x = build(m, {}=None)",
        ),
        *(
            "x = dict({}=1)",
            "setattr(block, '{}', x)",
            "x = weights['blocks.0.attn.{}.weight']",
            "del m.{}",
        ),
    ],
)
def test_a_planted_part_is_found(tmp_path, line):
    for part in PARTS:
        for room in ("recording", "backbones"):
            (tmp_path / part / room).mkdir(parents=True)
            (tmp_path / part / room / "planted.py").write_text(
                f'"""The {part}."""\n{line.format(part)}\n'
            )
        assert parts_named(tmp_path / part) == [f"recording/planted.py:2 {part}"]


class Mixed(nn.MultiheadAttention):
    """torch's attention with a place for gates: its own forward multiplies by W_O without calling ``out_proj``."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        def split(part: Tensor) -> Tensor:
            return part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

        query, key, value = map(
            split, F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        )
        attn = self.softmaxed((query * query.shape[-1] ** -0.5 @ key.mT).softmax(-1))
        return self.out_proj(self.joined((attn @ value).transpose(1, 2).flatten(2))), None


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixer = nn.MultiheadAttention(width, heads, batch_first=True)
        self.lambda_1 = nn.Parameter(torch.full((width,), 0.5))
        self.mlp = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        out = (
            self.mixer(normed)
            if isinstance(self.mixer, Mixed)
            else self.mixer(normed, normed, normed)
        )
        x = x + self.lambda_1 * out[0]
        return x + self.mlp(self.second(x))


class Foreign(nn.Module):
    """A model that shares no name with timm's, on images of 8 x 8 pixels in 2 x 2 patches."""

    def __init__(self, width: int = 12, heads: int = 3) -> None:
        super().__init__()
        self.embeddings = nn.Linear(3 * 16, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(2))
        self.logits = nn.Linear(width, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embeddings(F.unfold(images, 4, stride=4).mT)
        for layer in self.layers:
            x = layer(x)
        return self.logits(x.mean(1))


class ForeignFamily(Family):
    """All that a family of such models takes."""

    title = "Foreign"

    def claims(self, model):
        return isinstance(model, Foreign)

    def sites(self, model):
        for number, layer in enumerate(model.layers):
            name, heads, width = (
                f"layers.{number}.mixer",
                layer.mixer.num_heads,
                layer.mixer.head_dim,
            )
            yield HeadSite(
                name, 0, number, heads, width, grid=(2, 2), pixels=(4.0, 4.0), pooled=True
            )

    def blocks(self, model):
        for number in range(len(model.layers)):
            yield Block(f"layers.{number}", 0, f"layers.{number}.second")

    def prepare(self, model):
        for layer in model.layers:  # a class, not a closure: copies and pickles follow
            layer.mixer.__class__, layer.mixer.joined, layer.mixer.softmaxed = (
                Mixed,
                nn.Identity(),
                nn.Identity(),
            )

    def seam(self, model, site):
        mixer = submodule(model, site)
        return Whole(mixer, mixer.joined, mixer.out_proj, mixer.softmaxed)

    def head_weights(self, model, site):
        mixer = submodule(model, site)
        query, key, value = mixer.in_proj_weight.detach().unflatten(
            0, (3, site.num_heads, site.head_dim)
        )
        output = mixer.out_proj.weight.detach().mT.unflatten(0, (site.num_heads, site.head_dim))
        return HeadWeights(query, key, value, output * self.layer_scale(model, site))

    def layer_scale(self, model, site):
        return model.layers[site.block].lambda_1.detach()

    def stem(self, model):
        return model.embeddings

    def builds(self, name):
        return name == "foreign"

    def build(self, name, **settings):
        return Foreign()

    def input_spec(self, model):
        return {"size": (8, 8), "mean": (0.5,) * 3, "std": (0.5,) * 3}


class Whole(Seam):
    def rest(self, heads):
        return self.output(self.point(heads)), None


@pytest.fixture
def foreign():
    torch.manual_seed(0)
    model = build("foreign").eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def test_a_model_with_no_name_of_timm_s_is_one_family(foreign):
    images, labels = torch.randn(4, 3, 8, 8), labels_for(4)
    plain, keys = foreign(images), list(foreign.state_dict())
    gates = mhprobe.attach(foreign)
    assert list(foreign.state_dict()) == keys
    torch.testing.assert_close(foreign(images), plain)
    batch = mhprobe.record(
        foreign, images, labels, needs={"grad", "attn", "attn_grad", "stream", "weights"}
    )
    for site, z, weights, attn in zip(
        gates.layout.sites, batch.z, batch.weights, batch.attn, strict=True
    ):
        assert z.shape == (4, 4, 3, 4) and attn.shape == (4, 1, 3, 4, 4)
        stream = batch.stream[site.block]
        bias = foreign.layers[site.block].lambda_1 * foreign.layers[site.block].mixer.out_proj.bias
        written = torch.einsum("bthd,hdc->btc", z, weights.output) + bias
        torch.testing.assert_close(stream.before + written, stream.middle, rtol=1e-4, atol=1e-5)
    with gates.masked(gates.layout.mask([(0, 1)])):
        assert not torch.allclose(foreign(images), plain)
    assert input_spec(foreign)["size"] == (8, 8)


def test_measures_curves_and_maps_take_it(foreign):
    loader = [(torch.randn(8, 3, 8, 8), labels_for(8))]
    wanted = (
        "GateImportance",
        "AblationDelta",
        "Entropy",
        "LRPRelevance",
        "WriteNorm",
        "WeightSimilarity",
    )
    found = mhprobe.measure(foreign, loader, [getattr(mhprobe.measures, name) for name in wanted])
    assert all(value.isfinite().any() for value in found.values()) and len(found) == len(wanted)
    assert mhprobe.masking_curve(foreign, loader, "head", "keep_best", steps=2)
    maps = mhprobe.maps.gradient_rollout.GradientRollout()(foreign, loader[0][0])[
        "gradient rollout"
    ]
    assert maps.shape == (8, 2, 2) and maps.std() > 0


def test_a_family_may_be_probed_and_not_pruned(foreign):
    assert (
        family_of(foreign)
        .unprunable(foreign)
        .startswith("mhprobe does not know how to remove heads of a Foreign")
    )
    with pytest.raises(
        mhprobe.UserError,
        match="prune_heads: mhprobe does not know how to remove heads of a Foreign",
    ):
        mhprobe.prune_heads(foreign, [0])
    layout = layout_of(foreign)
    with pytest.raises(mhprobe.UserError, match=r"layers\.0\.mixer: mhprobe does not know"):
        slice_sites(foreign, layout, {site.name: [1] for site in layout.sites})
    assert family_of(tiny_vit()).unprunable(tiny_vit()) is None


def test_families_of_the_package_are_not_the_only_ones():
    assert ForeignFamily in map(type, families())


def test_a_family_that_is_defined_anew_takes_the_place_of_the_one_before():
    """A cell of a notebook that is run again, mended.

    The first one once went on claiming the models.
    """
    there = []
    for number in range(2):
        type("Mine", (ForeignFamily,), {"title": f"Mine {number}", "claims": lambda *_: False})
        there.append([family.title for family in families() if type(family).__name__ == "Mine"])
        assert families() == families()  # one of each class
    assert there == [["Mine 0"], ["Mine 1"]]


class Wrapped(nn.Module):
    def __init__(self, **models: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(models)

    def forward(self, images: Tensor) -> Tensor:
        return self.parts["student"](images)


def test_the_model_in_a_wrapper_is_found():
    model = tiny_vit()
    assert backbone_of(model) is model
    wrapped = nn.Sequential(nn.Sequential(model))
    assert backbone_of(wrapped) is model
    gates = mhprobe.attach(model)
    assert mhprobe.attach(wrapped) is gates
    with pytest.raises(
        mhprobe.UserError, match=r"it wraps a supported VisionTransformer; pass model\.0\.0\."
    ):
        mhprobe.prune_heads(wrapped, [0])


def test_of_two_models_the_gated_one_is_meant():
    teacher, student = tiny_swin(), tiny_vit()
    both = Wrapped(teacher=teacher, student=student)
    with pytest.raises(
        mhprobe.UserError, match=r"several models with heads: parts\.teacher, parts\.student"
    ):
        backbone_of(both)
    mhprobe.attach(student)
    assert backbone_of(both) is student
    batch = mhprobe.record(both, images_for(student, 2), labels_for(2))
    assert len(batch.z) == 2


@pytest.mark.parametrize("name", ["ls1", "ls", "gamma_1", "layer_scale"])
def test_layer_scale_is_found_under_its_names(name):
    block = nn.Module()
    assert layer_scale(block) is None
    value = nn.Parameter(torch.rand(3))
    inner = nn.Module()
    inner.gamma = value
    setattr(block, name, value if name.startswith("gamma") else inner)
    assert torch.equal(layer_scale(block), value)


def test_gradients_that_are_not_of_the_loss():
    model = tiny_vit().double()
    gates = mhprobe.attach(model)
    gates.values.data = gates.values.data.double()
    images, labels = images_for(model, 2, dtype=torch.float64), labels_for(2)
    for of, pick in (
        ("loss", lambda logits: F.cross_entropy(logits, labels, reduction="none")),
        ("top1", lambda logits: logits.amax(1)),
        ("label", lambda logits: logits[range(2), labels]),
    ):
        batch = mhprobe.record(model, images, None if of == "top1" else labels, of=of)
        slopes = torch.cat(
            [(z * g).sum((1, 3)) for z, g in zip(batch.z, batch.grad, strict=True)], dim=1
        )
        expected = []
        for head in range(gates.layout.num_heads):
            step = 1e-5 * torch.eye(gates.layout.num_heads, dtype=torch.float64)[head]
            with torch.no_grad():
                up, down = (pick(_under(model, gates, 1 + sign * step, images)) for sign in (1, -1))
            expected.append((up - down) / 2e-5)
        torch.testing.assert_close(slopes, torch.stack(expected, 1), rtol=1e-5, atol=1e-9)


def _under(model, gates, values, images):
    with gates.fixed(values):
        return model(images)
