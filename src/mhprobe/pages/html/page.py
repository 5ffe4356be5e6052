"""report.html: one self-contained file that shows a run and fetches nothing."""

import base64
import datetime
import functools
import hashlib
import json
import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2

from mhprobe.errors import short
from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.io.readings import Reading, restored
from mhprobe.masking.base import LABELS
from mhprobe.pages.html.kept import NETWORK, Live, kept_network, maps_of_run, runtime
from mhprobe.pages.html.pictures import embedded_pictures
from mhprobe.report.runs import atlas, words
from mhprobe.report.runs.facts import write_facts
from mhprobe.report.runs.folder import MB, reading
from mhprobe.report.runs.run import Run, read_run

HERE = Path(__file__).parent
LIVE = "live.html"  # the page with the network in it, beside report.html
ROOM = 1_500_000  # characters of a page that tables may take
FIGURE = 20 * MB  # of a single file
SENTENCES = 3  # that stand beside the heads; the others are folded
FIGURES = 4  # that are shown; the others are folded
SHOWN = ("curves", "per_head", "pairwise", "by_depth")  # kinds of figures of which one is shown

log = logging.getLogger(__name__)


def finish_report(
    folder: Path,
    task: str,
    layout: HeadLayout,
    network: Mapping[str, Any] | None = None,
    inputs: Iterable[Reading] = (),
) -> Path | None:
    """Write ``run.json`` and ``report.html`` at the end of a command, on rank 0.

    Never fails the run.

    task: the command's module, e.g. "train". network: description of the weights, as in model.json.
    inputs: how files of weights and images were interpreted.
    Returns the page, or None after a line in the log.
    """
    try:
        write_facts(folder, task, layout, network, inputs)
        return write_report(folder)
    except Exception as error:  # the results are there
        log.warning("report.html: %s. Try again with: python -m mhprobe.report %s", error, folder)
        return None


def write_report(folder: Path) -> Path:
    """Write ``folder/report.html`` from the run's files.

    Raises UserError if the folder holds no run.
    """
    with reading(folder):
        run = read_run(folder)
        network, figures = (
            run.files.tried(kept_network, NETWORK, run) if atlas.heads_listed(run) else None,
            _figures(run),
        )
        if network is not None:
            write(run.folder / LIVE, _page(run, figures, network).encode())
        return write(
            run.folder / "report.html",
            _page(run, figures, page_beside=network is not None).encode(),
        )


def _page(
    run: Run, figures: list[dict[str, Any]], network: Live | None = None, page_beside: bool = False
) -> str:
    heads, measures = atlas.heads_listed(run), atlas.measures(run)
    tables, left_out = _tables(run)
    opens = words.opening(measures)
    said = words.result_in_words(run, heads, measures)
    data = {
        "opens": opens,
        "heads": heads,
        "measures": measures,
        "pairs": atlas.pairs_listed(run),
        "classes": atlas.classes(run),
        "history": atlas.history(run),
        "maps": maps_of_run(run, heads),
        "lines": atlas.lines(run),
        "repeats": atlas.repeats(run),
        "scored": (scored := atlas.score_name(run)),
        "lost": atlas.lost(run),
        # guessing finds a label, and no distance from the unmasked model
        "chance": words.chance(run) if scored == LABELS.right else None,
        "prune": prune_command(run),
        "tables": tables,
        "live": network and network.about,
    }
    return render(
        "report.html.jinja",
        data,
        run=run,
        title=run.name,
        has={
            "heads": bool(heads),
            "curves": bool(heads and data["lines"]),
            "chance": data["chance"] is not None,
            "control": any(one["chance"] or one["twin"] for one in measures),
        },
        scripts=[
            "common.js",
            *(["atlas.js", "charts.js"] if heads else []),
            *(["live.js"] if network else []),
            "tables.js",
        ],
        packs=network.packs if network else {},
        modules=[runtime()] if network else [],
        live=network is not None,
        live_page=page_beside,
        words=said,
        first=SENTENCES if heads else len(said),
        first_figures=FIGURES,
        claims=words.verdicts(run.rows("claims")),
        glance=words.glance(heads, measures),
        chosen_on=words.chosen_on(run),
        facts=facts_shown(run),
        scored=scored,
        figures=_shown_first(figures, measures[opens]["key"] if measures else ""),
        left_out=left_out,
    )


def render(
    template: str,
    data: dict[str, Any],
    scripts: Sequence[str],
    styles: Sequence[str] = ("page.css",),
    packs: Mapping[str, str] = MappingProxyType({}),
    modules: Sequence[str] = (),
    **names: Any,
) -> str:
    """Render a page with its styles, scripts and data inside; data are escaped everywhere.

    packs: base64 of compressed bytes, by the id of their element. modules: texts of modules, which
    may use WebAssembly.
    """
    vendored = [HERE / "vendor" / name for name in ("d3.min.js", "plot.umd.min.js")]
    texts = [
        path.read_text(encoding="utf-8") for path in [*vendored, *(HERE / name for name in scripts)]
    ]
    hashes = [hashlib.sha256(text.encode()).digest() for text in (*texts, *modules)]
    return (
        templates()
        .get_template(template)
        .render(
            **names,
            json=as_script(data),
            style="".join((HERE / name).read_text(encoding="utf-8") for name in styles),
            scripts=texts,
            modules=modules,
            packs=packs,
            # of the Content-Security-Policy: no other script of the page runs
            allowed=[f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes],
            now=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        )
    )


@functools.cache
def templates() -> jinja2.Environment:
    """Return the templates of this folder; each is compiled once, and again after its file changed."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )


def as_script(data: Any) -> str:
    """Return JSON that cannot end a script element or start a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def facts_shown(run: Run) -> list[tuple[str, str]]:
    """Return the facts of a run, as pairs of a name and its text, "not recorded" if missing."""
    record = run.facts
    hardware = record.get("hardware", {})
    parts = [hardware.get("processor"), f"{hardware.get('cores')} cores", *hardware.get("gpus", [])]
    versions = ", ".join(
        f"{name} {version}" for name, version in record.get("versions", {}).items()
    )
    settings = f"; its settings: {shlex.join(run.overrides)}" if run.overrides else ""
    return [
        ("Command", record.get("command") or f"not recorded{settings}"),
        ("Commit", record.get("commit") or "not recorded"),
        ("Versions", versions or "not recorded"),
        (
            "Hardware",
            ", ".join(str(part) for part in parts if part) if hardware else "not recorded",
        ),
        (
            "Time",
            _time(record["finished"], record.get("seconds"))
            if "finished" in record
            else "not recorded",
        ),
        *_inputs(record.get("inputs")),
        ("Seed", str(run.config.get("seed", "not recorded"))),
        ("Folder", str(run.folder)),
    ]


def _inputs(plain: Any) -> list[tuple[str, str]]:
    """Say how files of weights and images were interpreted; a guess is marked."""
    return [
        (
            short(f"{str(reading.what)[:1].upper()}{str(reading.what)[1:]}", 40),
            short(f"{reading.taken}, {reading.source}{' (a guess)' if reading.guess else ''}", 600),
        )
        for reading in restored(plain if isinstance(plain, list) else ())
    ]


def _time(finished: str, seconds: int | None) -> str:
    """Write a time, e.g. ``2 min 15 s, until 2026-11-22 04:38 UTC``."""
    until = (
        datetime.datetime.fromisoformat(finished)
        .astimezone(datetime.UTC)
        .strftime("until %Y-%m-%d %H:%M UTC")
    )
    if seconds is None:
        return until
    parts = {"h": seconds // 3600, "min": seconds // 60 % 60, "s": seconds % 60}
    return (
        f"{' '.join(f'{count} {unit}' for unit, count in parts.items() if count) or '0 s'}, {until}"
    )


def prune_command(run: Run) -> dict[str, str]:
    """Return the command that removes chosen heads: the text before their numbers and after them."""
    file = run.folder / "model.safetensors"
    weights = str(file) if file.exists() else run.config.get("weights")
    same = [
        "+experiment=",
        "experiment=",
        "data=",
        "data.",
        "+data",
        "trainer=",
        "trainer.",
        "cache_dir=",
        "score=",
    ]
    backbone = run.config.get("backbone") or {}
    by_name = weights is None and bool(backbone.get("checkpoint") or backbone.get("pretrained"))
    same += ["backbone=", "backbone.", "+backbone."] if by_name else ["backbone.num_classes="]
    overrides = [text for text in run.overrides if text.startswith(tuple(same))]
    overrides += [] if by_name else [f"weights={weights or 'FILE'}"]
    before = shlex.join(["python", "-m", "mhprobe.prune", *overrides, "prune=given"])
    return {"before": f"{before} 'prune.heads=[", "after": "]'"}


def _tables(run: Run) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the tables that there is room for, small ones first, and the names of the others."""
    room, shown, left_out = ROOM, [], []
    for name, table in sorted(
        run.tables.items(), key=lambda item: len(item[1].rows) * len(item[1].columns)
    ):
        rows = [atlas.few_digits(row) for row in table.rows]
        size = len(json.dumps(rows))
        if size > room:
            left_out.append(name)
            continue
        room -= size
        shown.append({"name": name, "columns": table.columns, "rows": rows})
    return sorted(shown, key=lambda table: str(table["name"])), sorted(left_out)


def _figures(run: Run) -> list[dict[str, Any]]:
    """Return the figures with their captions: masking first, those during training last."""
    results = sorted(
        run.results.items(),
        key=lambda item: (bool(item[1].during), item[1].kind != "curves", item[0]),
    )
    drawn = {entry.figure: entry for _, entry in results if entry.figure is not None}
    pngs = ((file, run.files.tried(run.files.bytes, file, FIGURE)) for file in drawn)
    pictures = embedded_pictures((file, png) for file, png in pngs if png is not None)
    names = {entry.figure: name for name, entry in results}
    return [
        {
            "name": drawn[file].title,
            "own": picture,
            "caption": drawn[file].caption,
            "drawn": drawn[file].drawn,
            "result": names[file],
        }
        for file, picture in pictures.items()
    ]


def _shown_first(figures: Sequence[dict[str, Any]], opens: str) -> list[dict[str, Any]]:
    """Put one figure of each kind of ``SHOWN`` in front, and give each caption once.

    opens: the result of the measure that the page opens with; its figure stands for its kind.
    read_as: the name of the figure that has the same caption, "" for the first of them.
    """
    front: list[dict[str, Any]] = []
    for kind in SHOWN:
        alike = [figure for figure in figures if figure["drawn"] == kind]
        front += sorted(alike, key=lambda figure: figure["result"] != opens)[:1]
    order = [*front, *(figure for figure in figures if figure not in front)]
    had: dict[str, str] = {}
    for figure in order:
        caption = figure["caption"]
        first = had.setdefault(caption, figure["name"]) if caption else figure["name"]
        figure["read_as"] = "" if first == figure["name"] else first
    return order
