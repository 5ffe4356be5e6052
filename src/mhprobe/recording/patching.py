"""Activation patching: what each head alone brings from one run into another, exactly and from slopes.

Two runs of the same model: on an image (clean), and on its corrupted twin. In the *base* run one
head's output is replaced by that of the other run, the *source*; the effect is how far the metric
moves towards the source's (Heimersheim & Nanda, 2024, arXiv 2404.15255). Denoising has the
corrupted run as base, noising the clean one. Donors and noise depend on the image (and a seed)
alone.

exact: one patched run per head. Heads share all blocks before their own, and their own block's
attention (replay.py).
atp: attribution patching, the slope in the base run times the change (Nanda, 2023).
graddrop: of AtP* (Kramar, Lieberum, Shah & Nanda, 2024, arXiv 2403.00745). If a head's direct
    effect and its effect by way of a later block cancel, its slope is small. So slopes are taken
    once per block with nothing flowing back through that block's writes (attention and MLP), and
    |estimates| are averaged over L - 1 blocks: a block's own heads have none there.
AtP*'s correction for the softmax is not needed: a head's output stands behind it.

Shapes: N donors.
"""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.errors import UserError, one_of
from mhprobe.gates import HeadGates, gates_of
from mhprobe.heads import Donors, HeadLayout, Patched, Patching, wide
from mhprobe.measures.parts.hashing import image_numbers, mixed
from mhprobe.recording.outputs import logits_of
from mhprobe.recording.replay import Replay
from mhprobe.recording.state import inspecting
from mhprobe.recording.taps import Taps

Corrupt = Literal["class", "noise", "object"]
Direction = Literal["denoising", "noising"]
Metric = Literal["logit_difference", "log_likelihood"]
Estimate = Literal["exact", "atp", "graddrop"]


class PatchedPass(NamedTuple):
    """One of the two forward passes of a patching.

    images: (B, ...). heads: per site (B or windows, T, H * D), before the gates. logits: (B, C).
    """

    images: Tensor
    heads: Sequence[Tensor]
    logits: Tensor


@torch.inference_mode(False)  # Lightning evaluates inside, where nothing has slopes
def patched(
    model: nn.Module,
    clean: PatchedPass,
    labels: Tensor | None,
    objects: Tensor | None,
    need: Patching,
) -> Patched:
    """Effects of one batch. clean: the run on the images themselves.

    Raises UserError without labels, for unknown options, and for pairs that cannot be made (see
    ``twin_images``).
    """
    if labels is None:
        raise UserError(
            "patching: the metric is about the label's logit, so it needs labels, got None."
        )
    one_of("patching", "direction", need.direction, Direction)
    one_of("patching", "metric", need.metric, Metric)
    for estimate in need.estimates:
        one_of("patching", "estimates", estimate, Estimate)
    twin, gates = twin_images(clean.images, labels, objects, need), gates_of(model)
    denoising, sloped = (
        need.direction == "denoising",
        not {"atp", "graddrop"}.isdisjoint(need.estimates),
    )
    ran = _run(model, gates.layout, twin.images, sloped and denoising)
    corrupt = ran.run
    base, source, sign = (corrupt, clean, 1) if denoising else (clean, corrupt, -1)
    # the class that the label is held against: the donor's, or the largest other one on the twin
    wrong = corrupt.logits.scatter(1, labels[:, None], -torch.inf).argmax(1)
    wrong = wrong if twin.label is None else torch.where(twin.paired, twin.label, wrong)
    metric = _Metric(need.metric, labels, wrong)
    effect: dict[str, Tensor] = {}
    if sloped:
        ran = ran if denoising else _run(model, gates.layout, base.images, True)
        effect |= _from_slopes(gates, ran, source, metric, sign, "graddrop" in need.estimates)
    del ran  # its graph
    if "exact" in need.estimates:
        one_by_one = torch.eye(
            gates.layout.of("head").num_heads, gates.layout.num_heads, dtype=torch.bool
        )
        logits_ABC = Replay(model, one_by_one, instead=source.heads)(base.images)
        effect["exact"] = sign * (metric(logits_ABC) - metric(base.logits)).mT
    return Patched(metric(clean.logits), metric(corrupt.logits), twin.paired, effect, twin.donor)


class _Metric(NamedTuple):
    name: str
    labels: Tensor
    wrong: Tensor

    def __call__(self, logits: Tensor) -> Tensor:
        """(..., B, C) -> (..., B) float64: the metric of each image."""
        exact, ends = logits.double(), torch.stack([self.labels, self.wrong], -1)
        at_label, at_wrong = exact.gather(-1, ends.expand(*exact.shape[:-1], 2)).unbind(-1)
        return at_label - (at_wrong if self.name == "logit_difference" else exact.logsumexp(-1))


class _Ran(NamedTuple):
    """A run; its logits in a graph, if it has one; taps and drop for its slopes."""

    run: PatchedPass
    logits: Tensor
    taps: Taps
    drop: "_Drop"


def _run(model: nn.Module, layout: HeadLayout, images: Tensor, sloped: bool) -> _Ran:
    needs = {"grad"} if sloped else set[str]()
    with inspecting(model, gradients=sloped), Taps(model, layout, needs) as taps, _Drop() as drop:
        if sloped:
            drop.watch(taps.backbone, layout)
        logits = logits_of(model(images), model)
    return _Ran(PatchedPass(images, taps.heads, logits.detach()), logits, taps, drop)


def _from_slopes(
    gates: HeadGates, base: _Ran, source: PatchedPass, metric: _Metric, sign: int, graddrop: bool
) -> dict[str, Tensor]:
    """(B, A) each: "atp", and "graddrop" if it is wanted."""
    layout, images = gates.layout.of("head"), len(base.logits)
    shares, heads = (
        layout.split(gates.effective()[: layout.num_heads]),
        base.run.heads[: len(layout.sites)],
    )
    change = [
        sign * (theirs - output) * share.to(output).repeat_interleave(site.head_dim)
        for site, theirs, output, share in zip(
            layout.sites, source.heads, heads, shares, strict=False
        )
    ]
    with torch.enable_grad():
        score = metric(base.logits).sum()
    estimates = {
        "atp": summed_along(images, change, base.taps.slopes(score, again=graddrop)[0], layout)
    }
    if graddrop:
        size, blocks = torch.zeros_like(estimates["atp"]), range(len(layout.blocks))
        for base.drop.block in (
            blocks if len(blocks) > 1 else ()
        ):  # behind a single one no slope arrives
            size += summed_along(
                images, change, base.taps.slopes(score, again=True)[0], layout
            ).abs()
        estimates["graddrop"] = size / max(1, len(blocks) - 1)
    return estimates


def summed_along(
    images: int, change: Sequence[Tensor], slopes: Sequence[Tensor], layout: HeadLayout
) -> Tensor:
    """(B, A) float64: sum over windows, tokens and width of slope times change."""
    sites = zip(layout.sites, change, slopes, strict=False)  # neurons have slopes, too
    along = (
        (wide(slope) * wide(by)).reshape(images, -1, of.num_heads, of.head_dim)
        for of, by, slope in sites
    )
    return torch.cat([products.sum((1, 3), dtype=torch.float64) for products in along], 1)


class _Drop(contextlib.ExitStack):
    """While ``block`` is a number, no slope flows back through the writes of that block."""

    block: int | None = None

    def watch(self, backbone: nn.Module, layout: HeadLayout) -> None:
        for number, block in enumerate(layout.blocks):
            hook = functools.partial(self._after, number)
            self.enter_context(backbone.get_submodule(block.name).register_forward_hook(hook))

    def _after(self, number: int, _module: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
        first = out if isinstance(out, Tensor) else out[0]
        passed = _Past.apply(args[0], first, number, self)
        return passed if isinstance(out, Tensor) else (passed, *out[1:])


class _Past(torch.autograd.Function):
    """A block's output; backwards through the block, or past it if it is dropped."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, after: Tensor, number: int, drop: _Drop) -> Tensor:
        ctx.number, ctx.drop = number, drop
        return after.view_as(after)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        dropped = ctx.drop.block == ctx.number
        return (slopes[0], None, None, None) if dropped else (None, slopes[0], None, None)


class Twins(NamedTuple):
    """Corrupted twins of a batch.

    images: (B, ...) like the clean ones. label: (B,) of the donors. paired: (B,) bool, False
    without a twin. donor: (B,) index of each image's donor. label and donor are None without
    donors.
    """

    images: Tensor
    label: Tensor | None
    paired: Tensor
    donor: Tensor | None = None


def twin_images(images: Tensor, labels: Tensor, objects: Tensor | None, need: Patching) -> Twins:
    """Twins of images (B, 3, height, width) with labels (B,).

    objects: (B, height, width), 0 is ground.

    Raises UserError for an unknown corruption, one that needs missing masks, and one that text
    cannot have.
    """
    one_of("patching", "corrupt", need.corrupt, Corrupt)
    if need.corrupt == "class":
        return _of_another_class(images, labels, need)
    if not images.is_floating_point():
        raise UserError(
            f"patching: corrupt={need.corrupt} is for images, not for tokens. Use corrupt=class."
        )
    if need.corrupt == "noise":
        noise = torch.zeros_like(images)
        for image, number, drawn in zip(
            images, mixed(image_numbers(images) + need.seed).tolist(), noise, strict=True
        ):
            generator = torch.Generator().manual_seed(number)
            drawn.copy_(
                torch.randn(image.shape, generator=generator).to(image) * image.std() * need.noise
            )
        return Twins(
            images + noise, None, torch.ones(len(images), dtype=torch.bool).to(images.device)
        )
    if objects is None:
        raise UserError(
            "patching: corrupt=object needs object masks. Use data=scenes, data=pets or "
            "corrupt=class."
        )
    shown = objects.to(images.device) > 0
    ground, flat = ~shown[:, None], shown.flatten(1)
    mean = (images * ground).sum((2, 3), keepdim=True) / ground.sum((2, 3), keepdim=True).clamp(
        min=1
    )
    return Twins(
        torch.where(ground, images, mean), None, flat.any(1) & ~flat.all(1)
    )  # in the ground's mean colour


def _of_another_class(images: Tensor, labels: Tensor, need: Patching) -> Twins:
    number_B = image_numbers(images)
    donors = need.donors or Donors(images, labels, number_B)
    number_N, label_N = donors.number.to(images.device), donors.labels.to(images.device)
    drawn_BN = mixed(number_B[:, None] ^ mixed(number_N + need.seed))
    other_BN = label_N != labels[:, None]
    chosen_B = drawn_BN.masked_fill(~other_BN, torch.iinfo(torch.int64).max).argmin(1)
    paired = other_BN.any(1)
    theirs = donors.images.to(images)[chosen_B]
    return Twins(
        torch.where(paired.view(-1, *[1] * (images.dim() - 1)), theirs, images),
        label_N[chosen_B],
        paired,
        chosen_B,
    )
