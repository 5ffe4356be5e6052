"""Generated scenes: a few shapes on a textured ground, with an exact mask of every object.

No download.

The class of a scene is the shape of its largest object. A scene depends on (seed, split, its
number) alone.

Shapes: S pixels of a side.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mhprobe.data.source import Contents, Wanted, is_wanted
from mhprobe.errors import UserError

SHAPES = ("disc", "square", "triangle", "ring")


class Scenes:
    """Generated scenes with objects and their masks.

    size: pixels of a side. train, test: scenes per split. objects: at most so many in a scene, at
    least one.
    seed: of all that is drawn.
    """

    name = "scenes"

    def __init__(
        self, size: int = 32, train: int = 4000, test: int = 1000, objects: int = 3, seed: int = 0
    ) -> None:
        if size < 16 or min(train, test) < 2 * len(SHAPES) or not 1 <= objects <= 3:
            raise UserError(
                f"size: scenes have size >= 16, train and test >= {2 * len(SHAPES)}, objects 1 to "
                "3; "
                f"got size {size}, train {train}, test {test}, objects {objects}."
            )
        self.size, self.train, self.test, self.objects, self.seed = size, train, test, objects, seed

    def key(self) -> dict[str, Any]:
        return dict(vars(self))

    def scan(self) -> Contents:
        counts = {"train": self.train, "test": self.test}

        def scenes(
            wanted: Wanted | None = None,
        ) -> Iterator[tuple[str, int, np.ndarray, np.ndarray]]:
            for number, (split, count) in enumerate(counts.items()):
                for i in range(count):
                    if is_wanted(wanted, split, i):
                        rng = np.random.default_rng([self.seed, number, i])
                        yield split, i, *self._scene(rng, i % len(SHAPES))

        labels = {
            split: np.arange(count, dtype=np.int64) % len(SHAPES) for split, count in counts.items()
        }
        return Contents(SHAPES, labels, (self.size, self.size), scenes, objects=True, some=scenes)

    def _scene(
        self, rng: np.random.Generator, label: int
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """(S, S, 3) pixels and (S, S) object numbers: 1 for the largest, then 2, 3; 0 for the ground."""
        side = self.size
        ground = rng.uniform(40, 215, 3)
        image = ground + rng.normal(0, 12, (side, side, 3))
        mask = np.zeros((side, side), np.uint8)
        for number in range(1 + int(rng.integers(self.objects))):
            radius = side * (rng.uniform(0.2, 0.28) if number == 0 else rng.uniform(0.1, 0.14))
            shape = label if number == 0 else int(rng.integers(len(SHAPES)))
            for _ in range(
                50
            ):  # objects do not cover each other; one that finds no room is left out
                centre = rng.uniform(radius, side - radius, 2)
                cells = _drawn(SHAPES[shape], side, centre, radius)
                if (
                    not mask[cells].any()
                    and not mask[_drawn("square", side, centre, radius + 1)].any()
                ):
                    break
            else:
                break
            colour = (
                ground + 128 + rng.uniform(-60, 60, 3)
            ) % 256  # about as far from the ground as a colour can be
            image[cells] = colour + rng.normal(0, 12, (int(cells.sum()), 3))
            mask[cells] = number + 1
        return image.clip(0, 255).astype(np.uint8), mask


def _drawn(shape: str, side: int, centre: NDArray[np.float64], radius: float) -> NDArray[np.bool_]:
    """(S, S) the pixels of one shape."""
    y, x = np.mgrid[:side, :side] + 0.5 - centre[:, None, None]
    distance = np.hypot(y, x)
    inside = {
        "disc": distance <= radius,
        "square": np.maximum(abs(y), abs(x)) <= 0.85 * radius,
        "triangle": (y <= 0.7 * radius) & (abs(x) <= 0.55 * (y + radius)),
        "ring": (distance <= radius) & (distance >= 0.55 * radius),
    }
    return inside[shape]
