"""Models of torchvision, torch and Hugging Face, as people have them: with classifiers, in wrappers, of text."""

from __future__ import annotations

import copy
import importlib
import pickle

import pytest
import torch
from torch import nn

import mhprobe
from mhprobe.backbones import build
from mhprobe.errors import UserError
from mhprobe.recording.outputs import logits_of
from models import (
    encoder,
    huggingface,
    images_for,
    labels_for,
    make_loud,
    text,
    tiny_vit,
    torchvision_swin,
    torchvision_vit,
)


class OfTokens(nn.Module):
    """A model of one's own around torch's encoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.encoder, self.head = nn.Conv2d(3, 24, 4, 4), encoder(), nn.Linear(24, 5)

    def forward(self, images):
        return self.head(self.encoder(self.embed(images).flatten(2).mT).mean(1))


def images(count=4):
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def classifier(name, **settings):
    return huggingface(name, num_labels=5, **settings)


PEOPLE_HAVE = {
    "torchvision": torchvision_vit,
    "torch encoder": OfTokens,
    "ViT": lambda: classifier("ViTForImageClassification"),
    "DINOv2": lambda: classifier("Dinov2ForImageClassification"),
    "BEiT": lambda: classifier("BeitForImageClassification"),
}


@pytest.mark.parametrize("build", PEOPLE_HAVE.values(), ids=PEOPLE_HAVE.keys())
def test_measures_and_curves_take_them_as_they_are(build):
    model = build().eval()
    make_loud(model, 0.3)
    loader = [(images(), labels_for(4))]
    found = mhprobe.measure(
        model, loader, [mhprobe.measures.GateImportance, mhprobe.measures.AblationDelta]
    )
    assert found["gate_importance"].min() > 0 and found["ablation_delta"].isfinite().all()
    gates = mhprobe.attach(model)
    with torch.no_grad():
        before = logits_of(model(images()))
        with gates.masked(gates.layout.mask([0])):
            dropped = nn.functional.cross_entropy(logits_of(model(images())), labels_for(4))
    expected = dropped - nn.functional.cross_entropy(before, labels_for(4))
    torch.testing.assert_close(found["ablation_delta"][0].float(), expected, rtol=1e-3, atol=1e-5)
    rows = mhprobe.masking_curve(model, loader, "layer", "keep_best")
    assert len(rows) == 3 and rows[0]["loss"] == pytest.approx(
        nn.functional.cross_entropy(before, labels_for(4)).item()
    )


def test_attention_statistics_of_a_hugging_face_model_are_those_it_gives_itself():
    model = huggingface("ViTModel", attn_implementation="eager")
    with torch.no_grad():
        expected = model(images(), output_attentions=True).attentions
    mhprobe.attach(model)
    for implementation in ("eager", "sdpa"):
        model.config._attn_implementation = implementation
        batch = mhprobe.record(model, images(), needs={"attn"})
        assert model.config._attn_implementation == implementation
        for theirs, ours in zip(expected, batch.attn, strict=True):
            torch.testing.assert_close(ours[:, 0], theirs)
    assert not torch.allclose(expected[0], expected[1])


def test_text_has_heads_and_no_grid():
    model = text("BertModel")
    tokens = images_for(model, 4)
    loader = [(tokens, labels_for(4))]
    wanted = [mhprobe.measures.GateImportance, mhprobe.measures.WriteNorm]
    found = mhprobe.measure(model, loader, wanted, target="norm")
    assert found["gate_importance"].shape == (6,) and found["gate_importance"].min() > 0
    with pytest.raises(
        mhprobe.UserError, match="expected tokens in a grid, as of an image, got a line of tokens"
    ):
        mhprobe.measure(model, loader, [mhprobe.measures.AttentionDistance])
    batch = mhprobe.record(model, tokens, needs={"attn"})
    with torch.no_grad():
        model.config._attn_implementation = "eager"
        expected = model(tokens, output_attentions=True).attentions
    torch.testing.assert_close(batch.attn[1][:, 0], expected[1])


def test_padding_of_text_is_masked_as_by_the_model_itself():
    """The mask goes to our attention as it does to theirs."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = text("BertModel")

        def forward(self, tokens):
            return self.bert(tokens, attention_mask=(tokens > 2).long())

    model = Padded().eval()
    tokens = torch.tensor([[3, 4, 5, 6, 7, 2, 2], [3, 4, 2, 2, 2, 2, 2]])
    mhprobe.attach(model)
    for weights in mhprobe.record(model, tokens, needs={"attn"}).attn:
        assert weights[0, 0, :, :, 5:].max() < 1e-6 and weights[1, 0, :, :, 2:].max() < 1e-6


@pytest.mark.parametrize(
    "build", [torchvision_vit, torchvision_swin, encoder, lambda: huggingface("CLIPVisionModel")]
)
def test_copies_and_pickles_take_their_gates_along(build):
    model = build()
    for parameter in model.parameters():  # torchvision's classifier begins at zero
        nn.init.normal_(parameter, std=0.3)
    gates = mhprobe.attach(model)
    inputs = images_for(model, 2)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        mhprobe.attach(copied).values.data[0] = 0
        with torch.no_grad():
            assert not torch.equal(logits_of(copied(inputs)), logits_of(model(inputs)))
    assert gates.values.eq(1).all()


def test_torch_s_own_masks_are_obeyed():
    """Padding and causal masks, against torch's own attention."""
    plain, padding = encoder(), torch.tensor([[False] * 5 + [True] * 2, [False] * 7])
    causal = nn.Transformer.generate_square_subsequent_mask(7)
    gated = copy.deepcopy(plain)
    mhprobe.attach(gated)
    x = images_for(plain, 2)
    for options in (
        {"src_key_padding_mask": padding},
        {"mask": causal},
        {"mask": causal, "is_causal": True},
    ):
        assert torch.equal(gated(x, **options), plain(x, **options)), (
            options
        )  # with slopes: torch's inference kernel is off


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: encoder_of(batch_first=False), "Make the layers with batch_first=True"),
        (lambda: nn.TransformerEncoder(Odd(24, 4, 32, batch_first=True), 1), "its layer is a Odd"),
        (lambda: huggingface("ViTMSNModel"), "of transformers, ViTModel, "),
    ],
)
def test_what_is_not_supported_is_said_by_name(model, reason):
    with pytest.raises(mhprobe.UserError, match=reason) as error:
        mhprobe.attach(model())
    assert "\n" not in str(error.value)


class Odd(nn.TransformerEncoderLayer):
    pass


def encoder_of(**settings):
    return nn.TransformerEncoder(
        nn.TransformerEncoderLayer(24, 4, 32, **settings), 1, enable_nested_tensor=False
    )


class Mine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = tiny_vit(num_classes=0), nn.Linear(24, 5)

    def forward(self, images):
        return self.head(self.backbone(images))


def test_a_backbone_inside_your_own_module_is_found():
    model = Mine().eval()
    gates = mhprobe.attach(model)
    assert gates is mhprobe.attach(model.backbone) and gates.layout.num_heads == 6
    found = mhprobe.measure(model, [(images(), labels_for(4))], [mhprobe.measures.GateImportance])
    assert found["gate_importance"].min() > 0


def test_a_compiled_model_is_looked_into_and_obeys():
    model = tiny_vit()
    gates = mhprobe.attach(model)
    compiled = torch.compile(model, backend="eager")
    assert mhprobe.attach(compiled) is gates
    plain = mhprobe.record(model, images(), labels_for(4))
    torch.testing.assert_close(mhprobe.record(compiled, images(), labels_for(4)).grad, plain.grad)
    with torch.no_grad(), gates.masked(gates.layout.mask([0])):
        torch.testing.assert_close(compiled(images()), model(images()))


def test_gates_that_come_or_go_after_a_model_was_compiled_and_run_are_obeyed():
    model = tiny_vit()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        whole = compiled(images())
        gates = mhprobe.attach(model)
        with gates.masked([0, 1, 2]):
            masked = compiled(images())
            torch.testing.assert_close(masked, model(images()))
        gates.values[:3] = 0
        mhprobe.detach(model)
        torch.testing.assert_close(compiled(images()), whole)
    assert (masked - whole).abs().max() > 1e-4


def test_a_model_in_bfloat16_is_measured():
    model = tiny_vit().bfloat16()
    found = mhprobe.measure(
        model, [(images().bfloat16(), labels_for(4))], [mhprobe.measures.GateImportance]
    )
    assert found["gate_importance"].isfinite().all()
    with pytest.raises(
        mhprobe.UserError,
        match=r"images are float32, the model is bfloat16.*\.to\(torch\.bfloat16\)",
    ):
        mhprobe.measure(model, [(images(), labels_for(4))], [mhprobe.measures.GateImportance])


def test_data_parallel_is_told_what_to_pass():
    model = nn.DataParallel(tiny_vit())
    mhprobe.attach(model)
    with pytest.raises(mhprobe.UserError, match=r"pass model\.module"):
        mhprobe.record(model, images(), labels_for(4))


def test_torchvision_s_swin_is_told_another_size_of_images():
    from torchvision.models import SwinTransformer

    model = SwinTransformer([2, 2], 12, [2, 2], [2, 3], [4, 4], num_classes=5).eval()
    images = torch.randn(2, 3, 32, 32)
    mhprobe.attach(model)
    with pytest.raises(
        mhprobe.UserError,
        match=r"torchvision's Swin: detach, set model\.image_size = .*attach again",
    ):
        mhprobe.record(model, images, needs={"attn"})
    mhprobe.detach(model)
    model.image_size = 32
    mhprobe.attach(model)
    assert mhprobe.record(model, images, needs={"attn"}).z[0].shape[:2] == (2, 16 * 16)


def test_a_name_of_the_hub_is_told_from_a_name_of_timm():
    with pytest.raises(
        UserError, match=r"'google/vit'; expected hf-hub:google/vit .*mhprobe\[transformers\]"
    ):
        build("google/vit")
    with pytest.raises(UserError, match=r"'vit_of_nobody'; close: convit"):
        build("vit_of_nobody")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("vit_smal_patch16_224", "vit_small_patch16_224"),
        ("swin_tny_patch4_window7_224", "swin_tiny_patch4_window7_224"),
        ("deit_small_patch16_225", "deit_small_patch16_224"),
        ("VIT_small_patch16_224.augreg_in1k", "vit_small_patch16_224"),
    ],
)
def test_a_misspelt_name_of_timm_is_answered_with_the_nearest(typed, meant):
    with pytest.raises(UserError, match=rf"has no model '{typed}'; did you mean {meant}\?$"):
        build(typed)


def test_a_misspelt_training_of_timm_is_answered_with_the_nearest():
    with pytest.raises(
        UserError,
        match=r"no weights 'augreg_in2k' of vit_base_patch16_224; did you mean augreg_in21k\? it has",
    ):
        build("vit_base_patch16_224.augreg_in2k")


SMALL = dict(
    hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32, patch_size=4
)
ONE_ROW = dict(depth=2, hidden_size=24, num_heads=3, intermediate_size=32, out_hidden_size=24)
DECODER = dict(
    decoder_hidden_size=24,
    decoder_num_attention_heads=3,
    decoder_num_hidden_layers=1,
    decoder_intermediate_size=32,
)
REFUSED_TOWERS = {
    "ViTMAEModel": ("vit_mae", "ViTMAEConfig", {**SMALL, **DECODER, "image_size": 16}),
    "Siglip2VisionModel": ("siglip2", "Siglip2VisionConfig", {**SMALL, "num_patches": 16}),
    "Qwen2_5_VisionTransformerPretrainedModel": ("qwen2_5_vl", "Qwen2_5_VLVisionConfig", ONE_ROW),
    "Qwen3VLVisionModel": (
        "qwen3_vl",
        "Qwen3VLVisionConfig",
        {**ONE_ROW, "deepstack_visual_indexes": [0]},
    ),
    "VJEPA2Model": (
        "vjepa2",
        "VJEPA2Config",
        dict(
            **dict(patch_size=4, crop_size=16, frames_per_clip=2, hidden_size=24),
            **dict(num_hidden_layers=2, num_attention_heads=3),
            **dict(pred_hidden_size=24, pred_num_attention_heads=3, pred_num_hidden_layers=1),
        ),
    ),
}


@pytest.mark.parametrize("name", REFUSED_TOWERS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_tower_whose_tokens_have_no_fixed_place_is_refused_by_name_and_reason(name, inside):
    pytest.importorskip("transformers")
    package, config, settings = REFUSED_TOWERS[name]
    where = f"transformers.models.{package}"
    made = getattr(importlib.import_module(f"{where}.configuration_{package}"), config)(**settings)
    tower = getattr(importlib.import_module(f"{where}.modeling_{package}"), name)(made)
    model = nn.Sequential(tower) if inside else tower
    with pytest.raises(UserError, match=f"^{name}: mhprobe does not find its heads: it ") as error:
        mhprobe.attach(model)
    assert "\n" not in str(error.value)


def test_weights_of_a_refused_vitmae_are_those_of_a_vit():
    transformers = pytest.importorskip("transformers")
    settings = {**SMALL, "image_size": 16}
    torch.manual_seed(0)
    mae = transformers.ViTMAEModel(transformers.ViTMAEConfig(**settings, **DECODER))
    vit = transformers.ViTModel(transformers.ViTConfig(**settings), add_pooling_layer=False).eval()
    vit.load_state_dict(mae.state_dict())
    assert mhprobe.attach(vit).layout.num_heads == 6
    assert mhprobe.record(vit, torch.randn(2, 3, 16, 16), needs={"rows"}).z[0].shape[:2] == (2, 17)


def test_a_whole_vision_language_model_is_probed_by_its_tower():
    transformers = pytest.importorskip("transformers")
    sizes = {name: value for name, value in SMALL.items() if name != "patch_size"}
    made = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**SMALL, image_size=16),
        text_config=transformers.LlamaConfig(vocab_size=32, num_key_value_heads=3, **sizes),
    )
    torch.manual_seed(0)
    whole = transformers.LlavaForConditionalGeneration(made).eval()
    layout = mhprobe.attach(whole).layout
    tower = whole.model.vision_tower
    assert layout == mhprobe.attach(tower).layout and layout.num_heads == 6
    seen = mhprobe.attention(tower, torch.randn(2, 3, 16, 16), query="class")
    assert seen.shape == (2, 6, 4, 4) and seen.std() > 0


@pytest.mark.parametrize("name", ["CLIPVision", "SiglipVision"])
def test_rows_of_a_tower_under_sdpa_are_the_weights_that_it_shows_when_eager(name):
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, f"{name}Config")(**SMALL, image_size=16)
    torch.manual_seed(0)
    tower = getattr(transformers, f"{name}Model")(made).eval()
    assert tower.config._attn_implementation == "sdpa"
    images = torch.randn(2, 3, 16, 16)
    seen = mhprobe.attention(tower, images, query=(1, 2))
    tower.set_attn_implementation("eager")
    with torch.no_grad():
        shown = tower(images, output_attentions=True).attentions
    prefix = shown[0].shape[-1] - 16
    rows = torch.cat([weights[:, :, prefix + 6, prefix:] for weights in shown], 1)
    torch.testing.assert_close(seen.flatten(2), rows, rtol=1e-5, atol=1e-7)
    assert rows.std() > 1e-5


def test_a_timm_model_in_transformers_wrapper_keeps_fused_attention():
    transformers = pytest.importorskip("transformers")
    made = transformers.TimmWrapperConfig(
        architecture="vit_tiny_patch16_224", model_args={"img_size": 32, "depth": 2}
    )
    torch.manual_seed(0)
    whole = transformers.TimmWrapperModel(made).eval()
    inner, images = whole.timm_model, torch.randn(2, 3, 32, 32)
    assert all(block.attn.fused_attn for block in inner.blocks)
    with torch.no_grad():
        before = whole(images).last_hidden_state
    seen = mhprobe.attention(whole, images, query="class")
    assert seen.shape == (2, 6, 2, 2)
    torch.testing.assert_close(seen, mhprobe.attention(inner, images, query="class"))
    assert all(block.attn.fused_attn for block in inner.blocks)
    with torch.no_grad():
        assert torch.equal(whole(images).last_hidden_state, before)
