"""Save a timm model that was made, pruned or tuned in Python, for ``mhprobe.load`` and ``load_pruned``.

The JSON beside the weights says how to build the network again. A network does not remember with
which arguments it was built, and Python can change it afterwards: pooling, activations, norms. So
its sizes are read from its modules, the file is loaded again, and both must give the same outputs.
"""

import copy
import inspect
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import to_2tuple
from timm.models import is_model_pretrained
from torch import Tensor, nn

from mhprobe.backbones import backbone_of, channels_of, layout_of, refuse_no_model, unwrapped
from mhprobe.errors import UserError, first_line, quoted, refuse_misfits, refusing, short
from mhprobe.recording.outputs import logits_of
from mhprobe.weights.checkpoint import load_weights, save_weights
from mhprobe.weights.description import checked, for_timm
from mhprobe.weights.normalisation import seen_by

FILE = "model.safetensors"
TRIED = 2  # random images on which a saved network must give what it gave
ACTIVATIONS = {
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "QuickGELU": "quick_gelu",
    "ReLU": "relu",
    "ReLU6": "relu6",
    "SiLU": "silu",
    "Swish": "swish",
    "Mish": "mish",
    "ELU": "elu",
    "LeakyReLU": "leaky_relu",
    "Hardswish": "hard_swish",
    "HardSwish": "hard_swish",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
}


def save(
    model: nn.Module,
    path: str | Path,
    *,
    backbone: dict[str, Any] | None = None,
    class_names: list[str] | None = None,
    made: dict[str, Any] | None = None,
) -> Path:
    """Write a timm model as ``path`` (.safetensors) and the JSON beside it; return the file.

    ``mhprobe.load`` and every command's ``weights=`` read the pair; ``load_pruned`` too, if heads
    were removed. Gates that are not 1 are kept.

    model: of timm, pruned or not, with weights of any training. path: a .safetensors file, or a
    folder, which gets a model.safetensors.
    backbone: the arguments of ``timm.create_model`` with ``name``; None reads them from the model.
    class_names: of the logits; None: their numbers. made: plain values for readers of the JSON.
    Raises UserError for a model that is not timm's, and for one that, loaded again, gives other
    outputs on random images; then nothing is written.

    >>> import mhprobe, tempfile
    >>> size = dict(img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=3)
    >>> model = timm.create_model("vit_tiny_patch16_224", **size).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save(mhprobe.prune_heads(model, [(0, 0)]), folder)
    ...     small = mhprobe.load_pruned(file)
    >>> [block.attn.num_heads for block in small.blocks]
    [2, 3]
    """
    given = {"path": path, "backbone": backbone, "class_names": class_names, "made": made}
    refuse_misfits(save, given, "save")
    refuse_no_model("save", model)
    unwritable = f"save: {short(str(path), 100)} cannot be written"
    kinds = (OSError, ValueError, RuntimeError)  # a full disk, a name that is none, no such user
    with refusing(lambda error: f"{unwritable} ({first_line(error)}).", kinds):
        place = Path(path).expanduser()
    if place.suffix not in ("", ".safetensors"):
        raise UserError(
            f"save: path: expected a .safetensors file or a folder, got {quoted(str(path))}."
        )
    file = place if place.suffix else place / FILE
    about = {key: value for key, value in given.items() if value is not None and key != "path"}
    description = described(model, about, "save")
    with refusing(lambda error: f"{unwritable} ({first_line(error)}).", kinds):
        file.parent.mkdir(parents=True, exist_ok=True)
        save_weights(_of_timm(model, "save"), file, description)
    return file


def described(model: nn.Module, about: dict[str, Any], where: str) -> dict[str, Any]:
    """Describe a model in memory so that it can be built again.

    about: what the user says of it. where: the function that was called, for errors. Raises
    UserError if no description gives a model of the same outputs.
    """
    inner: Any = _of_timm(model, where)
    spec, _ = seen_by(inner, None, None, where)
    shared = {
        "class_names": [str(number) for number in range(getattr(inner, "num_classes", 0) or 0)],
        "data": "unknown",
        "input": {key: list(value) for key, value in spec.items()},
    }
    if kept := getattr(inner, "kept_heads", None):
        shared |= {"kept": kept, "proj_bias": "keep"}
    if chosen_by := getattr(inner, "chosen_by", None):  # of a loaded file
        shared["chosen_by"] = chosen_by
    shared |= about
    reasons = []
    for backbone in [about["backbone"]] if "backbone" in about else _guesses(inner):
        description = {**shared, "backbone": backbone}
        try:
            description["timm"] = for_timm(description)
            checked(description, Path(where))
            _compare(model, description, where)
            return description
        except UserError as error:
            reasons.append(str(error).removeprefix("weights: "))
    raise UserError(
        f"{where}: the model cannot be built again from a description ({reasons[-1].rstrip('.')}); "
        "give its arguments: backbone=dict(name=..., img_size=...), as timm.create_model had them. "
        "If something was changed afterwards, keep it with torch.save(model.state_dict(), file)."
    )


def _of_timm(model: nn.Module, where: str) -> nn.Module:
    """The model of timm, out of torch.compile. UserError for others, and for modules around one."""
    inner = unwrapped(model)
    backbone = backbone_of(inner)
    name = type(inner).__name__
    if backbone is not inner:
        held = next(key for key, part in inner.named_modules() if part is backbone)
        raise UserError(
            f"{where}: model: {name} holds a {type(backbone).__name__} and may hold more, which the "
            f"file could not; give model.{held}, and keep the rest with torch.save."
        )
    config = getattr(inner, "pretrained_cfg", None) or {}
    if not timm.is_model(str(config.get("architecture"))):
        raise UserError(
            f"{where}: model: expected one that timm.create_model made, got {type(inner).__module__}."
            f"{name}. Save it by its own library (save_pretrained, torch.save)."
        )
    return inner


def _guesses(model: Any) -> Iterator[dict[str, Any]]:
    """Arguments that may have built the model, the shortest first."""
    config = model.pretrained_cfg
    name = config["architecture"]
    tagged = f"{name}.{config.get('tag')}"
    tagged = tagged if is_model_pretrained(tagged) else name  # the tag may say the size of images
    size = next((part.img_size for part in model.modules() if hasattr(part, "img_size")), None)
    yield {"name": tagged}
    if size is not None:
        yield {"name": tagged, "img_size": list(to_2tuple(size))}
    settings = _settings(model)
    # an MLP that lost neurons everywhere does not tell its width, nor an activation of another name
    for unknown in (set[str](), {"mlp_ratio"}, {"act_layer"}, {"mlp_ratio", "act_layer"}):
        if unknown <= settings.keys():
            yield {
                "name": name,
                **{key: one for key, one in settings.items() if key not in unknown},
            }


def _settings(model: Any) -> dict[str, Any]:
    """Sizes and switches of a ViT or a Swin of timm, as its modules have them."""
    embed, found = getattr(model, "patch_embed", None), dict[str, Any]()
    for key in ("img_size", "patch_size"):
        if getattr(embed, key, None) is not None:
            found[key] = list(to_2tuple(getattr(embed, key)))
    if (channels := channels_of(model)) != 3:
        found["in_chans"] = channels
    found |= _of_stages(model) if hasattr(model, "layers") else _of_blocks(model)
    if isinstance(pooling := getattr(model, "global_pool", None), str):
        found["global_pool"] = pooling
    elif isinstance(
        pooling := getattr(getattr(model, "head", None), "global_pool", None), nn.Module
    ):
        found["global_pool"] = getattr(pooling, "pool_type", "avg")
    mlps = [part for name, part in model.named_modules() if name.endswith("mlp")]
    acts = {type(part.act).__name__ for part in mlps if hasattr(part, "act")}
    if len(acts) == 1 and (act := ACTIVATIONS.get(next(iter(acts)))):
        found["act_layer"] = act
    taken = {*inspect.signature(type(model)).parameters}
    return {key: value for key, value in found.items() if key in taken}


def _of_blocks(model: Any) -> dict[str, Any]:
    """Sizes of a network whose blocks are alike."""
    blocks = list(getattr(model, "blocks", ()))
    width = getattr(model, "embed_dim", None)
    if not blocks or not isinstance(width, int):
        return {}
    first = blocks[0]
    found: dict[str, Any] = {"embed_dim": width, "depth": len(blocks)}
    if head := _head_width(model):
        found["num_heads"] = width // head
    hidden = [part for block in blocks if (part := _hidden(block))]
    if hidden:
        found["mlp_ratio"] = max(hidden) / width
    scales = [getattr(block, "ls1", None) for block in blocks]
    if scales and hasattr(scales[0], "gamma"):
        found["init_values"] = 1e-5  # the weights have what was learned
    attention: Any = getattr(first, "attn", None)
    if getattr(attention, "qkv", None) is not None:
        found["qkv_bias"] = attention.qkv.bias is not None
    found["qk_norm"] = not isinstance(getattr(attention, "q_norm", nn.Identity()), nn.Identity)
    found["class_token"] = getattr(model, "cls_token", None) is not None
    tokens = getattr(model, "reg_token", None)
    found["reg_tokens"] = 0 if tokens is None else tokens.shape[1]
    found["no_embed_class"] = bool(getattr(model, "no_embed_class", False))
    found["pre_norm"] = not isinstance(getattr(model, "norm_pre", nn.Identity()), nn.Identity)
    found["fc_norm"] = not isinstance(getattr(model, "fc_norm", nn.Identity()), nn.Identity)
    found["final_norm"] = (
        not isinstance(getattr(model, "norm", nn.Identity()), nn.Identity) or (found["fc_norm"])
    )
    if getattr(model, "pos_embed", None) is None:
        found["pos_embed"] = "none"
    return found


def _of_stages(model: Any) -> dict[str, Any]:
    """Sizes of a Swin."""
    stages = [list(getattr(stage, "blocks", ())) for stage in model.layers]
    if not all(stages) or not hasattr(model, "embed_dim"):
        return {}
    width = model.embed_dim
    found: dict[str, Any] = {"embed_dim": width, "depths": [len(blocks) for blocks in stages]}
    windows = {to_2tuple(block.window_size) for blocks in stages for block in blocks}
    found["window_size"] = [max(one[axis] for one in windows) for axis in (0, 1)]
    if head := _head_width(model):
        found["num_heads"] = [width * 2**stage // head for stage in range(len(stages))]
    hidden = [part for block in stages[0] if (part := _hidden(block))]
    if hidden:
        found["mlp_ratio"] = max(hidden) / width
    return found


def _head_width(model: nn.Module) -> int:
    """Channels of a head, which pruning does not change; 0 where heads differ."""
    widths = {site.head_dim for site in layout_of(model, {"head"}).sites}
    return widths.pop() if len(widths) == 1 else 0


def _hidden(block: Any) -> int:
    return int(getattr(getattr(getattr(block, "mlp", None), "fc1", None), "out_features", 0))


def _compare(model: nn.Module, description: dict[str, Any], where: str) -> None:
    """Write the model, load it again, and run both. UserError where it does not load, or outputs differ."""
    inner = _of_timm(model, where)
    with tempfile.TemporaryDirectory(prefix="mhprobe_") as folder:
        pair = Path(folder) / FILE
        save_weights(inner, pair, description)
        again, _ = load_weights(pair)
    mine, theirs = (_outputs(one, description, channels_of(inner)) for one in (inner, again))
    if mine.shape != theirs.shape or not torch.allclose(mine, theirs, rtol=1e-3, atol=1e-4):
        apart = float((mine - theirs).abs().max()) if mine.shape == theirs.shape else float("nan")
        raise UserError(
            f"loaded again it gives other outputs on random images, apart by {apart:.3g}: an "
            "activation, a norm, a hook or the pooling was changed by hand"
        )


@torch.no_grad()
def _outputs(model: nn.Module, description: dict[str, Any], channels: int) -> Tensor:
    """(B, C) outputs of a copy of the model in float32 on random images."""
    alike = copy.deepcopy(model).cpu().float().eval()
    generator = torch.Generator().manual_seed(0)
    height, width = description["input"]["size"]
    outputs = alike(torch.randn(TRIED, channels, height, width, generator=generator))
    return logits_of(outputs, alike)
