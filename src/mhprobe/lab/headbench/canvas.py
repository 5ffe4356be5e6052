"""Images of HeadBench, and a blank ViT or Swin (backbones/parts/opened.py) into which heads for them are written.

A patch is a sum of features of its pixels, so that weights can be written by hand. All patches have
noise. A square of 4 x 4 patches, the object, has the texture of its class and, weaker, that of
another. The first patch has the mark of a
class, mostly the right one: a shortcut. Of every 4 x 4 patches one is the landmark, a sink for
Swins.

The residual stream has a random orthonormal basis, with a direction for each feature: a texture, a
mark, a row of the grid, evidence for a class. A head reads a feature by that direction in W_Q, W_K
or W_V and writes it by W_O. All directions are orthogonal to (1, ..., 1), so that LayerNorm only
divides by one number.

Shapes: B images, F pixel features, C channels of the stream, D head width, T tokens, K classes.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.backbones.parts.opened import Blank
from mhprobe.data.batch import Batch
from mhprobe.measures.parts.losses import outcomes

CLASSES, GRID, PATCH, OBJECT, NOISE = 4, 8, 4, 4, 24
MARKED = 0.9  # share of images whose mark is right
CORNERS = [(y, x) for y in (0, 2, 4) for x in (0, 2, 4) if (y, x) != (0, 0)]
# the directions of the stream, numbered kind by kind; up to the noises they are the features of
# pixels
_ENDS = itertools.accumulate(
    (CLASSES, CLASSES, 1, NOISE, CLASSES, CLASSES, 1, GRID, GRID), initial=0
)
TEXTURES, MARKS, LANDMARK, NOISES, EVIDENCE, SCRATCH, CLASS_TOKEN, ROWS, COLUMNS = (
    itertools.starmap(range, itertools.pairwise(_ENDS))
)
FEATURES = NOISES.stop
_CALIBRATION = 40


class World(NamedTuple):
    """Images (B, 3, 32, 32), their labels and marks (B,), and objects (B, 32, 32), 1 on the object."""

    images: Tensor
    labels: Tensor
    marks: Tensor
    objects: Tensor

    def batch(self) -> Batch:
        return Batch.whole(self.images, self.labels, self.objects)


def pixels_of_features() -> Tensor:
    """(3 * 4 * 4, F) orthonormal pixel patterns of the features, the same in every world."""
    generator = torch.Generator().manual_seed(20)
    return torch.linalg.qr(torch.randn(3 * PATCH * PATCH, FEATURES, generator=generator)).Q


def draw_images(
    count: int, seed: int, shown: Tensor | None = None, marked: Tensor | None = None
) -> World:
    """Draw ``count`` images. shown, marked: (B,) other classes for object and mark; all else stays."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    wrong = torch.randint(CLASSES, (count,), generator=generator)
    marks = torch.where(torch.rand(count, generator=generator) < MARKED, labels, wrong)
    other = (labels + torch.randint(1, CLASSES, (count,), generator=generator)) % CLASSES
    strength = 0.7 * torch.rand(count, generator=generator)
    place = torch.randint(len(CORNERS), (count,), generator=generator)
    noise = torch.randn(count, GRID, GRID, NOISE, generator=generator)
    bright = torch.randint(4, (count, 2, 2, 2), generator=generator)  # where in each window
    texture, mark = labels if shown is None else shown, marks if marked is None else marked

    features = torch.zeros(count, GRID, GRID, FEATURES)
    features[..., -NOISE:] = noise
    objects = torch.zeros(count, GRID, GRID, dtype=torch.long)
    for image in range(count):
        y, x = CORNERS[int(place[image])]
        square = image, slice(y, y + OBJECT), slice(x, x + OBJECT)
        features[*square, TEXTURES[int(other[image])]] += strength[image]
        features[*square, TEXTURES[int(texture[image])]] += 2.0
        objects[square] = 1
        features[image, 0, 0, MARKS[int(mark[image])]] = 3.0
        for v, h in itertools.product(range(2), repeat=2):
            down, across = bright[image, v, h].tolist()
            features[image, 4 * v + down, 4 * h + across, LANDMARK[0]] = 3.0
    patches = (features @ pixels_of_features().T).unflatten(-1, (3, PATCH, PATCH))
    images = patches.permute(0, 3, 1, 4, 2, 5).reshape(count, 3, GRID * PATCH, GRID * PATCH)
    objects = objects.repeat_interleave(PATCH, 1).repeat_interleave(PATCH, 2)
    return World(images.contiguous(), labels, mark, objects)


class Canvas(Blank):
    """A blank model to write heads into.

    seen: images on which amplitudes are set; no measure sees them.

    sink: the feature of tokens that sinks attend to.
    """

    def __init__(self, family: str, seed: int) -> None:
        super().__init__(family, GRID, PATCH, CLASSES)
        self.sink = CLASS_TOKEN if family == "vit" else LANDMARK
        self.random = torch.Generator().manual_seed(1000 + seed)
        self.seed_of_seen = 77_000 + seed
        self.seen = draw_images(_CALIBRATION, self.seed_of_seen)
        self._streams: dict[int, tuple[Tensor, Tensor]] = {}
        self.bases = [self._basis(width) for width in self.widths()]
        with torch.no_grad():
            self._embed()
            self.classify(4 * _directions(self.bases[-1], EVIDENCE))  # of the pooled token

    # directions

    def rows(self, site: int, features: Sequence[int]) -> Tensor:
        """(features, C) directions of these features at a site."""
        return _directions(self.bases[self.site(site).stage], features)

    def mixed(self, site: int, features: Sequence[int], count: int) -> Tensor:
        """(count, C) random directions among those of these features."""
        mix = torch.randn(count, len(features), generator=self.random)
        return nn.functional.normalize(mix, dim=1) @ self.rows(site, features)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self.random))

    # writing heads

    def look_for(self, site: int, head: int, features: Sequence[int], sharpness: float) -> None:
        """Let all queries attend to tokens with much of these features.

        sharpness: logits from none to the most.
        """
        key = self.rows(site, features).sum(0, keepdim=True)
        amount = (self.normalised(site) @ key[0]).flatten()
        scale = (
            sharpness
            / float(amount.quantile(0.99) - amount.median())
            * self.site(site).head_dim ** 0.5
        )
        self.write(
            site,
            head,
            query=key * 0,
            query_bias=torch.ones(1),
            key=key * scale,
            key_bias=torch.zeros(1),
        )

    def look_at_offset(
        self, site: int, head: int, down: int, across: int, sharpness: float
    ) -> None:
        """Let every query attend to the token at an offset, where there is one."""
        zero = torch.zeros(1)
        if self.family == "swin":
            offsets = torch.zeros_like(self.parts(site, head)["offsets"])
            offsets[self.offset(site, down, across)] = sharpness
            nothing = torch.zeros(1, len(self.bases[self.site(site).stage]))
            self.write(
                site,
                head,
                query=nothing,
                key=nothing,
                query_bias=zero,
                key_bias=zero,
                offsets=offsets,
            )
            return
        key = self.rows(site, (*ROWS, *COLUMNS))
        # query channel i reads row i - down: it meets keys of row i
        query = torch.cat(
            [self.rows(site, ROWS).roll(down, 0), self.rows(site, COLUMNS).roll(across, 0)]
        )
        for part, by in ((query[:GRID], down), (query[GRID:], across)):
            part[slice(by) if by >= 0 else slice(by, None)] = 0  # what was rolled round the edge
        amount = (self.normalised(site) @ self.rows(site, ROWS).T).amax(-1).median()
        scale = (sharpness * self.site(site).head_dim ** 0.5) ** 0.5 / float(amount)
        self.write(site, head, query=query * scale, key=key * scale, query_bias=zero, key_bias=zero)

    def scale_write(self, site: int, head: int, share: float) -> None:
        """Scale W_O so that the head's mean write is this share of the stream."""
        ratio = (
            self.writes(site, head).norm(dim=-1).mean() / self.stream(site)[0].norm(dim=-1).mean()
        )
        self.write(site, head, output=self.parts(site, head)["output"] * (share / float(ratio)))

    def scale_evidence(self, site: int, head: int, nats: float) -> None:
        """Scale W_O so that the head moves the mean margin (see ``margin``) by this much."""
        for _ in range(3):  # the last norm bends it
            output = self.parts(site, head)["output"]
            moved = float(self.margin() - self.margin(without=[(site, head)]))
            self.write(site, head, output=output * min(max(nats / moved, 0.1), 10.0))

    # looking

    def stream(self, site: int) -> tuple[Tensor, Tensor]:
        """The stream in front of the site's block, before and after the block's first norm; (B, T, C) each. Kept."""
        if site not in self._streams:
            self._streams[site] = self.around_norm(site, self.seen.images)
        return self._streams[site]

    def normalised(self, site: int) -> Tensor:
        return self.stream(site)[1]

    def writes(self, site: int, head: int) -> Tensor:
        """(B, T, C) contribution of this head alone to the stream, in raster order."""
        return self.write_of(site, head, self.stream(site)[0])

    def entering_mlp(self, site: int, without: Sequence[int] = ()) -> Tensor:
        """(B, T, C) input of the block's MLP, with some heads of the site silent."""
        before = {head: self.parts(site, head) for head in without}
        for head, parts in before.items():
            self.write(site, head, output=parts["output"] * 0)
        entering = self.around_norm(site, self.seen.images, "norm2")[1]
        for head, parts in before.items():
            self.write(site, head, **parts)
        return entering

    def margin(self, without: Sequence[tuple[int, int]] = ()) -> Tensor:
        """() mean over images of the label's logit above the mean logit."""
        logits = self.logits(self.seen.images, without)
        return (logits.gather(1, self.seen.labels[:, None])[:, 0] - logits.mean(1)).mean()

    def loss(self, without: Sequence[tuple[int, int]] = ()) -> float:
        return float(outcomes(self.logits(self.seen.images, without), self.seen.labels)[1].mean())

    # making

    def _basis(self, width: int) -> Tensor:
        """(C, features) orthonormal, at right angles to ones."""
        vectors = torch.randn(width, COLUMNS.stop + 1, generator=self.random)
        vectors[:, 0] = 1
        return torch.linalg.qr(vectors).Q[:, 1:]

    def _embed(self) -> None:
        """Write the patch embedding, a ViT's positions, and a Swin's merging of patches."""
        first = self.bases[0]
        self.embed(first[:, :FEATURES] @ pixels_of_features().T)
        if self.family == "vit":
            positions = _directions(first, ROWS)[:, None] + _directions(first, COLUMNS)
            self.place(4 * first[:, CLASS_TOKEN[0]], 2 * positions.flatten(0, 1))
            return
        for stage in range(1, len(self.bases)):
            self.merge(
                stage, self.bases[stage] @ self.bases[stage - 1].T
            )  # a merged token has the mean of four


def _directions(basis: Tensor, features: Sequence[int]) -> Tensor:
    return basis[:, list(features)].T
