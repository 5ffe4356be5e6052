"""Handwritten digits: 1,797 grey 8 x 8 images of the UCI set that scikit-learn carries.

No download.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mhprobe.data.draws import stratified
from mhprobe.data.source import Contents, Wanted, is_wanted
from mhprobe.errors import UserError, quoted


class Digits:
    """Scikit-learn's digits.

    test_fraction: share of images in the test split. split_seed: of which ones these are.
    """

    name = "digits"

    def __init__(self, test_fraction: float = 0.2, split_seed: int = 0) -> None:
        if not 0 < test_fraction < 1:
            raise UserError(
                f"test_fraction: expected a share between 0 and 1, got {quoted(test_fraction)}."
            )
        self.test_fraction, self.split_seed = test_fraction, split_seed

    def key(self) -> dict[str, Any]:
        return {"test_fraction": self.test_fraction, "split_seed": self.split_seed}

    def scan(self) -> Contents:
        from sklearn.datasets import load_digits

        digits = load_digits()
        grey = np.rint(digits.images * (255 / 16)).astype(np.uint8)
        labels = digits.target.astype(np.int64)
        test = stratified(labels, int(np.ceil(self.test_fraction * len(labels))), self.split_seed)
        members = {"train": np.setdiff1d(np.arange(len(labels)), test), "test": test}

        def images(wanted: Wanted | None = None) -> Iterator[tuple[str, int, np.ndarray]]:
            for split, chosen in members.items():
                for i, image in enumerate(grey[chosen]):
                    if is_wanted(wanted, split, i):
                        yield split, i, np.repeat(image[:, :, None], 3, axis=2)

        labelled = {split: labels[chosen] for split, chosen in members.items()}
        return Contents(tuple(map(str, range(10))), labelled, (8, 8), images, some=images)
