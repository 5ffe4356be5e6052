"""Interactive pages of a network, one file each, without a server: attention of all heads, or heads to switch off."""

import html
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, backbone_of, refuse_no_model
from mhprobe.data.augment import normalise
from mhprobe.data.decoding import levels_given
from mhprobe.data.photos import listed
from mhprobe.errors import UserError, one_of, quoted, whole_number
from mhprobe.io.files import write
from mhprobe.io.progress import progress
from mhprobe.io.written import counted, rounded
from mhprobe.pages.html.page import LIVE, render, write_report
from mhprobe.pages.looking.network import Asked, OpenNetwork, coloured, network_to_look_at
from mhprobe.pages.looking.photographs import Photographs, masks, photographs
from mhprobe.pages.looking.seen import FormOfAttention, all_packed, described_sites
from mhprobe.recording.looks import visible
from mhprobe.report.runs.facts import write_facts
from mhprobe.weights.foreign import LeaveOut
from mhprobe.weights.normalisation import Numbers, seen_by

if TYPE_CHECKING:
    from mhprobe.pages.looking.sentences import Sentence

TALL = 900  # pixels of the page in a notebook's cell


class Look(NamedTuple):
    """A page, shown in a notebook, and its sentences. notes: on choices made for the user."""

    page: str
    sentences: "Sequence[Sentence]" = ()
    notes: Sequence[str] = ()

    def save(self, path: str | Path) -> Path:
        return write(Path(path), self.page.encode())

    def __repr__(self) -> str:
        return "\n".join(sentence.text for sentence in self.sentences)

    def _repr_html_(self) -> str:
        # In ASCII alone: read in another encoding, its scripts would not have the hashes that the
        # page allows.
        page = html.escape(self.page).encode("ascii", "xmlcharrefreplace").decode()
        frame = f'title="look" sandbox="allow-scripts" style="width:100%;height:{TALL}px;border:0"'
        return f'<iframe {frame} srcdoc="{page}"></iframe>'


def look(  # noqa: PLR0913 -- a notebook's door: each argument is a keyword of its own
    model: nn.Module | str | Path,
    folder: str | Path,
    weights: str | Path | None = None,
    size: int | None = None,
    limit: int = 12,
    masks_in: str | Path | None = None,
    untrained: bool = True,
    first: Callable[[Look], object] = lambda page: None,
    show_progress: bool = True,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    levels: Numbers | None = None,
    prefix: str | None = None,
    leave_out: LeaveOut = False,
) -> Look:
    """Look at what every head of a network attends to on photographs.

    model: a network of a supported family; or the name of a run, a file or a folder of weights,
        hf-hub:owner/name, or a model of timm's.
    folder: of photographs, or of .npy arrays (height, width, C) for a network of C channels, or a
        .tar or .zip of them; at most ``limit`` are taken, evenly by name.
    weights: of any training for a model of timm's, or "random"; by default they are downloaded.
    size: pixels of the
        side of its images; by default its own.
    masks_in: a folder with a mask for each photograph, bright on salient objects.
    untrained: measure an untrained network of this architecture, too.
    first: called with the page of the first photograph, before the others are done.
    mean, std: of the pixels in [0, 1] that the network was trained on, per channel or one for all;
        by default its own, or those of its processor; the notes say where they are from.
    levels: the value of a white pixel, or of a black and a white one, in files of more than 8 bits; by
        default the fewest bits that hold the largest value.
    prefix, leave_out: which network of the file ``weights``, and beginnings of names in it to leave
        out, as for ``mhprobe.load``.

    The page has the attention of all heads from all tokens, or the reason why some or all have none
    between patches. Raises UserError for a folder without photographs, an unknown network, and
    missing masks.
    """
    whole_number("look: limit", limit, least=1)
    one_of("look", "untrained", untrained, Literal[True, False])
    one_of("look", "show_progress", show_progress, Literal[True, False])
    for name, value in (("folder", folder), ("first", first)):
        if not (callable(value) if name == "first" else isinstance(value, str | Path)):
            what = "a function of a page" if name == "first" else "a folder of photographs"
            raise UserError(f"look: {name}: expected {what}, got {quoted(value)}.")
    there = listed(folder, "look")  # before a network is built, or its weights downloaded
    given = levels_given(levels, "look: levels")
    asked = Asked(mean, std, prefix, leave_out)
    network = coloured(network_to_look_at(model, weights, size, asked=asked), mean, std)
    side: tuple[int, int] = network.spec["size"]
    photos = photographs(there, side, limit, given, len(network.spec["mean"]))
    objects = None if masks_in is None else masks(masks_in, photos.names, side)
    weight = next(network.model.parameters())
    images = normalise(photos.pixels, side, network.spec["mean"], network.spec["std"]).to(weight)

    def begun(form: FormOfAttention, pack: str) -> None:
        first(_page(network, photos, form, [pack]))

    with progress("attention", len(images), "photographs", show_progress) as done:
        form, packs, reason = None, list[str](), ""
        try:
            form, packs = all_packed(network.model, images, begun, lambda: done(1))
        except UserError as error:
            reason = f"Where the heads look cannot be shown: {error}"
    # behind the first photograph: measures are seconds of imports
    from mhprobe.pages.looking.sentences import TWIN, measure_facts, room, sentences

    twin = network.twin if untrained else None
    total = len(images) + (min(TWIN, len(images)) if untrained else 0)
    what = f"measuring{room(network.model, len(images), objects is not None)}"
    with progress(what, total, "photographs", show_progress) as done:
        findings = measure_facts(network.model, images, objects, twin, done)
    return _page(
        network, photos, form, packs, reason, sentences(findings), findings.shown(), waiting=False
    )


def _page(
    network: OpenNetwork,
    photos: Photographs,
    form: FormOfAttention | None,
    packs: Sequence[str],
    reason: str = "",
    sentences: "Sequence[Sentence]" = (),
    measures: Sequence[dict[str, Any]] = (),
    waiting: bool = True,
) -> Look:
    """Render the page. form: of the attention; None without any, for ``reason``. packs: per image.

    measures: columns to sort heads by. waiting: these, sentences and more images follow.
    """
    layout = network.layout
    shown, hidden = visible(network.model) if form else (layout, reason)
    data = {
        "heads": [
            {
                "id": flat,
                "site": site.name,
                "stage": site.stage,
                "block": site.block,
                "index": index,
            }
            for flat, (_, index, site) in enumerate(layout)
        ],
        "sites": described_sites(shown, form) if form else None,
        "levels": form and form.levels,
        "photos": [
            {"name": name, "picture": of}
            for name, of in zip(photos.names, photos.pictures, strict=True)
        ],
        "measures": measures,
        "shape": f"{network.spec['size'][1]} / {network.spec['size'][0]}",
        "sentences": [{"text": sentence.text, "heads": sentence.heads} for sentence in sentences],
    }
    page = render(
        "look.html.jinja",
        data,
        ["common.js", "look.js"],
        styles=("page.css", "look.css"),
        title=f"{network.name} looks at {counted(len(photos.names), 'photograph')}",
        packs={f"attention-{number}": pack for number, pack in enumerate(packs)},
        shown=dict(
            network=network,
            photos=photos,
            form=form,
            reason=hidden,
            sentences=sentences,
            waiting=waiting,
        ),
        blocks=counted(len({site.block for site in layout.sites}), "block"),
        millions=rounded(sum(weight.numel() for weight in network.model.parameters()) / 1e6, 3),
    )
    return Look(page, sentences, [*network.notes, *photos.notes])


def _check_labels(labels: object, images: int) -> None:
    """Raise UserError for anything but a class per image, and for no image at all."""
    if not images:
        raise UserError("live: images: expected at least one, got none.")
    right = (
        isinstance(labels, Tensor)
        and labels.shape == (images,)
        and not labels.is_floating_point()
        and labels.dtype != torch.bool
    )
    if not right:
        got = (
            f"{tuple(labels.shape)} {labels.dtype}"
            if isinstance(labels, Tensor)
            else type(labels).__name__
        )
        raise UserError(
            f"live: labels: expected one for each of {images} images, a tensor of ({images},) whole "
            f"numbers, got {got}."
        )


def live(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    class_names: Sequence[str] | None = None,
    mean: Numbers | None = None,
    std: Numbers | None = None,
) -> Look:
    """Make a page in which a reader switches heads of a network off, with its accuracy on images.

    model: a classifier of a supported family, of at most 25 MB as int8; gates are attached if it
        has none, and those that are closed stay closed.
    images: (N, C, height, width) uint8, at most 500 are for a page; of the network's channels, or in
        colours for one. labels: (N,) int64.
    class_names: of the logits; by default their numbers.
    mean, std: of the pixels in [0, 1] that it was trained on, per channel or one for all; None takes
        its own.

    Raises UserError for images that are no uint8, for a network without logits, and one that ONNX
    cannot hold.
    """
    from mhprobe.pages.beside import keep

    refuse_no_model("live", model)
    layout, backbone = attach(model).layout.of("head"), backbone_of(model)
    spec, _ = seen_by(backbone, mean, std, "live")
    channels = len(spec["mean"])
    if not (
        isinstance(images, Tensor)
        and images.dim() == 4
        and images.shape[1] in ({1, 3} if channels == 1 else {channels})
        and images.dtype == torch.uint8
    ):
        got = (
            f"{tuple(images.shape)} {images.dtype}"
            if isinstance(images, Tensor)
            else type(images).__name__
        )
        raise UserError(
            f"live: images: expected (N, {channels}, height, width) uint8, pixels from 0 to 255, "
            f"got {got}."
        )
    _check_labels(labels, len(images))
    with tempfile.TemporaryDirectory(prefix="mhprobe_live_") as place:
        folder = Path(place) / type(backbone).__name__ / "live"  # these two are the page's title
        titles = [f"image {number}" for number in range(len(images))]
        folder.mkdir(parents=True)
        keep(
            folder,
            model,
            images,
            labels,
            class_names or (),
            titles,
            spec,
            beside=False,
        )
        (folder / "metrics.json").write_text("{}")
        write_facts(folder, "live", layout, None)
        write_report(folder)
        return Look((folder / LIVE).read_text(encoding="utf-8"))
