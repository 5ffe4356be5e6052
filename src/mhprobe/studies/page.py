"""figures.md: the figures of a paper in its order, each with what it shows, what to look for and where it differs."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mhprobe.io import files
from mhprobe.questions.ask import Answers
from mhprobe.questions.material import Material

NONE: Mapping[str, str] = MappingProxyType({})


def write(paper: Mapping[str, Any], answers: Answers, name: str) -> None:
    """Write ``figures.md`` on rank 0: the paper's figures in their order, with captions. name: of the weights."""
    if answers.material.first:
        reasons = {key: str(error) for key, error in answers.refused.items()}
        captions = {entry.part_of: entry.caption for entry in answers.report.results.results.values() if entry.caption}
        shown = text(paper, answers.read(), reasons, about(name, answers.material), captions)
        files.write(answers.report.folder / "figures.md", shown.encode())


def text(
    paper: Mapping[str, Any],
    made: Mapping[str, Any],
    refused: Mapping[str, str],
    about: str,
    captions: Mapping[str, str] = NONE,
) -> str:
    """The page.

    made: by figure, its files. refused: by figure, why there is none. about: a line on model and data. captions: by
    figure, of what was drawn.
    """
    parts = [f"# {paper['source']}", about]
    for key, figure in paper["figures"].items():
        parts.append(f"## {label(key)}: {figure['title']}")
        parts.append(captions.get(key) or caption(paper, key))
        if figure["elsewhere"] is not None:
            parts.append(f"Not made by this command: {figure['elsewhere']}")
        elif key in made:
            inside = made[key]["files"]
            parts += [f"![{label(key)}]({file})" for file in inside if file.endswith(".png")]
            tables = [f"[{file}]({file})" for file in inside if file.endswith(".csv")]
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


def about(name: str, material: Material) -> str:
    """The model, its accuracy and its images in a line. name: of the weights."""
    model: Any = material.model
    return (
        f"{name} ({model.description['backbone']['name']}), test accuracy {100 * model.results['test/accuracy']:.2f} % "
        f"of {material.data.sizes['test']} images of {material.data.source.name}."
    )
