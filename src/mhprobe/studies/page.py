"""figures.md: the figures of a paper in its order, each with what it shows, what to look for and where it differs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import lightning as L

from mhprobe.data.base import ImageData


def text(paper: Mapping[str, Any], made: Mapping[str, Any], refused: Mapping[str, str], about: str) -> str:
    """The page. made: by figure, its files. refused: by figure, why there is none. about: a line on model and data."""
    parts = [f"# {paper['source']}", about]
    for key, figure in paper["figures"].items():
        parts.append(f"## {label(key)}: {figure['title']}")
        parts.append(caption(paper, key))
        if figure["elsewhere"] is not None:
            parts.append(f"Not made by this command: {figure['elsewhere']}")
        elif key in made:
            files = made[key]["files"]
            parts += [f"![{label(key)}]({file})" for file in files if file.endswith(".png")]
            tables = [f"[{file}]({file})" for file in files if file.endswith(".csv")]
            parts += [f"Tables: {', '.join(tables)}"] if tables else []
        else:
            parts.append(f"Not made: {refused.get(key, 'it was not asked for.')}")
    return "\n\n".join(parts) + "\n"


def caption(paper: Mapping[str, Any], key: str) -> str:
    """Return the caption of a figure: its number, content, what to look for, and where ours differs from the paper."""
    figure = paper["figures"][key]
    numbered, more = _number(key)
    which = f"{'Beside ' if more else ''}{numbered} of {paper['source']}" if numbered else f"After {paper['source']}"
    said = [f"{which}: {figure['shows']}", f"Look for: {figure['look']}"]
    return " ".join([*said, f"Ours differs: {figure['differs']}"] if figure["differs"] else said)


def label(key: str) -> str:
    """``figure_3`` -> ``Figure 3``, ``figure_6_noise`` -> ``Figure 6, noise``, ``heat`` -> ``Heat``."""
    return ", ".join(part for part in _number(key) if part) or key.replace("_", " ").capitalize()


def _number(key: str) -> tuple[str, str]:
    """The paper's own number, and what of ours stands beside it; both empty for a figure that the paper has not."""
    found = re.match(r"(figure|table)_(\d+)_?(.*)", key)
    return (f"{found[1].capitalize()} {found[2]}", found[3].replace("_", " ")) if found else ("", "")


def about(name: str, model: L.LightningModule, data: ImageData) -> str:
    """The model, its accuracy and its images in a line. name: of the weights."""
    results: Mapping[str, float] = model.results  # type: ignore[assignment]
    return (
        f"{name} ({model.description['backbone']['name']}), test accuracy {100 * results['test/accuracy']:.2f} % of "  # type: ignore[index]
        f"{data.sizes['test']} images of {data.source.name}."
    )
