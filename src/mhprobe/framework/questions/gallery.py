"""Every kind of map of some images, judged, drawn and written down: what ``python -m mhprobe.maps`` does."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor, nn

from mhprobe.backbones import puts_out_features
from mhprobe.data.archive import small_enough
from mhprobe.data.augment import channels_shown
from mhprobe.data.base import ImageData
from mhprobe.data.batch import Batch
from mhprobe.data.decoding import decode
from mhprobe.errors import UserError, quoted
from mhprobe.framework.questions.masking import Keep
from mhprobe.framework.questions.material import Material
from mhprobe.heads import HeadLayout
from mhprobe.io.files import write
from mhprobe.maps.base import NO_KIND, MapKind
from mhprobe.maps.faithfulness import faithfulness
from mhprobe.recording.measuring import said
from mhprobe.report.figures import maps as figures
from mhprobe.report.figures.maps import AREAS, Judged
from mhprobe.report.result import Result, Sample
from mhprobe.report.tables import Table

UNKNOWN = "unknown"  # the label of a file
# an image by position or file name, its label, and what it is taken for: class and probability, ()
# by features
_Shown = tuple[int | str, str, tuple[str | float, ...]]


class Gallery(NamedTuple):
    """Maps of images.

    results: ``maps``, ``maps_smooth`` and ``<kind>_<image>``. maps: judged, by kind and name.

    titles: class and predicted class of each image; features predict nothing.
    """

    results: dict[str, Result]
    maps: dict[str, dict[str, Judged]]
    titles: list[str]


def kept_maps(
    material: Material,
    folder: Path,
    chosen: Sequence[int | str],
    kinds: Mapping[str, MapKind],
    **options: Any,
) -> dict[str, Result]:
    """Return the table ``maps`` and the figures ``maps`` and ``<kind>_<image>``; write maps.safetensors on rank 0.

    folder: of the run. chosen: positions in the test split, or image files. options: of ``_kept``.
    """
    for name, kind in kinds.items():
        if material.first and (words := said(kind.held(material.layout.of("head")))):
            print(f"{name}: one image at a time{words}")
    results, all_maps, titles = gallery(
        material.backbone, material.data, chosen, kinds, keep=material.kept, **options
    )
    if not material.first:
        return results
    raw = {
        f"{kind}/{name}": one.maps.contiguous()
        for kind, maps in all_maps.items()
        for name, one in maps.items()
    }
    about = {"heads": json.dumps(_heads(all_maps, material.layout)), "titles": json.dumps(titles)}
    write(folder / "maps.safetensors", save(raw, about))
    for name, one in _whole(kinds, all_maps).items():
        if one.areas is not None:
            deletion, insertion, by_chance, up_by_chance = one.areas.mean(1).tolist()
            print(
                f"{name}: deletion {deletion:.3f} (random {by_chance:.3f}, lower is better), "
                f"insertion {insertion:.3f} (random {up_by_chance:.3f}, higher is better)"
            )
    return results


def gallery(
    model: nn.Module,
    data: ImageData,
    chosen: Sequence[int | str],
    kinds: Mapping[str, MapKind],
    smooth: bool = False,
    keep: Keep = lambda about, find: find(),
    **options: Any,
) -> Gallery:
    """Every kind of map of the images. Arguments: as of ``kept_maps``.

    smooth: also the result ``maps_smooth``, the overview without the edges of patches. keep: cache
    of a kind's maps, called with what decides them and a function that finds them.

    Raises UserError for no kind, for positions outside the test split, and for files that are no
    images.
    """
    if not kinds:
        raise UserError(NO_KIND)
    stored = open_images(data, chosen)
    unlabelled = (stored.labels < 0).any()
    if unlabelled:
        _refuse_label_as_target(kinds)
    batch = data.transform(stored, train=False).to(next(model.parameters()).device)
    features, labels = puts_out_features(model.eval()), None if unlabelled else batch.labels
    scoring = {"features": features, **options}
    every = {
        name: _kept(keep, model, batch.images, labels, kind, **scoring)
        for name, kind in kinds.items()
    }
    names = [*data.class_names, UNKNOWN]  # -1 is the last
    best = [()] * len(chosen) if features else _taken_for(model, batch.images, names)
    shown = list(
        zip(_called(chosen), [names[label] for label in batch.labels.tolist()], best, strict=True)
    )
    pictures = stored.images.float() / 255
    headings = _headings(shown, channels_shown(pictures.shape[-3]))
    split = "given" if any(isinstance(image, str) for image in chosen) else "test"
    of = Sample(len(chosen), split)
    of_heads = {name: every[name] for name, kind in kinds.items() if kind.per_head}
    results = _heads_drawn(of_heads, shown, pictures, headings, Sample(1, split))
    whole = _whole(kinds, every)
    if smooth and whole:
        drawn = figures.maps(pictures, headings, whole, smooth=True)
        results["maps_smooth"] = Result(figure=drawn, of=of, drawn="maps")
    overview = figures.maps(pictures, headings, whole) if whole else None
    results["maps"] = Result(_table(shown, every), overview, of=of, drawn="maps").saying(
        "area under insertion, or deletion", "insertion: a better map, deletion: a worse one"
    )
    return Gallery(results, every, [_words(image, ", taken for {}") for image in shown])


def _headings(shown: Sequence[_Shown], channels: str) -> list[str]:
    """Return what stands above each picture. channels: those that a picture shows, "" for its colours."""
    below = f"\n{channels}" if channels else ""
    return [_words(image, "\n→ {} {:.2f}") + below for image in shown]


def _heads_drawn(
    every: Mapping[str, Mapping[str, Judged]],
    shown: Sequence[_Shown],
    pictures: Tensor,
    headings: Sequence[str],
    of: Sample,
) -> dict[str, Result]:
    """Return a figure of all heads for each kind of map and each image, by ``<kind>_<image>``."""
    results = {}
    for kind, maps in every.items():
        for number, (image, *_) in enumerate(shown):
            drawn = figures.draw_heads(pictures[number], headings[number], maps, number)
            results[f"{kind}_{image}"] = Result(figure=drawn, of=of, drawn="maps")
    return results


def _refuse_label_as_target(kinds: Mapping[str, MapKind]) -> None:
    """UserError for kinds of maps that explain the label, where a file has none."""
    asking = [name for name, kind in kinds.items() if getattr(kind, "target", None) == "label"]
    if asking:
        raise UserError(
            f"images: a file has no label, which {', '.join(asking)} explains; give target=top1."
        )


def _words(shown: _Shown, prediction: str) -> str:
    """Return the name of an image, and behind it what it is taken for, as this format string."""
    image, label, best = shown
    return (
        f"image {image}"
        + ("" if label == UNKNOWN else f": {label}")
        + (prediction.format(*best) if best else "")
    )


def _table(shown: Sequence[_Shown], every: Mapping[str, Mapping[str, Judged]]) -> Table:
    """A row per map and image, with the areas of maps that have been judged."""
    predicted = ("predicted", "probability") if any(best for _, _, best in shown) else ()
    areas = (
        AREAS
        if any(one.areas is not None for maps in every.values() for one in maps.values())
        else ()
    )
    rows = [
        [
            image,
            label,
            *best,
            kind,
            name,
            *([] if one.areas is None else one.areas[:, row].tolist()),
        ]
        for kind, maps in every.items()
        for name, one in maps.items()
        for row, (image, label, best) in enumerate(shown)
    ]
    return Table(["image", "label", *predicted, "kind", "map", *areas], rows, "maps")


def _kept(
    keep: Keep,
    model: nn.Module,
    images: Tensor,
    labels: Tensor | None,
    kind: MapKind,
    **options: Any,
) -> dict[str, Judged]:
    """A kind's maps of images (B, 3, height, width), with their areas, on the CPU; from the cache or found now.

    options: of ``faithfulness``, and score: False to leave out the areas, nearly all of the work.
    """

    def find() -> dict[str, Tensor]:
        label_1: Sequence[Tensor | None] = (
            [None] * len(images) if labels is None else labels.split(1)
        )
        # one at a time: a large image's attention takes half a gigabyte, its slopes as much again
        parts = [kind(model, *one) for one in zip(images.split(1), label_1, strict=True)]
        maps = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        tensors = {f"maps/{name}": values.float().cpu() for name, values in maps.items()}
        if options.get("score", True):
            scoring = {name: option for name, option in options.items() if name != "score"}
            areas = zip(
                maps, faithfulness(model, images, list(maps.values()), **scoring), strict=True
            )
            tensors |= {f"areas/{name}": torch.stack(of).cpu() for name, of in areas}
        return tensors

    pixels = hashlib.sha256(
        images.cpu().contiguous().numpy().tobytes()
    ).hexdigest()  # a file may change under its name
    label_list = None if labels is None else labels.tolist()
    tensors = keep(
        {"maps": type(kind), **vars(kind), "images": pixels, "labels": label_list, **options}, find
    )
    maps = {key.removeprefix("maps/"): of for key, of in tensors.items() if key.startswith("maps/")}
    return {
        name: Judged(
            of, tensors.get(f"areas/{name}"), kind.label, kind.asking((of.shape[-2], of.shape[-1]))
        )
        for name, of in maps.items()
    }


def _heads(
    all_maps: Mapping[str, Mapping[str, Judged]], layout: HeadLayout
) -> dict[str, list[Any]]:
    """Kind of map and flat index of the head, by name of a tensor."""
    heads = {layout.name_of(flat): flat for flat in range(layout.num_heads)}
    return {
        f"{kind}/{name}": [f"{kind.replace('_', ' ')} maps", heads[name]]
        for kind, maps in all_maps.items()
        for name in maps
        if name in heads
    }


def _taken_for(model: nn.Module, images: Tensor, names: Sequence[str]) -> list[tuple[str, float]]:
    """Return the predicted class of each image and its probability."""
    with torch.inference_mode():
        sure, best = model(images).double().softmax(1).cpu().max(1)
    return [
        (names[number], share) for number, share in zip(best.tolist(), sure.tolist(), strict=True)
    ]


def open_images(data: ImageData, chosen: Sequence[int | str]) -> Batch:
    """Stored images, uint8: of the test split by position, or a file, cut and scaled like the data's, with label -1.

    Raises UserError for a position or a file that is not there, and for two files of one name.
    """
    size, called = data.sizes["test"], [str(image) for image in _called(chosen)]
    if not chosen or not all(isinstance(image, str) or 0 <= image < size for image in chosen):
        raise UserError(
            f"images: expected test positions from 0 to {size - 1} or files, got "
            f"{quoted(list(chosen))}."
        )
    if again := [image for image in chosen if list(chosen).count(image) > 1]:
        raise UserError(f"images: expected each image once, got {again[0]} several times.")
    named = zip(chosen, called, strict=True)
    if twice := [
        image for image, name in named if isinstance(image, str) and called.count(name) > 1
    ]:
        raise UserError(
            f"images: two have one name, which their figures take, among them {twice[0]}; rename "
            "one."
        )
    images, labels = zip(*(_opened(data, image) for image in chosen), strict=True)
    return Batch.whole(torch.stack(images), torch.tensor(labels))


def _opened(data: ImageData, image: int | str) -> tuple[Tensor, int]:
    if not isinstance(image, str):
        batch = data.stored("test", [image])
        return batch.images[0], int(batch.labels[0])
    file = Path(image).expanduser()
    if not file.is_file():
        raise UserError(
            f"images: {image} is no file. Give positions in the test split, or files with one "
            "image each."
        )
    try:
        small_enough(image, file.stat().st_size)
        pixels = decode(file.read_bytes(), data.stored_size, resize=True, where=image)
    except UserError as error:
        raise UserError(str(error).replace("root: ", "images: ")) from None
    return torch.tensor(pixels).permute(2, 0, 1), -1


def _called(chosen: Sequence[int | str]) -> list[int | str]:
    return [Path(image).stem if isinstance(image, str) else image for image in chosen]


def _whole(
    kinds: Mapping[str, MapKind], all_maps: Mapping[str, dict[str, Judged]]
) -> dict[str, Judged]:
    """Columns of the overview, by name; if two kinds have maps of one name, by key."""
    columns = [
        (kind, name, one)
        for kind, maps in all_maps.items()
        if not kinds[kind].per_head
        for name, one in maps.items()
    ]
    names = [name for _, name, _ in columns]
    return {
        (name if names.count(name) == 1 else kind.replace("_", " ")): one
        for kind, name, one in columns
    }
