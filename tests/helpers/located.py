"""Tiny members of timm's families whose attention is found by class: real timm code, random weights."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn


def timm_class(path: str, size: int, *args: Any, **settings: Any) -> nn.Module:
    """An instance of one of timm's classes for images of size x size; cfg=: (its class, its settings)."""
    module, _, name = path.rpartition(".")
    found = pytest.importorskip(
        f"timm.models.{module}", reason=f"timm {timm.__version__} has no {module}"
    )
    torch.manual_seed(0)
    if cfg := settings.pop("cfg", None):
        kind, values = cfg
        parts = {
            key: getattr(found, each[0])(**each[1]) if is_cfg(each) else each
            for key, each in values.items()
        }
        args = (getattr(found, kind)(**parts),)
    model = getattr(found, name)(*args, **settings)
    model.pretrained_cfg = {"input_size": (3, size, size), "mean": (0.5,) * 3, "std": (0.5,) * 3}
    model.takes = (3, size, size)
    return model.eval()


def is_cfg(value: Any) -> bool:
    return isinstance(value, tuple) and isinstance(value[0], str) and value[0].endswith("Cfg")


def maxxvit(block: Any, size: int = 32, **transformer: Any) -> nn.Module:
    settings = dict(
        dim_head=4, partition_ratio=8, window_size=(2, 2), grid_size=(2, 2), rel_pos_type="bias"
    )
    values = dict(embed_dim=(8, 12), depths=(1, 1), block_type=("C", block), stem_width=8)
    values["transformer_cfg"] = ("MaxxVitTransformerCfg", settings | transformer)
    return timm_class(
        "maxxvit.MaxxVit", size, cfg=("MaxxVitCfg", values), img_size=size, num_classes=5
    )


def build(path: str, size: int, *args: Any, **settings: Any) -> Any:
    return lambda: timm_class(path, size, *args, **{"num_classes": 5, **settings})


def swinv2_cr() -> nn.Module:
    if tuple(map(int, timm.__version__.split(".")[:3])) < (1, 0, 30):
        pytest.skip(f"timm {timm.__version__} cannot build one whose windows do not tile its grid")
    settings = dict(img_size=(36, 36), patch_size=4, window_size=4, depths=(2, 2), num_classes=5)
    return timm_class(
        "swin_transformer_v2_cr.SwinTransformerV2Cr",
        36,
        embed_dim=12,
        num_heads=(2, 3),
        init_values=0.5,
        **settings,
    )


def metaformer() -> nn.Module:
    from timm.layers import LayerNorm, LayerNorm2d
    from timm.models.metaformer import Attention, Pooling

    settings = dict(
        token_mixers=[Pooling, Attention], norm_layers=[LayerNorm2d, LayerNorm], use_mlp_head=False
    )
    return timm_class(
        "metaformer.MetaFormer",
        32,
        depths=(1, 2),
        dims=(8, 64),
        num_classes=5,
        **settings,
        res_scale_init_values=(None, 1.0),
    )


def multi_query(path: str, **settings: Any) -> nn.Module:
    """A convolution, and multi-query attention with keys on a coarser grid and on the same."""
    from timm.models._efficientnet_builder import decode_arch_def

    blocks = [
        ["cn_r1_k3_s2_e1_c12"],
        ["mqa_r1_k3_h2_s2_d4_c12", "mqa_r1_k3_h3_s1_d4_c12", "uir_r1_a0_k0_s1_e1_c12"],
    ]
    return timm_class(
        path, 32, decode_arch_def(blocks), stem_size=8, layer_scale_init_value=0.5, **settings
    )


NAFLEX = dict(
    patch_size=4,
    embed_dim=12,
    depth=2,
    num_heads=3,
    class_token=True,
    reg_tokens=1,
    global_pool="avg",
)
TOKENS = dict(img_size=16, patch_size=4, embed_dim=12, depth=2, num_heads=3)

LOCATED = {
    "mobilenetv5": lambda: multi_query(
        "mobilenetv5.MobileNetV5", msfa_output_resolution=4, num_classes=5
    ),
    "mobilenetv4": lambda: multi_query("mobilenetv3.MobileNetV3", num_classes=5),
    "coatnet": lambda: maxxvit("T"),
    "coatnet_heads_behind": lambda: maxxvit("T", head_first=False, init_values=0.5),
    "maxvit": lambda: maxxvit("M"),
    "maxvit_first": lambda: maxxvit("M", use_nchw_attn=True, head_first=False, init_values=0.5),
    "maxvit_parallel": lambda: maxxvit("PM", dim_head=3),
    "xcit": build(
        "xcit.Xcit",
        16,
        img_size=16,
        patch_size=8,
        embed_dim=12,
        depth=2,
        num_heads=3,
        cls_attn_layers=1,
    ),
    "caformer": metaformer,
    "swinv2_cr": swinv2_cr,
    "naflexvit": build(
        "naflexvit.NaFlexVit", 16, cfg=("NaFlexVitCfg", NAFLEX | {"pos_embed_grid_size": (4, 4)})
    ),
    "naflexvit_rope": build(
        "naflexvit.NaFlexVit", 16, cfg=("NaFlexVitCfg", NAFLEX | {"rope_type": "axial"})
    ),
    "fastvit": build(
        "fastvit.FastVit",
        64,
        layers=(1, 2),
        token_mixers=("repmixer", "attention"),
        embed_dims=(32, 64),
        mlp_ratios=(1, 1),
        downsamples=(False, True),
        se_downsamples=(False, False),
        pos_embs=(None, None),
    ),
    "crossvit": build(
        "crossvit.CrossVit",
        32,
        img_size=32,
        patch_size=(4, 8),
        embed_dim=(12, 24),
        depth=((1, 2, 0),),
        num_heads=(3, 3),
        mlp_ratio=(1.0, 1.0, 1.0),
    ),
    "volo": build(
        "volo.VOLO",
        32,
        [1, 1],
        img_size=32,
        patch_size=8,
        stem_hidden_dim=8,
        embed_dims=[12, 24],
        num_heads=[3, 3],
        downsamples=(True, False),
        outlook_attention=(True, False),
        post_layers=("ca",),
        use_aux_head=False,
    ),
    "coat": build(
        "coat.CoaT",
        64,
        img_size=64,
        patch_size=4,
        embed_dims=(16, 16, 16, 16),
        serial_depths=(1, 1, 1, 1),
        num_heads=8,
        mlp_ratios=(1, 1, 1, 1),
    ),
    "davit": build(
        "davit.DaVit",
        36,
        depths=(1, 1),
        embed_dims=(12, 24),
        num_heads=(2, 3),
        window_size=4,
        mlp_ratio=1,
    ),
    "davit_channels_v2": build(
        "davit.DaVit",
        32,
        depths=(1, 1),
        embed_dims=(12, 24),
        num_heads=(2, 3),
        window_size=4,
        mlp_ratio=1,
        channel_attn_v2=True,
    ),
    "lowformer": build(
        "lowformer.LowFormer",
        64,
        [8, 8, 16, 32, 60],
        [0, 1, 1, 1, 1],
        head_widths=(16, 16),
        fused_conv=False,
    ),
    "cpubone": build(
        "cpubone.CPUBone", 64, [8, 8, 16, 32, 60], [0, 1, 1, 1, 1], head_widths=(16, 16)
    ),
    "mvitv2": build(
        "mvitv2.MultiScaleVit",
        32,
        img_size=(32, 32),
        cfg=(
            "MultiScaleVitCfg",
            dict(
                depths=(1, 1),
                embed_dim=8,
                num_heads=2,
                stride_q=((1, 1), (2, 2)),
                stride_kv_adaptive=(2, 2),
                use_cls_token=True,
            ),
        ),
    ),
    "pit": build(
        "pit.PoolingVisionTransformer",
        32,
        img_size=32,
        patch_size=8,
        stride=4,
        base_dims=(4, 4),
        depth=(1, 1),
        heads=(2, 4),
        mlp_ratio=1,
        distilled=True,
    ),
    "pvt_v2": build(
        "pvt_v2.PyramidVisionTransformerV2",
        32,
        depths=(1, 1, 1, 1),
        embed_dims=(8, 8, 12, 12),
        num_heads=(1, 2, 2, 3),
        sr_ratios=(4, 2, 1, 1),
        mlp_ratios=(1, 1, 1, 1),
    ),
    "pvt_v2_linear": build(
        "pvt_v2.PyramidVisionTransformerV2",
        32,
        depths=(1, 1, 1, 1),
        embed_dims=(8, 8, 12, 12),
        num_heads=(1, 2, 2, 3),
        mlp_ratios=(1, 1, 1, 1),
        linear=True,
    ),
    "qwen3": build(
        "qwen3_vit.Qwen3VitClassifier", 16, **TOKENS | {"embed_dim": 24}, pos_embed_grid_size=4
    ),
    "qwen3_encoder": lambda: timm_class(
        "qwen3_vit.Qwen3VitEncoder", 16, **TOKENS | {"embed_dim": 24}, pos_embed_grid_size=4
    ),
    "deepseek": build(
        "deepseek_vit.DeepseekVitClassifier", 16, **TOKENS | {"embed_dim": 24}, downsample_ratio=2
    ),
    "deepseek_encoder": lambda: timm_class(
        "deepseek_vit.DeepseekVitEncoder",
        16,
        **TOKENS | {"embed_dim": 24},
        downsample_ratio=2,
        out_features=8,
    ),
    "gemma4": build(
        "gemma4_vit.Gemma4VitClassifier",
        16,
        **TOKENS,
        head_dim=8,
        intermediate_size=16,
        position_embedding_size=16,
        pooling_kernel_size=2,
    ),
    "gemma4_encoder": lambda: timm_class(
        "gemma4_vit.Gemma4VitEncoder",
        16,
        **TOKENS,
        head_dim=8,
        intermediate_size=16,
        position_embedding_size=16,
        pooling_kernel_size=2,
    ),
    "twins": build(
        "twins.Twins",
        32,
        img_size=32,
        embed_dims=(8, 12),
        num_heads=(2, 3),
        mlp_ratios=(1, 1),
        depths=(2, 2),
        sr_ratios=(2, 1),
        wss=(3, 2),
    ),
    "edgenext": build(
        "edgenext.EdgeNeXt",
        64,
        dims=(8, 12, 16, 24),
        depths=(1, 2, 1, 1),
        heads=(4, 3, 4, 3),
        global_block_counts=(0, 1, 0, 1),
    ),
    "gcvit": build(
        "gcvit.GlobalContextVit",
        64,
        img_size=64,
        window_ratio=(8, 8),
        embed_dim=8,
        depths=(2, 2),
        num_heads=(2, 4),
        mlp_ratio=1.0,
        window_size=(4, 4),
    ),
    "hieradet": build(
        "hieradet_sam2.HieraDet",
        64,
        embed_dim=8,
        num_heads=1,
        q_pool=2,
        stages=(1, 2, 2),
        window_spec=(8, 4, 4),
        global_att_blocks=(4,),
        global_pos_size=(4, 4),
        head_init_scale=1.0,
    ),
    "tiny_vit": build(
        "tiny_vit.TinyVit",
        32,
        embed_dims=(8, 12, 24, 24),
        depths=(1, 1, 1, 1),
        num_heads=(2, 2, 3, 3),
        window_sizes=(2, 3, 2, 1),
        mlp_ratio=1,
        drop_path_rate=0.0,
    ),
    "sam": build(
        "vision_transformer_sam.VisionTransformerSAM",
        20,
        **TOKENS | {"img_size": 20},
        window_size=3,
        global_attn_indexes=(1,),
        use_rel_pos=True,
        neck_chans=8,
    ),
    "convit": build(
        "convit.ConVit", 16, **TOKENS | {"num_heads": 4, "embed_dim": 16}, local_up_to_layer=1
    ),
    "efficientformer": build(
        "efficientformer.EfficientFormer",
        224,
        depths=(1, 1, 1, 2),
        embed_dims=(8, 8, 8, 12),
        num_vit=1,
        mlp_ratios=1,
    ),
    "levit": build(
        "levit.LevitDistilled",
        64,
        img_size=64,
        embed_dim=(16, 24),
        key_dim=4,
        num_heads=(2, 3),
        depth=(1, 1),
    ),
    "levit_conv": build(
        "levit.Levit",
        64,
        img_size=64,
        embed_dim=(16, 24),
        key_dim=4,
        num_heads=(2, 3),
        depth=(1, 1),
        use_conv=True,
    ),
    "csatv2": build(
        "csatv2.CSATv2",
        64,
        dims=(8, 8, 12, 16),
        depths=(1, 1, 1, 2),
        transformer_depths=(0, 0, 1, 1),
    ),
    "nextvit": build(
        "nextvit.NextViT",
        64,
        3,
        stem_chs=(8, 8, 8),
        depths=(1, 1, 5, 1),
        strides=(1, 2, 2, 2),
        sr_ratios=(2, 2, 2, 1),
        drop_path_rate=0.0,
    ),
    "tnt": build(
        "tnt.TNT",
        32,
        img_size=32,
        patch_size=16,
        embed_dim=12,
        inner_dim=8,
        depth=2,
        num_heads_inner=2,
        num_heads_outer=3,
    ),
    "visformer": build(
        "visformer.Visformer",
        64,
        img_size=64,
        patch_size=16,
        init_channels=8,
        embed_dim=24,
        depth=(1, 1, 1),
        num_heads=3,
        attn_stage="011",
        spatial_conv="100",
        group=2,
    ),
}
