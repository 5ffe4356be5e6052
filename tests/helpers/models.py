"""Tiny members of the supported families, for tests: real timm code, seconds-fast."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from packaging.version import Version
from torch import nn

from mhprobe.backbones import input_spec


def make_loud(model: nn.Module, std: float) -> None:
    """Weights so large that each head matters, in place: heads of a fresh timm model are nearly silent."""
    for number, parameter in enumerate(model.parameters()):
        nn.init.normal_(parameter, std=std, generator=torch.Generator().manual_seed(number))


def tiny_vit(seed: int = 0, **kwargs) -> nn.Module:
    torch.manual_seed(seed)
    settings = dict(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    return timm.create_model("vit_tiny_patch16_224", **{**settings, **kwargs}).eval()


def tuned_vits() -> tuple[nn.Module, nn.Module]:
    """A backbone, and the same where head 1 of block 1 reads other values and looks wider."""
    before = tiny_vit(num_classes=0)
    make_loud(before, 0.5)
    after = copy.deepcopy(before)
    width = after.blocks[1].attn.head_dim
    with torch.no_grad():
        qkv = after.blocks[1].attn.qkv.weight.unflatten(0, (3, -1, width))
        qkv[0, 1] *= 0.1
        qkv[2, 1] = torch.randn(width, qkv.shape[-1], generator=torch.Generator().manual_seed(3))
    return before, after


def tiny_registers(seed: int = 0) -> nn.Module:
    return tiny_vit(seed, reg_tokens=2, qk_norm=True, init_values=1e-1, global_pool="avg")


def tiny_swin(seed: int = 0, **kwargs) -> nn.Module:
    """Ragged heads, shifted windows, and a grid (9, then 5) that is no multiple of the window."""
    torch.manual_seed(seed)
    settings = dict(
        img_size=18,
        patch_size=2,
        window_size=4,
        embed_dim=12,
        depths=(2, 2),
        num_heads=(2, 3),
        num_classes=5,
    )
    model = timm.create_model("swin_tiny_patch4_window7_224", **{**settings, **kwargs}).eval()
    _note_grids(model)
    return model


def _note_grids(model: nn.Module) -> None:
    """Let each block note the grid that it computes on.

    Before 1.0.31 timm notes 4 where it merges 9, and computes on 5.
    """
    if Version(timm.__version__) >= Version("1.0.31"):
        return
    height, width = model.patch_embed.grid_size
    for number, layer in enumerate(model.layers):
        if number:
            height, width = -(-height // 2), -(-width // 2)
        for block in layer.blocks:
            block.input_resolution = (height, width)


def needs_timm(version: str, what: str, verb: str = "make") -> None:
    """Skip a test, by name, whose network this timm cannot make. what: follows "timm cannot make"."""
    if Version(timm.__version__) < Version(version):
        reason = f"timm {timm.__version__} cannot {verb} {what}; {version} can"
        pytest.skip(reason, allow_module_level=True)


def tiny_eva(seed: int = 0, name: str = "vit_small_patch16_dinov3", **kwargs) -> nn.Module:
    """DINOv3: EvaAttention, registers, layer scale, rotary positions that hang on the size of the image."""
    torch.manual_seed(seed)
    settings = dict(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    return timm.create_model(name, **{**settings, **kwargs}).eval()


def tiny_rope(seed: int = 0, **kwargs) -> nn.Module:
    return tiny_eva(seed, "vit_small_patch16_rope_224", **kwargs)


def tiny_grouped() -> nn.Module:
    """Four heads that share two keys and values."""
    needs_timm("1.0.30", "an EVA whose heads share keys and values")
    return tiny_rope(qkv_fused=False, embed_dim=32, num_heads=4, num_kv_heads=2)


def tiny_apart() -> nn.Module:
    """Queries, keys and values of layers of their own, with norms of queries and keys."""
    needs_timm("1.0.30", "an EVA with norms of queries and keys")
    return tiny_rope(qkv_fused=False, qk_norm=True)


def tiny_tokens(name: str, **kwargs) -> nn.Module:
    """Of another family of timm's that takes the settings of its ViTs."""
    return tiny_eva(0, name, **kwargs)


def tiny_deit() -> nn.Module:
    """A distilled DeiT: two tokens in front of the patches, whose two classifiers are averaged."""
    return tiny_tokens("deit_tiny_distilled_patch16_224")


def tiny_swinv2(seed: int = 0) -> nn.Module:
    """As for Swin v1: ragged, shifted, padded."""
    needs_timm("1.0.31", "a Swin v2 whose grid is no multiple of its window")
    torch.manual_seed(seed)
    settings = dict(
        img_size=18, patch_size=2, window_size=4, embed_dim=12, depths=(2, 2), num_heads=(2, 3)
    )
    return timm.create_model("swinv2_tiny_window8_256", num_classes=5, **settings).eval()


def torchvision_vit(seed: int = 0) -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    torch.manual_seed(seed)
    settings = dict(
        image_size=16,
        patch_size=4,
        num_layers=2,
        num_heads=4,
        hidden_dim=24,
        mlp_dim=32,
        num_classes=5,
    )
    return VisionTransformer(**settings).eval()


def torchvision_swin(seed: int = 0, v2: bool = False) -> nn.Module:
    """Ragged, shifted, and on images of 36 x 36 padded: grids of 18 and 9 in windows of 4."""
    from torchvision.models import swin_transformer as module

    torch.manual_seed(seed)
    settings = dict(
        patch_size=[2, 2], embed_dim=12, depths=[2, 2], num_heads=[2, 3], window_size=[4, 4]
    )
    if v2:
        settings |= dict(
            block=module.SwinTransformerBlockV2, downsample_layer=module.PatchMergingV2
        )
    model = module.SwinTransformer(**settings, stochastic_depth_prob=0.0, num_classes=5)
    model.image_size = 36
    return model.eval()


def encoder(seed: int = 0, norm_first: bool = True) -> nn.Module:
    """torch's own, alone: it takes embedded tokens (B, 7, 24)."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(
        24, 4, 32, dropout=0.0, batch_first=True, norm_first=norm_first
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    model.takes = (7, 24)
    return model


def huggingface(name: str, seed: int = 0, **settings) -> nn.Module:
    """A tiny model of a class of transformers, with random weights."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    torch.manual_seed(seed)
    kind = getattr(transformers, name)
    sizes = (
        dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32)
        | settings
    )
    images = (
        dict(image_size=16, patch_size=4)
        if kind.main_input_name == "pixel_values"
        else dict(vocab_size=11)
    )
    return kind(kind.config_class(**sizes, **images)).eval()


def huggingface_swin(seed: int = 0, **settings) -> nn.Module:
    """Ragged, shifted, and padded: grids of 9 and 5 in windows of 4."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    torch.manual_seed(seed)
    sizes = dict(
        image_size=18, patch_size=2, embed_dim=12, depths=[2, 2], num_heads=[2, 3], window_size=4
    )
    model = transformers.SwinModel(
        transformers.SwinConfig(**sizes, drop_path_rate=0.0, **settings)
    ).eval()
    model.takes = (3, 18, 18)
    return model


def text(name: str) -> nn.Module:
    """An encoder of text, of 7 tokens of 11 words."""
    model = huggingface(name, max_position_embeddings=16)
    model.words = 11
    model.takes = (7,)
    return model


BUILDERS = {"vit": tiny_vit, "vit_registers": tiny_registers, "swin": tiny_swin}
# of every family what differs in how it is written: tests/library/contracts/test_backbones.py holds for all
# of them
TWINS = {
    **BUILDERS,
    "eva": tiny_eva,
    "eva_rope": tiny_rope,
    "eva_mixed": lambda: tiny_eva(name="vit_small_patch16_rope_mixed_224"),
    "eva_apart": tiny_apart,
    "swinv2": tiny_swinv2,
    "beit": lambda: tiny_tokens(
        "beit_base_patch16_224"
    ),  # a table of positions in each block, layer scale
    "beit_shared": lambda: tiny_tokens(
        "beit_base_patch16_224", use_rel_pos_bias=False, use_shared_rel_pos_bias=True
    ),
    "relpos": lambda: tiny_tokens(
        "vit_relpos_small_patch16_224", init_values=0.5, class_token=True
    ),
    "relpos_shared": lambda: tiny_tokens("vit_srelpos_small_patch16_224", init_values=0.5),
    "relpos_behind": lambda: tiny_tokens("vit_relpos_small_patch16_rpn_224"),
    "torchvision_vit": torchvision_vit,
    "torchvision_swin": torchvision_swin,
    "torchvision_swin_v2": lambda: torchvision_swin(v2=True),
    "encoder": encoder,
    "encoder_behind": lambda: encoder(norm_first=False),
    "hf_vit": lambda: huggingface("ViTModel"),
    "hf_deit": lambda: huggingface("DeiTModel", attn_implementation="eager"),
    "hf_beit": lambda: huggingface(
        "BeitModel", use_relative_position_bias=True, layer_scale_init_value=0.5
    ),
    "hf_dinov2": lambda: huggingface("Dinov2Model"),
    "hf_registers": lambda: huggingface("Dinov2WithRegistersModel", num_register_tokens=2),
    "hf_dinov3": lambda: huggingface(
        "DINOv3ViTModel", num_register_tokens=2, num_attention_heads=2
    ),
    "hf_clip": lambda: huggingface("CLIPVisionModel"),
    "hf_siglip": lambda: huggingface("SiglipVisionModel"),
    "hf_swin": huggingface_swin,
    "hf_swin_eager": lambda: huggingface_swin(attn_implementation="eager"),
    "bert": lambda: text("BertModel"),
    "roberta": lambda: text("RobertaModel"),
}


def images_for(
    model: nn.Module, count: int, seed: int = 1, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    shape = model.takes if hasattr(model, "takes") else (3, *(size or input_spec(model)["size"]))
    if hasattr(model, "words"):
        return torch.randint(2, model.words, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator).to(dtype)


def labels_for(count: int, seed: int = 2, num_classes: int = 5) -> torch.Tensor:
    return torch.randint(0, num_classes, (count,), generator=torch.Generator().manual_seed(seed))
