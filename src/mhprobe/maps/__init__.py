"""Maps of single images: where attention, its rollouts and relevance point, and how faithful the maps are.

    model = mhprobe.load("model.safetensors")
    maps = mhprobe.maps.rollout.Rollout(fusion="max")(model, images)         # {"rollout": (B, h, w)}
    mhprobe.maps.faithfulness.faithfulness(model, images, list(maps.values()))  # deletion and
    insertion areas

python -m mhprobe.maps weights=FILE images=[0,5,9] draws them for images of the test split.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """Each kind is a file, found by its name."""
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise AttributeError(f"mhprobe.maps has no map kind {name!r}") from error
