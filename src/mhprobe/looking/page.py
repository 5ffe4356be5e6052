"""The pages of a network and photographs: one file each that answers clicks, without a server.

In one every head is seen at a glance, in the other heads are switched, and the network answers in the page itself.
"""

from __future__ import annotations

import html
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from mhprobe.backbones import attach, backbone_of, input_spec
from mhprobe.data.augment import normalise
from mhprobe.errors import UserError, whole_number
from mhprobe.io.files import write
from mhprobe.io.progress import progress
from mhprobe.io.written import counted, rounded
from mhprobe.looking.network import Network, chosen
from mhprobe.looking.photographs import Photographs, listed, masks, photographs
from mhprobe.looking.seen import Form, all_packed, described
from mhprobe.report.html.page import LIVE, render, write_report
from mhprobe.report.runs.facts import write_facts

if TYPE_CHECKING:
    from mhprobe.looking.sentences import Sentence

TALL = 900  # pixels of the page in a notebook's cell


class Look(NamedTuple):
    """Photographs as a network's heads see them: a page that shows itself in a notebook, and the sentences on it.

    sentences: with heads by flat index, see ``mhprobe.looking.sentences``. notes: on what was chosen for the user.
    """

    page: str
    sentences: Sequence[Sentence] = ()
    notes: Sequence[str] = ()

    def save(self, path: str | Path) -> Path:
        """Write the page."""
        return write(Path(path), self.page.encode())

    def __repr__(self) -> str:
        return "\n".join(each.text for each in self.sentences)

    def _repr_html_(self) -> str:
        return (
            f'<iframe title="look" sandbox="allow-scripts" style="width:100%;height:{TALL}px;border:0" '
            f'srcdoc="{html.escape(self.page)}"></iframe>'
        )


class _Shown(NamedTuple):
    """All that a page shows. form: of the attention; None where there is none, for ``reason``. packs: an image each.

    told, measures: sentences, and columns that heads are sorted by. waiting: whether these, and more images, follow.
    """

    network: Network
    photos: Photographs
    form: Form | None
    packs: Sequence[str]
    reason: str = ""
    told: Sequence[Sentence] = ()
    measures: Sequence[dict[str, Any]] = ()
    waiting: bool = True


def look(
    model: nn.Module | str | Path,
    folder: str | Path,
    weights: str | Path | None = None,
    size: int | None = None,
    limit: int = 12,
    masks_in: str | Path | None = None,
    untrained: bool = True,
    first: Callable[[Look], object] = lambda page: None,
    show_progress: bool = True,
) -> Look:
    """Look at what every head of a network attends to on photographs.

    model: a network of a supported family; or the name of a run, a file or a folder of weights, hf-hub:owner/name, or a
        model of timm's.
    folder: of photographs, or a .tar or .zip of them; at most ``limit`` are taken, evenly by name.
    weights: of any training for a model of timm's, or "random"; by default they are downloaded. size: pixels of the
        side of its images; by default its own, or a smaller one where that would take minutes.
    masks_in: a folder with a mask for each photograph, bright on what is salient.
    untrained: whether an untrained network of this architecture is looked at, too.
    first: called with the page of the first photograph, while the others are looked at.

    The page has the attention of all heads from all tokens. Raises UserError for a folder without photographs, a
    network that is not found, and masks that are missing. A network without attention weights between patches gets the
    page without them, and the reason.
    """
    whole_number("look: limit", limit, least=1)
    listed(folder)  # before a network is built, or its weights downloaded
    network = chosen(model, weights, size)
    side: tuple[int, int] = network.spec["size"]
    photos = photographs(folder, max(side), limit)
    objects = None if masks_in is None else masks(masks_in, photos.names, side)
    device = next(network.model.parameters()).device
    images = normalise(photos.pixels, side, network.spec["mean"], network.spec["std"]).to(device)

    def begun(form: Form, pack: str) -> None:
        first(_page(_Shown(network, photos, form, [pack])))

    with progress("attention", len(images), "photographs", show_progress) as done:
        try:
            shown = _Shown(network, photos, *all_packed(network.model, images, begun, lambda: done(1)))
        except UserError as error:
            shown = _Shown(network, photos, None, [], str(error))
    # behind the first photograph: measures are seconds of imports
    from mhprobe.looking.sentences import TWIN, facts, sentences

    twin = network.twin if untrained else None
    total = len(images) + (min(TWIN, len(images)) if untrained else 0)
    with progress("measuring", total, "photographs", show_progress) as done:
        known = facts(network.model, images, objects, twin, done)
    return _page(shown._replace(told=sentences(known), measures=known.shown(), waiting=False))


def _page(shown: _Shown) -> Look:
    network, photos, form, layout = shown.network, shown.photos, shown.form, shown.network.layout
    data = {
        "heads": [
            {"id": flat, "site": site.name, "stage": site.stage, "block": site.block, "index": index}
            for flat, (_, index, site) in enumerate(layout)
        ],
        "sites": described(layout, form) if form else None,
        "levels": form and form.levels,
        "photos": [{"name": name, "picture": of} for name, of in zip(photos.names, photos.pictures, strict=True)],
        "measures": shown.measures,
        "sentences": [{"text": each.text, "heads": each.heads} for each in shown.told],
    }
    page = render(
        "look.html.jinja",
        data,
        ["common.js", "look.js"],
        styles=("page.css", "look.css"),
        title=f"{network.name} looks at {counted(len(photos.names), 'photograph')}",
        packs={f"attention-{number}": pack for number, pack in enumerate(shown.packs)},
        shown=shown,
        blocks=counted(len(layout.sites), "block"),
        millions=rounded(sum(each.numel() for each in network.model.parameters()) / 1e6, 3),
    )
    return Look(page, shown.told, network.notes)


def live(model: nn.Module, images: Tensor, labels: Tensor, class_names: Sequence[str] | None = None) -> Look:
    """A page in which the heads of a network are switched, with its accuracy on images.

    model: a classifier of a supported family, of at most 25 MB as int8; gates are attached if it has none, and those
        that are closed stay closed.
    images: (N, 3, height, width) uint8, at most 500 are for a page. labels: (N,) int64.
    class_names: of the logits; by default their numbers.

    Raises UserError for images that are no uint8, for a network without logits, and one that ONNX cannot hold.
    """
    from mhprobe.questions.beside import keep

    layout, backbone = attach(model).layout.of("head"), backbone_of(model)
    if not isinstance(images, Tensor) or images.dim() != 4 or "uint8" not in str(images.dtype):
        got = f"{tuple(images.shape)} {images.dtype}" if isinstance(images, Tensor) else type(images).__name__
        raise UserError(f"live: images: expected (N, 3, height, width) uint8, pixels from 0 to 255, got {got}.")
    if len(labels) != len(images):
        raise UserError(f"live: labels: expected one for each of {len(images)} images, got {len(labels)}.")
    with tempfile.TemporaryDirectory(prefix="mhprobe_live_") as place:
        folder = Path(place) / type(backbone).__name__ / "live"  # these two are the page's title
        titles = [f"image {number}" for number in range(len(images))]
        folder.mkdir(parents=True)
        keep(folder, model, images, labels, class_names or (), titles, input_spec(backbone), beside=False)
        (folder / "metrics.json").write_text("{}")
        write_facts(folder, "live", layout, None)
        write_report(folder)
        return Look((folder / LIVE).read_text(encoding="utf-8"))
