"""The figures of one paper: as questions, and on figures.md in the paper's order.

A figure is an entry of conf/paper/<paper>.yaml: the measures and masking curves that it needs, by the names that the
same file gives them, the kinds of figures that draw them or a panel of its own, and what its caption says.
"""

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.errors import UserError
from mhprobe.io import files
from mhprobe.io.code import our_digest, stands_on
from mhprobe.masking.parts.cache import cache_key
from mhprobe.questions.ask import Answers
from mhprobe.questions.material import Material, Panel
from mhprobe.questions.measured import masking_curves, measured
from mhprobe.questions.plan import Question
from mhprobe.report.result import Result

WORDS = ("title", "shows", "look", "differs")  # of a figure's entry: they decide no number


def chosen(paper: Mapping[str, Any], wanted: Sequence[int | str] | None, papers: Sequence[str]) -> list[str]:
    """The keys of the figures to make, in the paper's order. wanted: keys, or 3 for figure_3; None for all.

    UserError for no paper, or a figure that it has not.
    """
    known = list(paper["figures"])
    if not known:
        raise UserError(f"paper: which one? Give +paper=<name>, one of {', '.join(papers)}.")
    keys = known if wanted is None else [f"figure_{key}" if str(key).isdigit() else str(key) for key in wanted]
    if unknown := [key for key in keys if key not in known]:
        raise UserError(f"figures: {paper['name']} has {', '.join(known)}, got {unknown[0]}.")
    return [key for key in known if key in keys]


def questions(
    paper: Mapping[str, Any], keys: Sequence[str], panels: Mapping[str, Panel], material: Material
) -> list[Question]:
    """A question per figure that this command makes.

    paper: as checked by run/schema.py. keys: of the chosen figures. panels: by figure, for those that have one of their
    own. material: the model and images that they will be asked of. Figures of measures as they are show its control.
    """
    made = [key for key in keys if paper["figures"][key]["elsewhere"] is None]
    return [_question(paper, key, panels.get(key), material) for key in made]


def _question(paper: Mapping[str, Any], key: str, panel: Panel | None, material: Material) -> Question:
    figure = paper["figures"][key]
    drawn = functools.partial(measured, kinds=figure["kinds"], options=figure["options"])
    panel = panel or (masking_curves if figure["curves"] else drawn)
    control = material.twin is not None and getattr(inspect.unwrap(panel), "func", None) is measured
    parts = {
        **{name: value for name, value in figure.items() if name not in WORDS},
        "measures": {name: paper["measure"][name] for name in figure["measure"]},
        "masking": paper["masking"] if figure["curves"] else None,
        **({"control": "random_init"} if control else {}),
    }
    made_from = {**parts, "stands_on": stands_on(parts)}
    return Question(
        key,
        functools.partial(_ask, paper, key, panel),
        tuple(figure["measure"]),
        tuple(figure["curves"]),
        control,
        cache_key(**material.identity, source=our_digest(), seed=material.seed, figure=made_from),
    )


def _ask(paper: Mapping[str, Any], key: str, panel: Panel, material: Material) -> dict[str, Result]:
    """The results of a figure as parts of it, whose caption is its own."""
    for name in material.names:  # a panel may ask for fewer
        material.columns(name)
    about = {"caption": caption(paper, key), "part_of": key}
    return {
        f"{key}_{end}": result._replace(**about, control_of=result.control_of and f"{key}_{result.control_of}")
        for end, result in panel(material).items()
    }


def caption(paper: Mapping[str, Any], key: str) -> str:
    """Return the caption of a figure: its number, content, what to look for, and where ours differs from the paper."""
    figure = paper["figures"][key]
    numbered, more = _number(key)
    which = f"{'Beside ' if more else ''}{numbered} of {paper['source']}" if numbered else f"After {paper['source']}"
    differs = f" Ours differs: {figure['differs']}" if figure["differs"] else ""
    return f"{which}: {figure['shows']} Look for: {figure['look']}{differs}"


def label(key: str) -> str:
    """``figure_3`` -> ``Figure 3``, ``figure_6_noise`` -> ``Figure 6, noise``, ``heat`` -> ``Heat``."""
    return ", ".join(part for part in _number(key) if part) or key.replace("_", " ").capitalize()


def _number(key: str) -> tuple[str, str]:
    """The paper's own number, and what of ours stands beside it; both empty for a figure that the paper has not."""
    found = re.match(r"(figure|table)_(\d+)_?(.*)", key)
    return (f"{found[1].capitalize()} {found[2]}", found[3].replace("_", " ")) if found else ("", "")


def write_page(paper: Mapping[str, Any], answers: Answers, name: str) -> None:
    """Write ``figures.md`` on rank 0: the paper's figures in their order, with captions. name: of the weights."""
    material = answers.material
    model: Any = material.model
    if not material.first:
        return
    captions = {entry.part_of: entry.caption for entry in answers.report.results.results.values() if entry.caption}
    made = answers.read()
    parts = [
        f"# {paper['source']}",
        f"{name} ({model.description['backbone']['name']}), test accuracy {100 * model.results['test/accuracy']:.2f} % "
        f"of {material.data.sizes['test']} images of {material.data.source.name}.",
    ]
    for key, figure in paper["figures"].items():
        parts += [f"## {label(key)}: {figure['title']}", captions.get(key) or caption(paper, key)]
        if figure["elsewhere"] is not None:
            parts.append(f"Not made by this command: {figure['elsewhere']}")
        elif key in made:
            inside = made[key]["files"]
            parts += [f"![{label(key)}]({file})" for file in inside if file.endswith(".png")]
            tables = [f"[{file}]({file})" for file in inside if file.endswith(".csv")]
            parts += [f"Tables: {', '.join(tables)}"] if tables else []
        else:
            parts.append(f"Not made: {answers.refused.get(key, 'it was not asked for.')}")
    files.write(answers.report.folder / "figures.md", ("\n\n".join(parts) + "\n").encode())
