"""A ViT or a Swin whose blocks do nothing yet, and the means to write heads into it, block by block.

The residual stream is given a random orthonormal basis. Each of its directions stands for one feature: a texture, a
mark, a row of the grid, evidence for a class. A head that shall read a feature gets that direction in its W_Q, W_K or
W_V, one that shall write it gets it in W_O. All directions are at right angles to (1, ..., 1), so that LayerNorm
divides them by one number and does no more.

Shapes: C channels of the stream, D head width, T tokens, B images, K classes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import timm
import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, layout_of
from mhprobe.headbench import world
from mhprobe.headbench.world import CLASSES, FEATURES, GRID, NOISE, World

NAMES = (
    *(f"texture{k}" for k in range(CLASSES)),
    *(f"mark{k}" for k in range(CLASSES)),
    "landmark",
    *(f"noise{i}" for i in range(NOISE)),  # up to here: what pixels show
    *(f"evidence{k}" for k in range(CLASSES)),
    *(f"scratch{k}" for k in range(CLASSES)),
    "class_token",
    *(f"row{i}" for i in range(GRID)),
    *(f"column{i}" for i in range(GRID)),
)
TEXTURES, MARKS, EVIDENCE, SCRATCH, NOISES, ROWS, COLUMNS = (
    tuple(name for name in NAMES if name.rstrip("0123456789") == kind)
    for kind in ("texture", "mark", "evidence", "scratch", "noise", "row", "column")
)
FAMILIES = ("vit", "swin")
_CALIBRATION = 40


class Canvas:
    """model: a timm model in eval mode, all of whose blocks pass the stream on until heads are written.

    layout: of its heads. seen: the images that amplitudes are set on; no measure is shown them.
    """

    def __init__(self, family: str, seed: int) -> None:
        self.family, self.random = family, torch.Generator().manual_seed(1000 + seed)
        self.seed_of_seen = 77_000 + seed
        self.seen = world.draw(_CALIBRATION, self.seed_of_seen)
        self._streams: dict[int, tuple[Tensor, Tensor]] = {}
        self.model: Any = _vit() if family == "vit" else _swin()
        self.layout = layout_of(self.model)
        self.bases = [self._basis(width) for width in self._widths()]
        with torch.no_grad():
            self._silence()
            self._embed()
            self._read_out()

    # directions

    def site(self, number: int) -> Any:
        return self.layout.sites[number]

    def rows(self, site: int, names: Sequence[str]) -> Tensor:
        """(names, C) the directions of these features where the site stands."""
        return self.bases[self.site(site).stage][:, [NAMES.index(name) for name in names]].T

    def mixed(self, site: int, names: Sequence[str], count: int) -> Tensor:
        """(count, C) random directions among those of these features."""
        mix = torch.randn(count, len(names), generator=self.random)
        return nn.functional.normalize(mix, dim=1) @ self.rows(site, names)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self.random))

    # writing heads

    def attention(self, site: int) -> Any:
        return self.model.get_submodule(self.site(site).name)

    @torch.no_grad()
    def write(self, site: int, head: int, *, output: Tensor | None = None, **parts: Tensor) -> None:
        """Set what is given. query, key, value: (up to D, C). query_bias, key_bias, value_bias: (up to D,).

        output: (up to D, C), what each channel of the head writes.
        """
        attention, at = self.attention(site), self.site(site)
        start = head * at.head_dim
        for number, name in enumerate(("query", "key", "value")):
            first = number * at.channels + start
            if (weight := parts.get(name)) is not None:
                attention.qkv.weight[first : first + at.head_dim] = 0
                attention.qkv.weight[first : first + len(weight)] = weight
            if (bias := parts.get(f"{name}_bias")) is not None:
                attention.qkv.bias[first : first + at.head_dim] = 0
                attention.qkv.bias[first : first + len(bias)] = bias
        if output is not None:
            attention.proj.weight[:, start : start + at.head_dim] = 0
            attention.proj.weight[:, start : start + len(output)] = output.T

    @torch.no_grad()
    def parts(self, site: int, head: int) -> dict[str, Tensor]:
        """What ``write`` takes, as it is."""
        attention, at = self.attention(site), self.site(site)
        span = slice(head * at.head_dim, (head + 1) * at.head_dim)
        found = {"output": attention.proj.weight[:, span].T.clone()}
        for name, weight, bias in zip(
            ("query", "key", "value"), attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3), strict=True
        ):
            found |= {name: weight[span].clone(), f"{name}_bias": bias[span].clone()}
        return found

    def look_for(self, site: int, head: int, names: Sequence[str], sharpness: float) -> None:
        """Every query looks at tokens that have much of these features. sharpness: logits from none to the most."""
        key = self.rows(site, names).sum(0, keepdim=True)
        amount = (self.normalised(site) @ key[0]).flatten()
        scale = sharpness / float(amount.quantile(0.99) - amount.median()) * self.site(site).head_dim ** 0.5
        self.write(
            site,
            head,
            query=key * 0,
            query_bias=torch.ones(1),
            key=key * scale,
            key_bias=torch.zeros(1),
        )

    def look_at_offset(self, site: int, head: int, down: int, across: int, sharpness: float) -> None:
        """Every query looks at the token so many rows and columns away, where there is one."""
        if self.family == "swin":
            attention = self.attention(site)
            high, wide = attention.window_size
            at = (high - 1 - down) * (2 * wide - 1) + (wide - 1 - across)
            with torch.no_grad():
                attention.relative_position_bias_table[:, head] = 0
                attention.relative_position_bias_table[at, head] = sharpness
            nothing = torch.zeros(1, attention.qkv.in_features)
            self.write(site, head, query=nothing, key=nothing, query_bias=torch.zeros(1), key_bias=torch.zeros(1))
            return
        key = self.rows(site, (*ROWS, *COLUMNS))
        # query channel i reads row i - down: it meets keys of row i
        query = torch.cat([self.rows(site, ROWS).roll(down, 0), self.rows(site, COLUMNS).roll(across, 0)])
        if down > 0:
            query[:down] = 0
        if down < 0:
            query[GRID + down : GRID] = 0
        if across > 0:
            query[GRID : GRID + across] = 0
        if across < 0:
            query[2 * GRID + across :] = 0
        amount = (self.normalised(site) @ self.rows(site, ROWS).T).amax(-1).median()
        scale = (sharpness * self.site(site).head_dim ** 0.5) ** 0.5 / float(amount)
        self.write(site, head, query=query * scale, key=key * scale, query_bias=torch.zeros(1), key_bias=torch.zeros(1))

    def scale_write(self, site: int, head: int, share: float) -> None:
        """Scale W_O so that the head's write is, in the mean, this share of the stream."""
        before, _ = self.stream(site)
        ratio = self.writes(site, head).norm(dim=-1).mean() / before.norm(dim=-1).mean()
        self.write(site, head, output=self.parts(site, head)["output"] * (share / float(ratio)))

    def scale_evidence(self, site: int, head: int, nats: float) -> None:
        """Scale W_O so that the head moves the label's logit, above the mean logit, by this much in the mean."""
        for _ in range(3):  # the last norm bends it
            output = self.parts(site, head)["output"]
            moved = float(self.margin() - self.margin(without=[(site, head)]))
            self.write(site, head, output=output * min(max(nats / moved, 0.1), 10.0))

    # looking

    @torch.no_grad()
    def stream(self, site: int) -> tuple[Tensor, Tensor]:
        """The stream in front of the site's block, and what the block's first norm makes of it; (B, T, C) each.

        Found once: when a site is written, all blocks before it are finished.
        """
        if site in self._streams:
            return self._streams[site]
        block = self.block(site)
        seen: dict[str, Tensor] = {}
        handles = [
            block.register_forward_pre_hook(lambda _, args: seen.update(before=args[0])),
            block.norm1.register_forward_hook(lambda _, args, out: seen.update(after=out)),
        ]
        self.model(self.seen.images)
        for handle in handles:
            handle.remove()
        self._streams[site] = seen["before"].flatten(1, -2), seen["after"].flatten(1, -2)
        return self._streams[site]

    def normalised(self, site: int) -> Tensor:
        return self.stream(site)[1]

    def block(self, site: int) -> Any:
        return self.model.get_submodule(self.site(site).name.rpartition(".")[0])

    @torch.no_grad()
    def writes(self, site: int, head: int, before: Tensor | None = None) -> Tensor:
        """(B, T, C) what this head alone adds to the stream, in raster order. before: (B, T, C) instead of the real."""
        alone = copy.deepcopy(self.block(site))
        others = torch.ones(self.site(site).channels, dtype=torch.bool)
        others[head * self.site(site).head_dim : (head + 1) * self.site(site).head_dim] = False
        alone.attn.proj.weight[:, others] = 0
        alone.attn.proj.bias.zero_()
        before = self.stream(site)[0] if before is None else before
        if self.family == "vit":
            return alone.attn(alone.norm1(before))
        return alone._attn(alone.norm1(before.unflatten(1, self.site(site).grid))).flatten(1, 2)

    @torch.no_grad()
    def behind_attention(self, site: int, without: Sequence[int] = ()) -> Tensor:
        """(B, T, C) what the norm in front of the block's MLP gives, with some heads of the site silent."""
        seen: list[Tensor] = []
        kept = {head: self.parts(site, head) for head in without}
        for head, parts in kept.items():
            self.write(site, head, output=parts["output"] * 0)
        handle = self.block(site).norm2.register_forward_hook(lambda _, args, out: seen.append(out))
        self.model(self.seen.images)
        handle.remove()
        for head, parts in kept.items():
            self.write(site, head, **parts)
        return seen[0].flatten(1, -2)

    @torch.no_grad()
    def logits(self, images: Tensor, without: Sequence[tuple[int, int]] = ()) -> Tensor:
        """(B, K), with the columns of W_O of some heads (site, head) set to zero."""
        if not without:
            return self.model(images)
        model = copy.deepcopy(self.model)
        for site, head in without:
            at = self.site(site)
            model.get_submodule(at.name).proj.weight[:, head * at.head_dim : (head + 1) * at.head_dim] = 0
        return model(images)

    def margin(self, without: Sequence[tuple[int, int]] = (), seen: World | None = None) -> Tensor:
        """() mean of the label's logit above the mean logit."""
        seen = self.seen if seen is None else seen
        logits = self.logits(seen.images, without)
        return (logits.gather(1, seen.labels[:, None])[:, 0] - logits.mean(1)).mean()

    def loss(self, without: Sequence[tuple[int, int]] = (), seen: World | None = None) -> float:
        seen = self.seen if seen is None else seen
        return float(nn.functional.cross_entropy(self.logits(seen.images, without), seen.labels))

    # making

    def _widths(self) -> list[int]:
        if self.family == "vit":
            return [self.model.embed_dim]
        return [layer.blocks[0].norm1.normalized_shape[0] for layer in self.model.layers]

    def _basis(self, width: int) -> Tensor:
        """(C, features) orthonormal, at right angles to ones."""
        drawn = torch.randn(width, len(NAMES) + 1, generator=self.random)
        drawn[:, 0] = 1
        return torch.linalg.qr(drawn).Q[:, 1:]

    def _silence(self) -> None:
        """Norms that only normalise, heads and MLPs that write nothing."""
        for module in self.model.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.zeros_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.family == "vit":
            nn.init.zeros_(self.model.pos_embed)
            nn.init.zeros_(self.model.cls_token)

    def _embed(self) -> None:
        """Pixels to their features, and where a token stands (a ViT's)."""
        first = self.bases[0]
        proj = self.model.patch_embed.proj
        proj.weight.copy_((first[:, :FEATURES] @ world.pixels_of_features().T).view_as(proj.weight))
        if self.family == "vit":
            code = {name: first[:, NAMES.index(name)] for name in NAMES}
            self.model.pos_embed[0, 0] = 4 * code["class_token"]
            for token in range(GRID * GRID):
                where = code[f"row{token // GRID}"] + code[f"column{token % GRID}"]
                self.model.pos_embed[0, 1 + token] = 2 * where
            return
        for layer, before, after in zip(self.model.layers[1:], self.bases, self.bases[1:], strict=False):
            # a merged token has the mean of its four features
            layer.downsample.reduction.weight.copy_((after @ before.T / 2).repeat(1, 4))

    def _read_out(self) -> None:
        """Logits are the evidence of the pooled token."""
        head = self.model.head if self.family == "vit" else self.model.head.fc
        evidence = self.bases[-1][:, [NAMES.index(name) for name in EVIDENCE]]
        head.weight.copy_(4 * evidence.T)


def _vit() -> nn.Module:
    options: dict[str, Any] = {"img_size": GRID * 4, "patch_size": 4, "num_classes": CLASSES, "mlp_ratio": 1.0}
    return timm.create_model("vit_tiny_patch16_224", embed_dim=128, depth=4, num_heads=8, **options).eval()


def _swin() -> nn.Module:
    options: dict[str, Any] = {"img_size": GRID * 4, "patch_size": 4, "num_classes": CLASSES, "mlp_ratio": 1.0}
    options |= {"window_size": 4, "embed_dim": 96, "depths": (2, 2), "num_heads": (6, 12)}
    return timm.create_model("swin_tiny_patch4_window7_224", **options).eval()


def gated(canvas: Canvas) -> nn.Module:
    """The finished model with gates on its heads, for measures."""
    attach(canvas.model)
    return canvas.model
