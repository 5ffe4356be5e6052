"""Style of all figures: the look, axes placed in inches, colour scales, files, fitting to a printed page.

Figures are made without pyplot, so without a window system and global state. Colours suit
colour-blind readers.
"""

import contextlib
import contextvars
import io
import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from matplotlib import colormaps, rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure, FigureBase, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox
from torch import Tensor

from mhprobe.data.augment import in_colours
from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.io.written import rounded

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # text stays text
}
Pair = tuple[float, float]
Edges = tuple[float, float, float, float]
"""Inches left, below, right and above."""
Names = Mapping[str, Sequence[str]]
"""Names along the extra axis of columns."""
NAMELESS: Names = MappingProxyType({})
NOT_COMPARED = "0.85"
SCREEN = 150  # dots per inch of a PNG for the screen; text is some percent wider at 150 than at 100
ONE, TWO = 3.35, 7.0  # inches of a column of a printed page, and of both with what is between them
LEAST, DPI = 6.0, 300  # points of the smallest text, and dots per inch, on paper
LAYER_GAP = 0.12, 0.32  # inches between panels of layers
_TICKS = 7.0  # points of the smallest text of a figure on the screen, as a rule
OUTLIER = 8  # times the median: from there on a colour scale is logarithmic
# Okabe & Ito's colours without yellow, in an order in which neighbours differ in lightness too
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
ORIGIN = {"version": "mhprobe {}", "commit": "commit {}", "command": "{}"}
PNG = {"version": "Software", "commit": "Comment", "command": "Source"}
PDF = {
    "version": "Creator",
    "commit": "Keywords",
    "command": "Subject",
}  # of the few names that PDF knows
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "d")


def save_figure(
    figure: Figure,
    stem: Path,
    about: str = "",
    paper: bool = False,
    origin: Mapping[str, str] = MappingProxyType({}),
) -> list[Path]:
    """Write ``<stem>.png`` (150 dpi) and ``<stem>.pdf``; the same figure gives the same bytes.

    about: model, data and number of images, in small print below. paper: fit the columns of a
    printed page (``fit_columns``).
    origin: "version", "commit" and "command", for the files' metadata (``PNG``, ``PDF``).
    """
    dots = DPI if paper else SCREEN
    box = printed(
        figure, dots, paper
    )  # before the small print, which is placed below the final size
    with rc_context(STYLE):
        if about:
            above = figure.get_tightbbox()
            lowest = min(0.0, above.y0 / figure.get_figheight())  # a legend may hang below
            size = LEAST if paper else 5.5
            small = figure.text(
                0.99, lowest, about, ha="right", va="top", fontsize=size, color="0.45"
            )
            if paper:
                box = fit_columns(figure)
            else:  # "tight" would look at all of it again
                below = small.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
                box = Bbox.union([above, below]).padded(rcParams["savefig.pad_inches"])
    words = {part: ORIGIN[part].format(value) for part, value in origin.items()}
    paths = []
    for suffix, names, more in ((".png", PNG, {}), (".pdf", PDF, {"CreationDate": None})):
        metadata: Any = {**{names[part]: text for part, text in words.items()}, **more}
        data = io.BytesIO()
        with rc_context(STYLE):
            figure.savefig(data, format=suffix[1:], dpi=dots, metadata=metadata, bbox_inches=box)
        paths.append(write(stem.with_name(stem.name + suffix), data.getvalue()))
    return paths


def printed(figure: Figure, dots: int, paper: bool) -> Bbox | None:
    """Prepare a figure for a resolution, and for paper its width; return the box to print, in inches."""
    figure.set_dpi(dots)
    for legend in figure.legends:
        if legend.get_bbox_to_anchor() is figure.bbox:  # else it would be placed in the printed box
            legend.set_bbox_to_anchor((0, 0, 1, 1), figure.transFigure)
    with rc_context(STYLE):
        return fit_columns(figure) if paper else None


def fit_columns(figure: Figure) -> Bbox:
    """Make the figure fit one printed column, or two if its text would shrink below ``LEAST``; return the box, inches.

    A figure that is narrower than its column stands in the middle of it, in its own size.
    """
    _shrink(figure, 1)  # enlarges text below LEAST
    box = figure.get_tightbbox()
    column = ONE if box.width * LEAST / _TICKS <= ONE else TWO
    for _ in range(6):  # text of LEAST points does not shrink, so once may not be enough
        if box.width <= column:
            break
        _shrink(figure, 0.99 * column / box.width)
        box = figure.get_tightbbox()
    middle = (box.x0 + box.x1) / 2
    return Bbox.from_extents(middle - column / 2, box.y0 - 0.02, middle + column / 2, box.y1 + 0.02)


def _shrink(figure: Figure, by: float) -> None:
    """Scale the figure and its text, but no text below ``LEAST``."""
    figure.set_size_inches(*(by * side for side in figure.get_size_inches()))
    axes: Any
    text: Any
    for axes in figure.findobj(lambda artist: hasattr(artist, "xaxis")):
        for axis, which in itertools.product((axes.xaxis, axes.yaxis), ("major", "minor")):
            if labels := axis.get_ticklabels(
                which=which
            ):  # also those that are only made when the figure is drawn
                axis.set_tick_params(
                    which=which, labelsize=max(LEAST, by * labels[0].get_fontsize())
                )
    for text in figure.findobj(Text):
        text.set_fontsize(max(LEAST, by * text.get_fontsize()))


@contextlib.contextmanager
def canvas(size: tuple[float, float]) -> Iterator[Figure]:
    """Open a figure of (width, height) inches with the common look."""
    with rc_context(STYLE):
        yield _room.get() or Figure(figsize=size)


_room = contextvars.ContextVar[Any]("room", default=None)


def drawn_on(room: SubFigure, draw: Callable[..., Figure], *of: Any) -> Figure:
    """Return ``draw(*of)``, whose ``canvas`` is a part of a figure."""
    context = contextvars.copy_context()
    context.run(_room.set, room)
    return context.run(draw, *of)


def inches(figure: FigureBase) -> tuple[float, float]:
    """Width and height, also of a part of a figure."""
    wide, tall = figure.bbox.size / figure.dpi  # type: ignore[attr-defined]
    return float(wide), float(tall)


def axes_at(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes at a place given in inches."""
    wide, tall = inches(figure)
    return figure.add_axes((left / wide, bottom / tall, width / wide, height / tall))


def colour_bar(
    figure: Figure, image: Any, left: float, bottom: float, tall: float, label: str = ""
) -> Any:
    """Add the colour bar of ``image`` at a place given in inches."""
    bar = figure.colorbar(image, cax=axes_at(figure, left, bottom, 0.1, tall))
    bar.outline.set_visible(False)
    bar.set_label(label)
    return bar


def bar_beside(axes: Axes, image: Any, label: str = "", gap: float = 0.12) -> Any:
    """Add the colour bar of ``image`` right of the axes, as tall as they are. gap: inches."""
    figure: Any = axes.figure
    wide, tall = inches(figure)
    box = axes.get_position()
    return colour_bar(figure, image, box.x1 * wide + gap, box.y0 * tall, box.height * tall, label)


def legend_beside(axes: Axes, at: float = 1.02, star: str = "", **options: Any) -> None:
    """Put the legend right of the axes, halfway up.

    at: its left edge, in widths of the axes. star: what one says.
    """
    if star:
        star_line = Line2D([], [], marker="$*$", ls="none", color="black", ms=5, label=star)
        options["handles"] = [*axes.get_legend_handles_labels()[0], star_line]
    axes.legend(loc="center left", bbox_to_anchor=(at, 0.5), **{"borderaxespad": 0, **options})


def legend_above(axes: Axes, right: bool = False, **options: Any) -> None:
    """Put the legend above the axes, two entries in a row, at their left or right end."""
    at: Any = {"loc": f"lower {'right' if right else 'left'}", "bbox_to_anchor": (int(right), 1)}
    axes.legend(**{**at, "ncols": 2, "borderaxespad": 0.2, **options})


def bare(axes: Axes) -> None:
    """Remove the frame and the strokes at the ticks."""
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def show_picture(axes: Axes, image_3hw: Tensor) -> None:
    """Draw an image in [0, 1] without axes; of other than 3 channels the first three, or their mean."""
    picture, _ = in_colours(image_3hw)
    axes.imshow(picture.permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
    axes.set_axis_off()


def whole_ticks(axis: Any, most: int = 10) -> None:
    axis.set_major_locator(MaxNLocator(most, integer=True))


def log_ticks(axis: Any, digits: Sequence[int] = (1, 2, 5), written: str = "{x:g}") -> None:
    """Put ticks of a logarithmic axis at these digits, as numbers."""
    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(written)
    axis.set_minor_locator(NullLocator())


def shades(name: str, bad: str = NOT_COMPARED) -> Any:
    """Return a colour map, which gives a colour to each place from 0 to 1.

    bad: the colour of NaN.
    """
    return colormaps[name].with_extremes(bad=bad)


def block_shades(layout: HeadLayout) -> Any:
    """Colours by block, from dark to light: for ``colour_bar``, and ``to_rgba(block)``."""
    blocks = [site.block for site in layout.sites]
    return ScalarMappable(Normalize(min(blocks), max(max(blocks), min(blocks) + 1)), "viridis")


def block_bar(
    figure: Figure, shades: Any, left: float, bottom: float, tall: float, label: str = "block"
) -> None:
    """Add a colour bar with whole numbers."""
    whole_ticks(colour_bar(figure, shades, left, bottom, tall, label).ax.yaxis, 6)


def block_ticks(axes: Axes, layout: HeadLayout, cell: float, edge: float | None = None) -> None:
    """Number the blocks below the axes, as densely as ``cell`` inches per block allow.

    edge: blocks that the axes reach beyond the first and the last; None leaves their limits.
    """
    blocks = [site.block for site in layout.sites]
    axes.set(xticks=[blocks[i] for i in ticks(len(blocks), cell)], xlabel="block")
    if edge is not None:
        axes.set_xlim(blocks[0] - edge, blocks[-1] + edge)


def name_rows(axes: Axes, names: Sequence[str], written: bool = True) -> None:
    """Name the rows, the first on top. written: False for panels whose neighbour has the names."""
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names if written else [""] * len(names))


@contextlib.contextmanager
def panel(size: Pair, edges: Edges) -> Iterator[tuple[Figure, Axes]]:
    """Open a ``canvas`` with one panel. size: (width, height) of the panel, inches."""
    left, bottom, right, top = edges
    with canvas((left + size[0] + right, bottom + size[1] + top)) as figure:
        yield figure, axes_at(figure, left, bottom, *size)


class Panel(NamedTuple):
    """Axes in a grid. first: of their row. last: of their column."""

    axes: Axes
    first: bool
    last: bool


def panel_grid(count: int, per_row: int | None = None) -> tuple[int, int]:
    """Return (rows, columns) for ``count`` panels: up to four a row, six if over twelve, evenly filled.

    per_row: in place of four or six; rows are filled from the first on.
    """
    count = max(1, count)
    rows = math.ceil(count / (per_row or (6 if count > 12 else 4)))
    return rows, min(count, per_row) if per_row else math.ceil(count / rows)


def grid_size(count: int, size: Pair, gap: Pair, per_row: int | None = None) -> Pair:
    """Return width and height of all panels of a ``grid``, inches."""
    deep, across = panel_grid(count, per_row)
    return across * size[0] + (across - 1) * gap[0], deep * size[1] + (deep - 1) * gap[1]


@contextlib.contextmanager
def grid(
    count: int, size: Pair, gap: Pair, edges: Edges, least: float = 0, per_row: int | None = None
) -> Iterator[tuple[Figure, list[Panel]]]:
    """Open a ``canvas`` with axes in rows from the top.

    size: (width, height) of a panel; gap: (across, down) between two; edges: around all; least:
    width of the figure; inches.
    """
    left, bottom, right, top = edges
    wide, tall = grid_size(count, size, gap, per_row)
    deep, across = panel_grid(count, per_row)
    with canvas((max(left + wide + right, least), bottom + tall + top)) as figure:
        places = []
        for number in range(count):
            row, column = divmod(number, across)
            x, y = (
                left + column * (size[0] + gap[0]),
                bottom + (deep - 1 - row) * (size[1] + gap[1]),
            )
            places.append(
                Panel(axes_at(figure, x, y, *size), column == 0, number + across >= count)
            )
        yield figure, places


@contextlib.contextmanager
def layer_panels(
    layout: HeadLayout, size: Pair, edge: Pair, labels: tuple[str, str], least: float
) -> Iterator[tuple[Figure, list[Axes]]]:
    """Open a ``grid`` with a panel per layer, all with the same axes.

    edge: left and bottom. labels: of both axes.
    """
    with grid(len(layout.sites), size, LAYER_GAP, (*edge, 0.15, 0.25), least) as (figure, places):
        for number, (axes, first, last) in enumerate(places):
            axes.set_title(site_title(layout, number), pad=3)
            axes.set(xlabel=labels[0] if last else "", ylabel=labels[1] if first else "")
            axes.tick_params(labelleft=first, labelbottom=last)
        yield figure, [axes for axes, _, _ in places]


def tile(axes: Axes, picture: Any, **look: Any) -> None:
    """Draw a picture without ticks and frame. look: for imshow."""
    axes.imshow(picture, **look)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def name_beside(axes: Axes, name: str) -> None:
    """Write the name of a row left of its first picture."""
    axes.set_ylabel(name, rotation=0, ha="right", va="center")


def some_evenly(count: int, most: int) -> list[int]:
    """Choose at most ``most`` numbers below ``count`` evenly, with the first and the last."""
    return torch.linspace(0, count - 1, min(most, count)).round().int().tolist()


def band(
    axes: Axes, x: Any, ends: Sequence[Any], shade: Any, shadow: float = 0.15, **look: Any
) -> None:
    """Draw a line with its interval as a band.

    ends: values, low ends, high ends. look: of the line.
    """
    values, low, high = ends
    axes.plot(x, values, color=shade, **look)
    axes.fill_between(x, low, high, color=shade, alpha=shadow, linewidth=0)


def whiskers(axes: Axes, x: Any, ends: Sequence[Sequence[float]], **look: Any) -> None:
    """Draw points with their intervals. ends: values, low ends, high ends. look: for errorbar."""
    values, low, high = ends
    spread = [
        [max(0.0, b - a) for a, b in zip(*pair, strict=True)]
        for pair in ((low, values), (values, high))
    ]
    axes.errorbar(x, values, spread, **look)


def level(axes: Axes, at: float, label: str = "", dashes: str = "--", **look: Any) -> None:
    """Draw a horizontal reference line."""
    axes.axhline(
        at, **{"color": "0.3", "linestyle": dashes, "linewidth": 0.8, "label": label, **look}
    )


def in_percent(rows: Sequence[Mapping[str, Any]], *names: str) -> list[list[float]]:
    """Return columns of shares, in per cent."""
    return [[100 * row[name] for row in rows] for name in names]


def picture(axes: Axes, values: Tensor, **look: Any) -> Any:
    """Draw a matrix in the colours of ``scale``; return the image. look: for imshow."""
    cmap, norm = scale(values)
    return axes.imshow(values.numpy(), **{"cmap": cmap, "norm": norm, "aspect": "auto", **look})


def line_of_equality(axes: Axes, x: Tensor, y: Tensor) -> None:
    """Draw a grey line where both are equal."""
    both = torch.cat([x, y]).double()
    ends = [float(both.min()), float(both.max())]
    axes.plot(ends, ends, color="0.6", linewidth=0.6, zorder=0)


def places_of_heads(layout: HeadLayout, room: float) -> list[float]:
    """(A,) places on an axis of blocks, the heads of a block spread over ``room`` of its unit."""
    return [site.block + room * ((head + 0.5) / site.num_heads - 0.5) for _, head, site in layout]


def middles(layout: HeadLayout) -> list[float]:
    """Return the middle of each layer's heads on an axis of all heads."""
    return [(a + b - 1) / 2 for a, b in itertools.pairwise(layout.offsets)]


def scale(values: Tensor, log: bool = False) -> tuple[Any, Any]:
    """Return colour map and norm over the finite values: sequential, or diverging from 0 if there are both signs.

    log: make the norm logarithmic if the largest value is over ``OUTLIER`` medians.
    """
    finite = values[values.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if len(finite) else (0.0, 1.0)
    if low < 0 < high:
        high = max(-low, high)
        return shades("RdBu_r"), Normalize(-high, high)
    if log and low > 0 and high > OUTLIER * finite.quantile(0.5).item():
        return shades("viridis"), LogNorm(max(low, high / 1e4), high)
    if low == high:  # one value only: show it against 0
        low, high = (min(low, 0), max(high, 0)) if low else (0, 1)
    return shades("viridis"), Normalize(low, high)


def colour(number: int) -> tuple[str, str]:
    """Return colour and marker of the curve at this place in the configuration."""
    return COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]


def ticks(count: int, cell: float) -> list[int]:
    """Return every index if ``cell`` inches hold a number, otherwise every 2nd, 4th, ..."""
    step = next(2**power for power in itertools.count() if 2**power * cell >= 0.17)
    return list(range(0, count, step))


def part_cells(axes: Axes, rows: int, columns: int) -> None:
    """Draw thin white lines between cells, and remove the frame."""
    axes.set_xticks([i - 0.5 for i in range(1, columns)], minor=True)
    axes.set_yticks([i - 0.5 for i in range(1, rows)], minor=True)
    axes.grid(which="minor", color="white", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)


MATRIX_GAP = 0.4  # inches between the stages of a head matrix: tick labels and a title


def matrix_height(layout: HeadLayout, cell: float) -> float:
    """Return the height of ``head_matrix``, inches."""
    return cell * len(layout.sites) + MATRIX_GAP * (len(even_groups(layout)) - 1)


def head_matrix(
    figure: Figure,
    layout: HeadLayout,
    value_A: Tensor,
    left: float,
    top: float,
    cell: float,
    **colours: Any,
) -> Any:
    """Draw a row per layer and a column per head, from ``top`` down.

    colours: for imshow. Returns the image.
    """
    for axes, sites, heads in matrix_panels(figure, layout, left, top, cell):
        image = axes.imshow(
            torch.stack([value_A[layout.span(i)] for i in sites]).numpy(), aspect="auto", **colours
        )
        part_cells(axes, len(sites), heads)
        axes.set_xticks(ticks(heads, cell))
        axes.set_yticks(range(len(sites)), [str(layout.sites[i].block) for i in sites])
    axes.set_xlabel("head")
    return image


def matrix_panels(
    figure: Figure, layout: HeadLayout, left: float, top: float, cell: float
) -> Iterator[tuple[Axes, list[int], int]]:
    """Yield axes, sites and heads in a row of each matrix, from ``top`` down; a matrix per stage if widths differ."""
    groups = even_groups(layout)
    for sites in groups:
        site = layout.sites[sites[0]]
        top -= cell * len(sites)
        axes = axes_at(figure, left, top, cell * site.num_heads, cell * len(sites))
        axes.set_ylabel("block")
        if len(groups) > 1:
            axes.set_title(f"stage {site.stage}", loc="left", pad=3)
        yield axes, sites, site.num_heads
        top -= MATRIX_GAP


def colour_text(axes: Axes) -> None:
    """Colour the text in every cell of a picture white or black, by the cell's brightness."""
    for image in axes.images:
        values: Any = image.get_array()
        colours = image.to_rgba(values)
        for text in (text for text in axes.texts if text.get_transform() == axes.transData):
            column, row = (round(float(place)) for place in text.get_position())
            if 0 <= row < colours.shape[0] and 0 <= column < colours.shape[1]:
                red, green, blue, _ = colours[row, column]
                text.set_color("white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black")


def box(axes: Axes, corner: Pair, wide: float, tall: float, **look: Any) -> None:
    """Draw a rectangle, of which only the frame if no colour is in ``look``.

    corner: the left and least one.
    """
    axes.add_patch(
        Rectangle(
            corner, wide, tall, **{"fill": not {"color", "facecolor"}.isdisjoint(look), **look}
        )
    )


def even_groups(layout: HeadLayout) -> list[list[int]]:
    """Group sites that fit one matrix: all of them, or those of one stage and width."""
    even = len({site.num_heads for site in layout.sites}) == 1
    kinds = [(0 if even else site.stage, site.num_heads) for site in layout.sites]
    return [list(group) for _, group in itertools.groupby(range(len(kinds)), kinds.__getitem__)]


def site_title(layout: HeadLayout, i: int) -> str:
    name = layout.site_names[i]
    return f"stage {layout.sites[i].stage}, {name}" if layout.num_stages > 1 else name


def wrapped(text: str, inches: float) -> str:
    """Break ``text`` into lines of this length, at the size of axis labels."""
    return "\n".join(textwrap.wrap(text, max(12, int(inches / 0.062))))


def typical_width(columns: Mapping[str, Tensor]) -> str:
    """Return the median half-width of the pairs' 95 % intervals, as the end of a label; "" without intervals."""
    if not {"low", "high"} <= set(columns):
        return ""
    half = without_diagonal((columns["high"] - columns["low"]) / 2).nanquantile(0.5).item()
    return "" if math.isnan(half) else f" (95\u00a0%:\u00a0±{half:.1g})"


def mark(axes: Axes, chance: Tensor, control: Tensor) -> None:
    """Mark the mean and range of chance, and the mean of a random initialisation, at a colour bar.

    The bar's axis grows to reach them; if that would more than double it, they are written beyond
    its end.
    """
    if len(chance) and _reaches(axes, "chance", chance.mean().item()):
        mean = chance.mean().item()
        low = chance.min().item()
        high = chance.max().item()
        axes.axhspan(low, high, color="white", alpha=0.5, linewidth=0)
        for edge in {low, high} - {mean}:
            axes.axhline(edge, color="black", linewidth=0.4)
        _marked(axes, mean, f"chance {rounded(round(mean, 12) + 0.0)}", "black", 0.8)  # no "-1e-19"
    if len(control) and _reaches(axes, "random init", control.mean().item()):
        mean = control.mean().item()
        bottom, top = axes.get_ylim()
        tall = 72 * inches(axes.figure)[1] * axes.get_position().height  # points
        away = (mean - chance.mean().item()) / (top - bottom) * tall if len(chance) else tall
        shift = max(0.0, 15 - abs(away)) * (1 if away >= 0 else -1)
        _marked(axes, mean, f"random init\n{rounded(mean)}", COLOURS[1], 1.0, shift)


def _marked(
    axes: Axes, level: float, text: str, shade: str, width: float, shift: float = 0
) -> None:
    """Draw a line across a colour bar and its text left of it. shift: points upwards."""
    axes.axhline(level, color="white", linewidth=1.6)
    axes.axhline(level, color=shade, linewidth=width)
    look: Any = {
        "textcoords": "offset points",
        "ha": "right",
        "va": "center",
        "fontsize": 7,
        "color": shade,
    }
    axes.annotate(text, (0, level), xytext=(-3, shift), **look)


def without_diagonal(value: Tensor) -> Tensor:
    """(N, N) values as float64, NaN on the diagonal."""
    return value.double().clone().fill_diagonal_(torch.nan)


def control_of(columns: Mapping[str, Tensor]) -> Tensor:
    """(N,) finite off-diagonal values of the (A, A) column "random_init"."""
    if "random_init" not in columns:
        return columns["value"].new_empty(0)
    control = without_diagonal(columns["random_init"])
    return control[control.isfinite()]


def _reaches(axes: Axes, name: str, level: float) -> bool:
    """Extend the axis of a colour bar to ``level``, at most to twice its length; return True if it holds it.

    A level further away is written past the end of the axis, with an arrow.
    """
    bottom, top = axes.get_ylim()
    low = min(bottom, level)
    high = max(top, level)
    if high - low > 2 * (top - bottom):
        up = level > top
        before = axes.get_title() if up else axes.get_xlabel()
        text = f"{before}\n{name}\n{rounded(level)} {'↑' if up else '↓'}\n(off the scale)".lstrip(
            "\n"
        )
        axes.set_title(text, fontsize=7, pad=3) if up else axes.set_xlabel(
            text, fontsize=7, labelpad=2
        )
        return False
    if (low, high) != (bottom, top):
        edge = 0.04 * (high - low)
        axes.set_yticks(
            [at for at in axes.get_yticks() if bottom <= at <= top]
        )  # none where there is no colour
        axes.set_ylim(low - edge * (low < bottom), high + edge * (high > top))
    return True
