"""Figures of one paper (conf/paper): as questions, and on figures.md in the paper's order."""

import functools
import inspect
import re
from collections.abc import Mapping, Sequence

from mhprobe.errors import UserError, nearest
from mhprobe.framework.questions.ask import Answers
from mhprobe.framework.questions.material import Material, Panel
from mhprobe.framework.questions.measured import masking_curves, measured
from mhprobe.framework.questions.plan import Question
from mhprobe.framework.run.schema import Paper
from mhprobe.io import files
from mhprobe.io.code import our_digest, stands_on
from mhprobe.masking.parts.cache import cache_key
from mhprobe.report.result import Result

WORDS = {"title", "shows", "look", "differs"}  # keys of a figure that decide no number


def figures_named(
    paper: Paper, wanted: Sequence[int | str] | None, papers: Sequence[str]
) -> list[str]:
    """Return keys of figures in the paper's order.

    wanted: keys, or 3 for figure_3; None for all. UserError: others.
    """
    figures = list(paper.figures)
    if not figures:
        raise UserError(f"paper: which one? Give +paper=<name>, one of {', '.join(papers)}.")
    keys = (
        figures
        if wanted is None
        else [f"figure_{key}" if str(key).isdigit() else str(key) for key in wanted]
    )
    if not keys:
        raise UserError("figures: expected names of figures, or null for all, got an empty list.")
    if unknown := [key for key in keys if key not in figures]:
        meant = nearest(unknown[0], figures)
        raise UserError(f"figures: {meant}{paper.name} has {', '.join(figures)}, got {unknown[0]}.")
    return [key for key in figures if key in keys]


def questions(
    paper: Paper, keys: Sequence[str], panels: Mapping[str, Panel], material: Material
) -> list[Question]:
    """Return a question per figure that this command makes. panels: by figure."""
    return [
        _question(paper, key, panels.get(key), material)
        for key in keys
        if paper.figures[key].elsewhere is None
    ]


def _question(paper: Paper, key: str, panel: Panel | None, material: Material) -> Question:
    figure = paper.figures[key]
    drawn = functools.partial(measured, kinds=figure.kinds, options=figure.options)
    panel = panel or (masking_curves if figure.curves else drawn)
    control = material.twin is not None and getattr(inspect.unwrap(panel), "func", None) is measured
    parts = {
        **figure.model_dump(exclude=WORDS),
        "measures": {name: paper.measure[name] for name in figure.measure},
        "masking": paper.masking.model_dump() if figure.curves and paper.masking else None,
        **({"control": "random_init"} if control else {}),
    }
    made_from = {**parts, "stands_on": stands_on(parts)}
    return Question(
        key,
        functools.partial(_ask, paper, key, panel),
        tuple(figure.measure),
        tuple(figure.curves),
        control,
        cache_key(
            **material.identity,
            files=material.data.files,
            source=our_digest(),
            seed=material.seed,
            figure=made_from,
        ),
    )


def _ask(paper: Paper, key: str, panel: Panel, material: Material) -> dict[str, Result]:
    for name in material.names:  # a panel may take fewer
        material.columns(name)
    about = {"caption": caption(paper, key), "part_of": key}
    return {
        f"{key}_{end}": result._replace(
            **about, control_of=result.control_of and f"{key}_{result.control_of}"
        )
        for end, result in panel(material).items()
    }


def caption(paper: Paper, key: str) -> str:
    """Return the caption of a figure: its number, content, what to look for, and differences from the paper."""
    figure = paper.figures[key]
    numbered, more = _number(key)
    which = (
        f"{'Beside ' if more else ''}{numbered} of {paper.source}"
        if numbered
        else f"After {paper.source}"
    )
    differs = f" Ours differs: {figure.differs}" if figure.differs else ""
    return f"{which}: {figure.shows} Look for: {figure.look}{differs}"


def label(key: str) -> str:
    """``figure_3`` -> ``Figure 3``, ``figure_6_noise`` -> ``Figure 6, noise``, ``heat`` -> ``Heat``."""
    return ", ".join(part for part in _number(key) if part) or key.replace("_", " ").capitalize()


def _number(key: str) -> tuple[str, str]:
    match = re.match(r"(figure|table)_(\d+)_?(.*)", key)
    return (
        (f"{match[1].capitalize()} {match[2]}", match[3].replace("_", " ")) if match else ("", "")
    )


def write_page(paper: Paper, answers: Answers, name: str) -> None:
    """Write ``figures.md`` on rank 0: the paper's figures in order, with captions.

    name: of the weights.
    """
    material, model = answers.material, answers.material.model
    if not material.first:
        return
    captions = {
        entry.part_of: entry.caption
        for entry in answers.report.results.results.values()
        if entry.caption
    }
    results = answers.read()
    parts = [
        f"# {paper.source}",
        f"{name} ({model.description['backbone']['name']}), test accuracy "
        f"{100 * model.results['test/accuracy']:.2f} % "
        f"of {material.data.sizes['test']} images of {material.data.source.name}.",
    ]
    for key, figure in paper.figures.items():
        parts += [f"## {label(key)}: {figure.title}", captions.get(key) or caption(paper, key)]
        if figure.elsewhere is not None:
            parts.append(f"Not made by this command: {figure.elsewhere}")
        elif key in results:
            inside = results[key]["files"]
            parts += [f"![{label(key)}]({file})" for file in inside if file.endswith(".png")]
            tables = [f"[{file}]({file})" for file in inside if file.endswith(".csv")]
            parts += [f"Tables: {', '.join(tables)}"] if tables else []
        else:
            parts.append(f"Not made: {answers.refused.get(key, 'it was not asked for.')}")
    files.write(answers.report.folder / "figures.md", ("\n\n".join(parts) + "\n").encode())
