"""Masking figures: accuracy as heads are switched off, which are off, and why they can go."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from matplotlib.colors import ListedColormap
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mhprobe.heads import HeadLayout
from mhprobe.io.written import counted
from mhprobe.masking.parts.trace import Curve
from mhprobe.masking.redundant_or_inert import Likeness, MaskedHead
from mhprobe.report.figures import captioned, style
from mhprobe.report.figures.style import COLOURS, MARKERS, Axes, Figure

# curves: of more the bands are paler, and the thin lines of the images that chose are left out
CROWD = 6
Over = Literal["heads", "steps"]  # what the x axis counts
_Ends = tuple[float, float]  # of an axis
DASHES: tuple[Any, ...] = (
    "-",
    (0, (4, 1.2)),
    (0, (1.2, 1)),
)  # another one when the colours begin anew
ON, OFF, GONE = "#DCE6EE", "#24425C", "#D55E00"
PHASES = {
    "before": "shown to go for little",
    "at": "at the drop",
    "after": "after it",
    "undecided": "undecided",
}


@captioned(
    "Accuracy as heads are switched off. Bands are 95 % intervals over images, at the grey line, "
    "the mean of random "
    "orders, over orders. Dotted: guessing. On the images that chose a searched order its curve "
    "flatters: the thin "
    "line, where there is one. Exact search tries every unit at every step; others drop poor ones "
    "early."
)
def curves(
    curves: Sequence[Curve],
    num_heads: int,
    chance: float | None = None,
    over: Over = "heads",
    units: str = "heads",
) -> Figure:
    """Accuracy in per cent over the number of heads masked (or of steps), all curves of a run, with 95 % bands.

    The last split is drawn; thin, of few curves, the split that chose a searched curve. A ring
    marks the first step that is significantly less accurate (McNemar, Holm over the curve). chance:
    drawn if a curve is near. units: words.
    """
    split = curves[-1].split
    looks = _looks(curves)
    shown = sorted(
        (c for c in curves if c.split == split), key=lambda c: -float(c.points.accuracy.mean())
    )
    crowded = len(shown) > CROWD
    names = _curve_names(shown, over)
    tall = max(3.2, 0.2 + 0.17 * (len(shown) + 7))  # the legend stands beside the axes
    with style.panel((3.6, tall - 0.7), (0.55, 0.5, 2.15, 0.2)) as (figure, axes):
        if not crowded:
            _thin(axes, _on_choosing_images(curves, split), looks, over)
        for curve in shown:
            look = looks.get(curve.name, ("0.45", "", "-"))
            _curve(axes, curve, names[curve.name], look, over, crowded)
            _promise(axes, curve, over)
        _notes(axes, shown)
        if curves[0].step[0] == 0:
            style.level(axes, 100 * float(shown[0].points.accuracy[0]), "unmasked", zorder=1)
        bottom, top, right = _range(curves, num_heads, over)
        if chance is not None and 100 * chance > bottom:
            style.level(axes, 100 * chance, "chance", ":", zorder=1)
        axes.set(
            xlim=(-0.02 * right, 1.02 * right),
            ylim=(bottom, top),
            ylabel=f"{split} {shown[0].scored.right} (%)",
        )
        style.whole_ticks(axes.xaxis)
        axes.set_xlabel(f"{units} masked (of {num_heads})" if over == "heads" else "masking step")
        _legend_led_by(axes, list(names.values()))
    return figure


def _looks(curves: Sequence[Curve]) -> dict[str, tuple[str, str, Any]]:
    """Return shade, marker and dashes of each curve by its name; means of repeats have none."""
    numbered = dict.fromkeys(curve.name for curve in curves if not curve.averaged)
    return {
        name: (*style.colour(i), DASHES[i // len(COLOURS) % len(DASHES)])
        for i, name in enumerate(numbered)
    }


def _on_choosing_images(curves: Sequence[Curve], split: str) -> list[Curve]:
    """Return the curves on the images that chose them. split: the one that is reported."""
    return [curve for curve in curves if curve.split != split and not curve.averaged]


def _legend_led_by(axes: Axes, first: Sequence[str]) -> None:
    """Draw the legend beside the axes: these labels first, then the others as they were drawn."""
    handles = {str(handle.get_label()): handle for handle in axes.get_legend_handles_labels()[0]}
    labels = [*first, *(label for label in handles if label not in first)]
    style.legend_beside(axes, handles=[handles[label] for label in labels], labels=labels)


def _thin(
    axes: Axes, chosen: Sequence[Curve], looks: Mapping[str, tuple[str, str, Any]], over: Over
) -> None:
    """Draw thin lines of curves on the images that chose them; a single point is no line."""
    for curve in chosen:
        if len(curve.step) > 1:
            shade, _, dashes = looks[curve.name]
            axes.plot(
                _across(curve, over),
                (100 * curve.points.accuracy).tolist(),
                label=f"_{curve.name}, {curve.split}",
                color=shade,
                linestyle=dashes,
                linewidth=0.5,
            )
    for chose in dict.fromkeys(curve.split for curve in chosen):
        axes.plot([], [], color="0.3", linewidth=0.5, label=f"thin: {chose}, chosen on it")


def _notes(axes: Axes, shown: Sequence[Curve]) -> None:
    """Add to the legend what the rings are, and how the curves were chosen."""
    if any(curve.worse is not None and curve.worse.any() for curve in shown):
        ring: Any = {"color": "0.3", "markersize": 7, "markerfacecolor": "none"}
        axes.plot([], [], "o", label="first sign. lower", **ring)
    if any(curve.optimistic for curve in shown):
        label = f"chosen on {shown[0].split}:\ntoo high, not tested"
        axes.plot([], [], linestyle="", label=label)
    searches = {curve.search for curve in shown if curve.search}
    if len(searches) == 1:
        axes.plot([], [], linestyle="", label=f"steps chosen by\n{searches.pop()} search")


def _curve(
    axes: Axes, curve: Curve, name: str, look: tuple[str, str, Any], over: Over, crowded: bool
) -> None:
    """Draw one curve with its band and its ring, or a single point with its interval."""
    shade, marker, dashes = look
    points = curve.points
    heads = _across(curve, over)
    ends = [(100 * part).tolist() for part in (points.accuracy, points.low, points.high)]
    if len(heads) == 1:
        style.whiskers(axes, heads, ends, color=shade, marker=marker or "_", ms=4, label=name)
        return
    every = -(-len(heads) // 13)  # markers of a step each would hide a long curve
    shadow = (
        0.3 if curve.averaged else 0.06 if crowded else 0.15
    )  # many bands on each other would hide the lines
    style.band(
        axes,
        heads,
        ends,
        shade,
        shadow,
        label=name,
        linestyle=dashes,
        marker=marker,
        ms=3,
        markevery=every,
    )
    if curve.worse is not None and curve.worse.any():
        k = curve.drop
        axes.plot(
            heads[k],
            ends[0][k],
            "o",
            color=shade,
            markersize=7,
            markerfacecolor="none",
            label="_ring",
        )


def _promise(axes: Axes, curve: Curve, over: Over) -> None:
    """Mark the end of the promise, and name it."""
    if curve.guarantee is None or (steps := curve.traces[0].promised) is None:
        return
    points, sure = counted(curve.guarantee.points, "point"), 100 * curve.guarantee.confidence
    text = f"at most {points} lost\non new images, {sure:g} % sure"
    if steps:
        axes.axvline(
            _across(curve, over)[steps], color="0.3", linestyle="-.", linewidth=0.8, zorder=1
        )
    line = "-." if steps else ""
    axes.plot(
        [],
        [],
        color="0.3",
        linestyle=line,
        linewidth=0.8,
        label=f"{'to here' if steps else 'nowhere'}: {text}",
    )


def _curve_names(shown: Sequence[Curve], over: Over) -> dict[str, str]:
    """Name curves for the legend: with their search if curves differ in it, over steps with the heads of a step."""
    searches = {curve.search for curve in shown if curve.search}
    names = {}
    for curve in shown:
        search = f" ({curve.search})" if curve.search and len(searches) > 1 else ""
        fill = "" if curve.fill == "zero" else f", filled: {curve.fill}"
        heads, *others = set(curve.points.heads.diff().tolist()) or {
            0.5
        }  # of a step; an index or a layer is several
        several = over == "heads" or others or not heads.is_integer()
        names[curve.name] = (
            curve.name
            + search
            + fill
            + ("" if several else f" ({counted(int(heads), 'head')} a step)")
        )
    return names


def _across(curve: Curve, over: Over) -> list[float]:
    """Return the x values of the points."""
    return curve.points.heads.tolist() if over == "heads" else [float(step) for step in curve.step]


def _range(curves: Sequence[Curve], num_heads: int, over: Over) -> tuple[float, float, float]:
    """Return limits of the axes: lowest and highest accuracy in per cent, and most heads or steps."""
    right = max(max(_across(curve, over)) for curve in curves)
    if right == 0 or all(len(curve.step) == 1 for curve in curves):
        return -2, 102, num_heads
    low = 100 * min(float(curve.points.low.min()) for curve in curves)
    high = 100 * max(float(curve.points.high.max()) for curve in curves)
    room = 0.05 * (high - low) + 1
    return (-2 if low < 25 else low - room), min(102, high + room), right


@captioned(
    "Distance from the unmasked model as heads are switched off: 0 is the same, smaller is closer. "
    "A band is the 95 % "
    "interval over images, of random orders over repeats."
)
def distances(curves: Sequence[Curve], num_heads: int) -> Figure:
    """Mean loss of each curve's score over the number of heads masked, with its 95 % band; the last split."""
    split = curves[-1].split
    shown = [curve for curve in curves if curve.split == split]
    most = max(float(curve.points.heads[-1]) for curve in shown) or num_heads
    with style.panel((3.5, 2.5), (0.85, 0.5, 1.95, 0.2)) as (figure, axes):
        for number, curve in enumerate(shown):
            points, (shade, marker) = (
                curve.points,
                ("0.45", "") if curve.averaged else style.colour(number),
            )
            whole = points.loss - points.delta  # of the unmasked model; delta has the interval
            ends = [
                of.tolist()
                for of in (points.loss, whole + points.delta_low, whole + points.delta_high)
            ]
            look: Any = {
                "marker": marker,
                "ms": 3,
                "markevery": -(-len(whole) // 13),
                "label": curve.name,
            }
            style.band(axes, points.heads.tolist(), ends, shade, **look)
        style.whole_ticks(axes.xaxis)
        text = style.wrapped(f"{split}: {shown[0].scored.lost}, smaller is closer", 2.5)
        axes.set(
            xlim=(-0.02 * most, 1.02 * most), xlabel=f"heads masked (of {num_heads})", ylabel=text
        )
        style.legend_beside(axes)
    return figure


@captioned(
    "Accuracy when heads of one kind of layer go, in the order of their importance. Bands are 95 % "
    "intervals over "
    "images. Kinds have different numbers of heads: the legend says how many."
)
def kinds_of_layers(rows: Sequence[Mapping[str, Any]], chance: float) -> Figure:
    """A line per kind of layer. rows: kind, share, heads_masked, heads, accuracy, low, high."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    with style.panel((3.0, 2.3), (0.55, 0.5, 1.85, 0.2)) as (figure, axes):
        for number, kind in enumerate(kinds):
            shade, marker = style.colour(number)
            points = [row for row in rows if row["kind"] == kind]
            x, *ends = style.in_percent(points, "share", "accuracy", "low", "high")
            style.band(
                axes,
                x,
                ends,
                shade,
                0.12,
                marker=marker,
                markersize=3,
                label=f"{kind} ({points[0]['heads']})",
            )
        if 100 * chance > axes.get_ylim()[0]:
            style.level(axes, 100 * chance, "chance", ":")
        axes.set(xlabel="heads of the kind masked (%)", ylabel="test accuracy (%)")
        style.legend_beside(axes, title="kind (heads)")
    return figure


@captioned(
    "What is masked in each way: a row per curve, a small grid of blocks by heads per step. Dark "
    "heads are off, "
    "orange ones have just gone."
)
def masked_at_each_step(layout: HeadLayout, curves: Mapping[str, Tensor], most: int = 8) -> Figure:
    """A row of at most ``most`` grids per curve, whose masks are (steps + 1, A) bool, True off, step 0 first."""
    deep = len(layout.sites)
    heads = max(site.num_heads for site in layout.sites)
    wide, tall = 0.85, min(0.85, max(0.35, 0.85 * deep / heads))
    left, gap, down, top = 1.0, 0.14, 0.24, 0.1
    shown = {
        name: [1 + step for step in style.some_evenly(len(masks) - 1, most)]
        for name, masks in curves.items()
    }
    size = (
        left + max(map(len, shown.values())) * (wide + gap),
        top + len(curves) * (tall + down) + 0.1,
    )
    look: Any = {"cmap": ListedColormap([ON, OFF, GONE]), "vmin": 0, "vmax": 2, "aspect": "auto"}
    with style.canvas(size) as figure:
        for row, (name, masks) in enumerate(curves.items()):
            y = size[1] - top - (row + 1) * (tall + down) + 0.05
            for column, step in enumerate(shown[name]):
                state = masks[step].int() + (masks[step] & ~masks[max(0, step - 1)]).int()
                grid = pad_sequence(
                    [*layout.split(state.float())], batch_first=True, padding_value=torch.nan
                )
                axes = style.axes_at(figure, left + column * (wide + gap), y, wide, tall)
                style.tile(axes, grid.numpy(), **look)
                axes.set_title(f"step {step}", pad=2, fontsize=7)
                if column == 0:
                    style.name_beside(axes, name)
    return figure


@captioned(
    "Are the heads that can go redundant or inert? Up: similarity to the most similar kept head. 0 "
    "(dotted): the "
    "highest similarity found after shuffling the images; 1: identical. Filled: redundant, which "
    "is more similar than "
    "chance and than 95 % of the heads that are needed. Across: how much the head writes; left of "
    "the dashed line: "
    "inert. If needed heads stand as high, similarity does not explain why the others can go."
)
def maskable(heads: Sequence[MaskedHead], similarity: str, inert: float) -> Figure:
    """A panel per curve, a point per head; 0 is the measure's own 0 if it has no chance level."""
    curves = _by_curve(heads, similarity)
    per_row = min(3, max(1, len(curves)))
    entries = len(PHASES) + 1  # of the legend, which stands below
    beside = entries if per_row == 3 else 2
    rows = -(-entries // beside)  # of the legend
    points = [point for of in curves.values() for point in of]
    across, up = _limits(points, inert)
    likeness = f"likeness to a kept head\n({similarity}{_above(points)})"
    edges = (0.68, 0.68 + 0.17 * (rows - 1), 0.42, 0.3)
    with style.grid(len(curves), (1.9, 1.9), (0.42, 0.42), edges, 3.5, per_row) as (figure, places):
        for (axes, first, last), (name, of) in zip(places, curves.items(), strict=True):
            _phases(axes, of)
            _references(axes, inert)
            axes.set_xscale("log")
            style.log_ticks(axes.xaxis, _digits(across))
            axes.set(xlim=across, ylim=up)
            axes.set_title(name, pad=3)
            axes.set_xlabel("write norm / median head" if last else "")
            axes.set_ylabel(likeness if first else "")
        if curves:
            handles, labels = axes.get_legend_handles_labels()
            hollow = axes.plot([], [], "o", color="0.4", markersize=4, markerfacecolor="none")
            handles, labels = [*handles[::-1], *hollow], [*labels[::-1], "hollow: not redundant"]
            figure.legend(handles, labels, loc="lower center", ncols=beside, borderaxespad=0.3)
    return figure


def _limits(points: Sequence[tuple[MaskedHead, Likeness]], inert: float) -> tuple[_Ends, _Ends]:
    """Return the limits across and up that hold all points, also where there are none."""
    shares = [_written(head) for head, _ in points]
    top = min(1.03, 1.15 * max([0.4, *(like.standing for _, like in points)]))
    return (0.8 * min([*shares, inert]), 1.25 * max([*shares, 1.0])), (-0.06, top)


def _digits(across: _Ends) -> tuple[int, ...]:
    """Return the digits of a decade that are labelled: on a long axis more would run into each other."""
    lowest, highest = across
    return (1, 2, 5) if highest / lowest < 100 else (1,)


def _above(points: Sequence[tuple[MaskedHead, Likeness]]) -> str:
    """Say that 0 is chance, where the measure has a chance level."""
    return ", above chance" if any(like.null is not None for _, like in points) else ""


def _references(axes: Axes, inert: float) -> None:
    """Draw the line left of which a head is inert, and the likeness 0."""
    axes.axvline(inert, color="0.4", linestyle="--", linewidth=0.8, zorder=0)
    axes.text(0.02, 0.98, "inert", transform=axes.transAxes, va="top", fontsize=6.5, color="0.4")
    style.level(axes, 0, dashes=":", color="0.4", zorder=0)


def _by_curve(
    heads: Sequence[MaskedHead], similarity: str
) -> dict[str, list[tuple[MaskedHead, Likeness]]]:
    """Return the heads that have this likeness, with it, by their curve."""
    curves: dict[str, list[tuple[MaskedHead, Likeness]]] = {}
    for head in heads:
        like = head.likeness[similarity]
        if like is not None:
            curves.setdefault(head.curve, []).append((head, like))
    return curves


def _phases(axes: Axes, heads: Sequence[tuple[MaskedHead, Likeness]]) -> None:
    """Draw the heads of a curve by when they go, filled where one is redundant; what goes first is drawn last."""
    looks = list(zip(PHASES.items(), COLOURS, MARKERS, strict=False))
    for (phase, text), shade, marker in reversed(looks):
        for redundant, face, label in ((False, "none", None), (True, shade, text)):
            of_these = [
                (head, like)
                for head, like in heads
                if head.phase == phase and head.redundant == redundant
            ]
            axes.plot(
                [_written(head) for head, _ in of_these],
                [like.standing for _, like in of_these],
                marker,
                color=shade,
                markerfacecolor=face,
                markersize=4,
                alpha=0.8,
                label=label,
            )


def _written(head: MaskedHead) -> float:
    """Return where a head stands on a logarithmic axis, which has no 0."""
    return max(head.write_share, 1e-3)
