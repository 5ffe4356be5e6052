"""Recognise weights of another library's network by the names of its tensors."""

import re
from collections.abc import Iterable

# a name that only this network has; what it is, and what loads it
_KNOWN = (
    (
        r"(^|\.)encoder\.layers\.encoder_layer_\d+\.self_attention\.",
        "torchvision's VisionTransformer",
        "build it with torchvision.models (vit_b_16 ...), load_state_dict, and give that network to "
        "mhprobe.attach",
    ),
    (
        r"(^|\.)features\.\d+\.\d+\.attn\.(qkv|relative_position_bias_table)",
        "torchvision's SwinTransformer",
        "build it with torchvision.models (swin_t ...), load_state_dict, and give that network to "
        "mhprobe.attach",
    ),
    (
        r"(^|\.)(encoder|embeddings|vision_model|text_model|pooler|layernorm)\b.*"
        r"(attention\.(query|key|value|self\.query|attention\.query)|self_attn\.q_proj|"
        r"patch_embeddings\.projection|word_embeddings|attention\.self\.query)",
        "a network of transformers (Hugging Face)",
        "put its config.json beside it, load the folder with transformers "
        "(AutoModel.from_pretrained), and give that network to mhprobe.attach",
    ),
    (
        r"(^|\.)layer\.\d+\.(attention\.(q_proj|o_proj)|layer_scale1\.lambda1)",
        "a network of transformers (Hugging Face)",
        "put its config.json beside it, load the folder with transformers "
        "(AutoModel.from_pretrained), and give that network to mhprobe.attach",
    ),
    (
        r"(^|\.)layers\.\d+\.self_attn\.(in_proj_weight|out_proj\.weight)",
        "torch.nn.TransformerEncoder",
        "build that network, load_state_dict, and give it to mhprobe.attach",
    ),
    (
        r"(^|\.)resblocks\.\d+\.attn\.in_proj_weight",
        "CLIP of OpenAI or OpenCLIP",
        "take timm's name of it (vit_*_clip_*), whose loader translates it",
    ),
)


def other_library(names: Iterable[str]) -> str:
    """Return sentences on whose names these are and what loads them; "" for names that are not known."""
    every = list(names)
    for pattern, whose, how in _KNOWN:
        if any(re.search(pattern, name) for name in every):
            return f"It has the names of {whose}, not timm's: {how}."
    return ""
