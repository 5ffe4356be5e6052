"""The figures of one paper as questions: what each is made from, its panel, and its caption.

A figure is an entry of conf/paper/<paper>.yaml: the measures and masking curves that it needs, by the names that the
same file gives them, the kinds of figures that draw them or a panel of its own, and its caption.
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from mhprobe.errors import UserError
from mhprobe.io.code import stands_on
from mhprobe.masking.parts.cache import cache_key
from mhprobe.questions.curves import masking_curves
from mhprobe.questions.material import Material, Panel
from mhprobe.questions.measured import measured
from mhprobe.questions.plan import Question
from mhprobe.report.result import Result
from mhprobe.studies import page

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
    return [_question(paper, key, _panel(paper["figures"][key], panels.get(key)), material) for key in made]


def _question(paper: Mapping[str, Any], key: str, panel: Panel, material: Material) -> Question:
    figure = paper["figures"][key]
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
        cache_key(**material.identity, seed=material.seed, figure=made_from),
    )


def _panel(figure: Mapping[str, Any], own: Panel | None) -> Panel:
    if own is not None:
        return own
    return masking_curves if figure["curves"] else functools.partial(measured, **_drawn(figure))


def _drawn(figure: Mapping[str, Any]) -> dict[str, Any]:
    return {"kinds": figure["kinds"], "options": figure["options"]}


def _ask(paper: Mapping[str, Any], key: str, panel: Panel, material: Material) -> dict[str, Result]:
    """The results of a figure as parts of it, whose caption is its own."""
    for name in material.names:  # a panel may ask for fewer
        material.columns(name)
    caption = page.caption(paper, key)
    return {
        f"{key}_{end}": result._replace(
            caption=caption, part_of=key, control_of=f"{key}_{result.control_of}" if result.control_of else ""
        )
        for end, result in panel(material).items()
    }
