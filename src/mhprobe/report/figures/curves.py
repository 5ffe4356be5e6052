"""Accuracy against the number of heads masked, every curve of a run with its band."""

from collections.abc import Sequence
from typing import Any, Literal

from mhprobe.masking.parts.trace import Curve, first
from mhprobe.report.figures.style import COLOURS, Axes, Figure, canvas, colour, place

CROWD = 6  # curves: of more the bands are paler, and the thin lines of the images that chose are left out
Over = Literal["heads", "steps"]  # what the x axis counts
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.2)), (0, (1.2, 1)))  # another one when the colours begin anew

CAPTION = (
    "Accuracy as heads are switched off. A band is the 95 % interval, the grey line the mean over random orders, "
    "the dotted line guessing. Searched orders were chosen on validation images; a thin line is their validation "
    "curve, which flatters."
)


def draw(curves: Sequence[Curve], num_heads: int, chance: float | None = None, over: Over = "heads") -> Figure:
    """Accuracy in per cent over the number of heads masked (or of steps), all curves of a run, with 95 % bands.

    Drawn is the last split that occurs, the one to report; thin and without a band, of few curves, the split that a
    searched curve was chosen on. A ring: the first step that is significantly less accurate than the unmasked model
    (McNemar, Holm over the curve); on the images that chose the path there is none, and the legend says so. Of a random
    curve the mean over repeats is drawn, in grey. The legend names the searches.
    What accuracy is, the score says (``Curve.scored``), and the axis; it is larger where masking hurts less.
    Dashed: the unmasked model. Dotted: chance. The axes end where the curves do: a short search is seen large, and
    chance only where some curve comes near it. Where a guarantee was asked for, a line across says how far it holds.
    Over steps the legend says how many heads a step takes, where all steps of the curve take as many.
    """
    from matplotlib.ticker import MaxNLocator

    split = curves[-1].split
    places = {name: i for i, name in enumerate(dict.fromkeys(c.name for c in curves if not c.averaged))}
    looks = {name: (*colour(i), DASHES[i // len(COLOURS) % len(DASHES)]) for name, i in places.items()}
    shown = sorted((c for c in curves if c.split == split), key=lambda c: -float(c.points.accuracy.mean()))
    names = {name: text + _a_step(shown, name, over) for name, text in _names(shown).items()}
    tall = max(3.2, 0.2 + 0.17 * (len(shown) + 7))  # the legend stands beside the axes
    with canvas((6.3, tall)) as figure:
        axes = place(figure, 0.55, 0.5, 3.6, tall - 0.7)
        if len(shown) <= CROWD:
            _thin(axes, [c for c in curves if c.split != split and not c.averaged], looks, over)
        for curve in shown:
            _line(axes, curve, names[curve.name], looks.get(curve.name, ("0.45", "", "-")), over, len(shown) > CROWD)
            _promise(axes, curve, over)
        _notes(axes, shown)
        if curves[0].step[0] == 0:
            unmasked = 100 * float(shown[0].points.accuracy[0])
            axes.axhline(unmasked, color="0.3", linestyle="--", linewidth=0.8, zorder=1, label="unmasked")
        bottom, top, right = _range(curves, num_heads, over)
        if chance is not None and 100 * chance > bottom:
            axes.axhline(100 * chance, color="0.3", linestyle=":", linewidth=0.8, zorder=1, label="chance")
        axes.set(xlim=(-0.02 * right, 1.02 * right), ylim=(bottom, top))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel(f"heads masked (of {num_heads})" if over == "heads" else "masking step")
        axes.set_ylabel(f"{split} {shown[0].scored.right} (%)")
        handles = {str(handle.get_label()): handle for handle in axes.get_legend_handles_labels()[0]}
        order = [*names.values(), *(name for name in handles if name not in names.values())]
        axes.legend([handles[n] for n in order], order, loc="center left", bbox_to_anchor=(1.02, 0.5), borderaxespad=0)
    return figure


def _line(axes: Axes, curve: Curve, name: str, look: tuple[str, str, Any], over: Over, crowded: bool) -> None:
    """One curve with its band and its ring; a single point with its interval."""
    shade, marker, dashes = look
    points = curve.points
    heads, accuracy = _across(curve, over), (100 * points.accuracy).tolist()
    low, high = (100 * points.low).tolist(), (100 * points.high).tolist()
    if len(heads) == 1:
        below, above = accuracy[0] - low[0], high[0] - accuracy[0]
        axes.errorbar(heads, accuracy, [[below], [above]], color=shade, marker=marker or "_", ms=4, label=name)
        return
    every = -(-len(heads) // 13)  # markers of a step each would hide a long curve
    axes.plot(heads, accuracy, label=name, color=shade, linestyle=dashes, marker=marker, ms=3, markevery=every)
    shadow = 0.3 if curve.averaged else 0.06 if crowded else 0.15  # many bands on each other would hide the lines
    axes.fill_between(heads, low, high, color=shade, alpha=shadow, linewidth=0)
    if curve.worse is not None and curve.worse.any():
        k = first(curve.worse)
        axes.plot(heads[k], accuracy[k], "o", color=shade, markersize=7, markerfacecolor="none", label="_ring")


def _thin(axes: Axes, curves: Sequence[Curve], looks: dict[str, tuple[str, str, Any]], over: Over) -> None:
    """The same curves on the images that chose them."""
    for curve in curves:
        if len(curve.step) > 1:
            shade, _, dashes = looks[curve.name]
            x, y = _across(curve, over), (100 * curve.points.accuracy).tolist()
            axes.plot(x, y, color=shade, linestyle=dashes, linewidth=0.5, label=f"_{curve.name}, {curve.split}")
    for split in dict.fromkeys(curve.split for curve in curves):
        axes.plot([], [], color="0.3", linewidth=0.5, label=f"thin: {split}, chosen on it")


def _promise(axes: Axes, curve: Curve, over: Over) -> None:
    """Mark the end of the promise, and name it."""
    if curve.guarantee is None or curve.traces[0].promised is None:
        return
    steps = curve.traces[0].promised
    asked = (
        f"at most {curve.guarantee.points:g} points lost\non new images, {100 * curve.guarantee.confidence:g} % sure"
    )
    if steps:
        axes.axvline(_across(curve, over)[steps], color="0.3", linestyle="-.", linewidth=0.8, zorder=1)
    line = "-." if steps else ""
    axes.plot([], [], color="0.3", linestyle=line, linewidth=0.8, label=f"{'to here' if steps else 'nowhere'}: {asked}")


def _notes(axes: Axes, shown: Sequence[Curve]) -> None:
    """Return legend entries that hold for all lines."""
    if any(curve.worse is not None and curve.worse.any() for curve in shown):
        axes.plot([], [], "o", color="0.3", markersize=7, markerfacecolor="none", label="first sign. lower")
    if any(curve.optimistic for curve in shown):
        axes.plot([], [], linestyle="", label=f"chosen on {shown[0].split}:\ntoo high, not tested")
    searches = {curve.search for curve in shown if curve.search}
    if len(searches) == 1:
        axes.plot([], [], linestyle="", label=f"search: {searches.pop()}")


def _names(shown: Sequence[Curve]) -> dict[str, str]:
    """Names of curves in the legend, with their search where curves differ in it."""
    searches = {curve.search for curve in shown if curve.search}
    named = {c.name: f"{c.name} ({c.search})" if c.search and len(searches) > 1 else c.name for c in shown}
    return {c.name: named[c.name] if c.fill == "zero" else f"{named[c.name]}, filled: {c.fill}" for c in shown}


def _a_step(shown: Sequence[Curve], name: str, over: Over) -> str:
    """Return the heads of a step of this curve, where that is one number; an index or a layer is several."""
    heads = next(curve.points.heads for curve in shown if curve.name == name)
    taken = set(heads.diff().tolist()) if over == "steps" else set()
    if len(taken) != 1 or not (each := taken.pop()).is_integer():
        return ""
    return f" ({each:.0f} head{'s' if each != 1 else ''} a step)"


def _across(curve: Curve, over: Over) -> list[float]:
    """Return the places of the points on the x axis."""
    return curve.points.heads.tolist() if over == "heads" else [float(step) for step in curve.step]


def _range(curves: Sequence[Curve], num_heads: int, over: Over) -> tuple[float, float, float]:
    """Lowest and highest accuracy in per cent, and most heads or steps, of the axes; all for points of a sweep."""
    right = max(max(_across(curve, over)) for curve in curves)
    if right == 0 or all(len(curve.step) == 1 for curve in curves):
        return -2, 102, num_heads
    low = 100 * min(float(curve.points.low.min()) for curve in curves)
    high = 100 * max(float(curve.points.high.max()) for curve in curves)
    room = 0.05 * (high - low) + 1
    return (-2 if low < 25 else low - room), min(102, high + room), right
