"""Tiny members of the supported families, for tests: real timm code, seconds-fast."""

from __future__ import annotations

import timm
import torch
from torch import nn


def tiny_vit(seed: int = 0, **kwargs) -> nn.Module:
    torch.manual_seed(seed)
    settings = dict(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    return timm.create_model("vit_tiny_patch16_224", **{**settings, **kwargs}).eval()


def tiny_registers(seed: int = 0) -> nn.Module:
    return tiny_vit(seed, reg_tokens=2, qk_norm=True, init_values=1e-1, global_pool="avg")


def tiny_swin(seed: int = 0, **kwargs) -> nn.Module:
    """Ragged heads, shifted windows, and a grid (9, then 5) that is no multiple of the window."""
    torch.manual_seed(seed)
    settings = dict(
        img_size=18, patch_size=2, window_size=4, embed_dim=12, depths=(2, 2), num_heads=(2, 3), num_classes=5
    )
    return timm.create_model("swin_tiny_patch4_window7_224", **{**settings, **kwargs}).eval()


def tiny_eva(seed: int = 0, name: str = "vit_small_patch16_dinov3", **kwargs) -> nn.Module:
    """DINOv3: EvaAttention, registers, layer scale, rotary positions that hang on the size of the image."""
    torch.manual_seed(seed)
    settings = dict(img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5)
    return timm.create_model(name, **{**settings, **kwargs}).eval()


def tiny_rope(seed: int = 0, **kwargs) -> nn.Module:
    return tiny_eva(seed, "vit_small_patch16_rope_224", **kwargs)


def tiny_tokens(name: str, **kwargs) -> nn.Module:
    """Of another family of timm's that takes the settings of its ViTs."""
    return tiny_eva(0, name, **kwargs)


def tiny_swinv2(seed: int = 0) -> nn.Module:
    """As for Swin v1: ragged, shifted, padded."""
    torch.manual_seed(seed)
    settings = dict(img_size=18, patch_size=2, window_size=4, embed_dim=12, depths=(2, 2), num_heads=(2, 3))
    return timm.create_model("swinv2_tiny_window8_256", num_classes=5, **settings).eval()


BUILDERS = {"vit": tiny_vit, "vit_registers": tiny_registers, "swin": tiny_swin}
# of every family what differs in how it is written: tests/contracts/test_backbones.py holds for all of them
TWINS = {
    **BUILDERS,
    "eva": tiny_eva,
    "eva_rope": tiny_rope,
    "eva_mixed": lambda: tiny_eva(name="vit_small_patch16_rope_mixed_224"),
    "eva_apart": lambda: tiny_rope(qkv_fused=False, qk_norm=True),
    "swinv2": tiny_swinv2,
    "beit": lambda: tiny_tokens("beit_base_patch16_224"),  # a table of positions in each block, layer scale
    "beit_shared": lambda: tiny_tokens("beit_base_patch16_224", use_rel_pos_bias=False, use_shared_rel_pos_bias=True),
    "relpos": lambda: tiny_tokens("vit_relpos_small_patch16_224", init_values=0.5, class_token=True),
    "relpos_shared": lambda: tiny_tokens("vit_srelpos_small_patch16_224", init_values=0.5),
    "relpos_behind": lambda: tiny_tokens("vit_relpos_small_patch16_rpn_224"),
}


def images_for(model: nn.Module, count: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, *model.patch_embed.img_size, generator=generator).to(dtype)


def labels_for(count: int, seed: int = 2, num_classes: int = 5) -> torch.Tensor:
    return torch.randint(0, num_classes, (count,), generator=torch.Generator().manual_seed(seed))
