"""The recipe of docs/pruning.md in one call: choose heads and neurons, remove, check, repair, judge, time, write.

Heads and neurons go by Fisher information per cost. Below 3/8 of the cost optimal brain surgery
chooses, which kept more there (docs/prunebench.md: measured at 1/2 and 1/4, so the limit lies
between them). Widths of MLPs stay multiples of 8 where they are, which CPUs multiply faster. As a
control random heads and neurons go to the same cost and are repaired alike.

Shapes: A heads and neurons of all sites.
"""

import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mhprobe.backbones import attach, gives_features, kinds_of, layout_of
from mhprobe.data.base import ImageData
from mhprobe.errors import UserError, quoted
from mhprobe.gates import gates_of
from mhprobe.heads import KINDS, HeadLayout
from mhprobe.io.progress import announce_stage, progress
from mhprobe.masking.base import Order
from mhprobe.masking.knapsack import Knapsack
from mhprobe.masking.obs import LossInTurn
from mhprobe.masking.random import Random
from mhprobe.measures.fisher import Fisher
from mhprobe.pruning.on_path import OnPath
from mhprobe.pruning.rounds import Judge, Pruned, Removal, Selection, Stage, prune
from mhprobe.surgery import export
from mhprobe.surgery.removal import largest_difference, refuse_unprunable
from mhprobe.surgery.speed import speed_table
from mhprobe.weights.checkpoint import load_pruned, load_weights, weights_files
from mhprobe.weights.description import pruned_description
from mhprobe.weights.hub import find_weights

UNITS = ("flops", "params", "latency")
SURGERY = 0.375  # share of the cost below which ``obs`` chooses
MULTIPLE = 8
MENDED = Removal(mend={"per": "weights"})
BATCHES = (1, 16)
WRITTEN = "pruned.safetensors"


@dataclass(frozen=True)
class ShareLeft:
    """Share that may be left of a network, above 0 and below 1: of its flops, params or latency."""

    unit: str
    share: float


@dataclass
class DenseNetwork:
    """A trained network, and the description that lies beside it. name: of its file. file: its place."""

    model: nn.Module
    description: dict[str, Any]
    name: str
    file: Path


@dataclass
class Shrunk:
    """Result of a recipe.

    files: to write, by name. speeds: rows of ``speed_table``. control: the network that lost random
    heads and neurons, repaired, to the same cost. onnx: why there is no ONNX file, or "". seconds:
    that each piece of work took. loaded: largest difference of logits once read again.
    """

    network: DenseNetwork
    target: ShareLeft
    data: ImageData
    pruned: Pruned
    layout: HeadLayout
    control: Stage
    order: str
    images: int
    speeds: list[dict[str, Any]]
    onnx: str = ""
    loaded: float = 0.0
    files: dict[str, bytes] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def before(self) -> Stage:
        """Row of the network that was given."""
        return self.pruned.stages[0]

    @property
    def after(self) -> Stage:
        """Row of the repaired network."""
        return self.pruned.stages[-1]


def open_network(weights: str | Path) -> DenseNetwork:
    """Load a classifier that can lose heads.

    Raises UserError for an elastic file, a network of features, and one that can lose none.
    """
    file = find_weights(weights)
    model, description = load_weights(file)
    if "elastic" in description.get("made", {}):
        raise UserError(
            f"{file} is an elastic file: mhprobe.load({quoted(str(file), 200)}, flops=<share>) gives any "
            "budget of it at once. To shrink, give the weights that it was made of."
        )
    if gives_features(model):
        raise UserError(
            f"{file} gives features and no classes, so no accuracy can be said; expected a "
            "classifier. Use python -m mhprobe.prune with score=cosine."
        )
    _refuse_uncut(model, file)
    if "input" not in description:
        raise UserError(f"{file}: its JSON does not say the size of images (input).")
    return DenseNetwork(model, description, file.stem, file)


def _refuse_uncut(model: nn.Module, file: Path) -> None:
    try:
        refuse_unprunable(model, KINDS)
    except UserError as error:
        reason = str(error).removeprefix("prune_heads: ")
        raise UserError(f"{file} cannot lose heads: {reason}") from None
    if not layout_of(model).num_heads:
        raise UserError(f"{file} has no heads left that could go.")


def order_for(share: float, layout: HeadLayout) -> tuple[str, Order]:
    """Return the name and the order of the recipe for a share of the cost."""
    whole = all(site.num_heads % MULTIPLE == 0 for site in layout.of("neuron").sites)
    multiple = MULTIPLE if whole and layout.of("neuron").sites else 1
    if share < SURGERY:
        return "obs", Knapsack(measure=LossInTurn, multiple=multiple)
    return "fisher", Knapsack(measure=Fisher, multiple=multiple)


def refuse_target(network: DenseNetwork, target: ShareLeft) -> None:
    """Raise UserError for a target that nothing can meet, as far as no image is needed to see it."""
    attach(network.model, units=kinds_of(network.model, KINDS))
    _, order = order_for(target.share, layout_of(network.model))
    try:
        OnPath(order, target={target.unit: target.share}).check(network.model, 1)
    except UserError as error:
        reason = getattr(error, "reason", "") or str(error).removeprefix("prune.target: ")
        raise UserError(f"--{target.unit}: {reason}.".replace("..", ".")) from None


def shrink(network: DenseNetwork, data: ImageData, target: ShareLeft, seed: int = 0) -> Shrunk:
    """Follow the recipe on the images of ``data``; nothing is written.

    The training images of ``data`` choose and repair, its test images judge; without labels the
    network's own classes stand in for them. Raises UserError for a target that cannot be met.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = network.model.to(device)
    if data.unlabelled:
        data.label_by(model, network.description["class_names"], device)
    attach(model, units=kinds_of(model, KINDS))
    layout, seconds = layout_of(model), dict[str, float]()
    name, order = order_for(target.share, layout)
    selection = Selection(data, device, "train", data.sizes["train"], seed)
    judge, chosen = Judge(selection), len(selection.chosen)
    before = network.description.get("chosen_by", ())
    with _timed(seconds, "choosing, repairing and judging"):
        announce_stage(f"heads and neurons by {name}, on {chosen:,} images")
        on_path = OnPath(order, target={target.unit: target.share}, seed=seed)
        pruned = prune(model, judge, on_path, MENDED, chosen_by=before)
    with _timed(seconds, "random heads and neurons, as a control"):
        announce_stage("random heads and neurons, as a control")
        control = _control(model, judge, pruned, target, seed)
    with _timed(seconds, "timing"), progress("timing", len(BATCHES), "batch sizes") as done:
        announce_stage("timing, the whole and the smaller network in turn")
        speeds = speed_table(model, {"shrunk": pruned.gone}, batches=BATCHES, show=done)
    shrunk = Shrunk(
        network=network,
        target=target,
        data=data,
        pruned=pruned,
        layout=layout,
        control=control,
        order=name,
        images=chosen,
        speeds=speeds,
        seconds=seconds,
    )
    with _timed(seconds, "exporting and checking"):
        announce_stage("exporting, and checking what will be written")
        example = next(selection.test(8)).images.cpu()
        _export(shrunk, example)
    return shrunk


def _control(model: nn.Module, judge: Judge, pruned: Pruned, target: ShareLeft, seed: int) -> Stage:
    """Return the row of a network that lost random units to the same cost; a latency is met by FLOPs."""
    goal = {target.unit: target.share}
    if target.unit == "latency":
        goal = {"flops": pruned.stages[-1].flops / pruned.stages[0].flops}
    source = OnPath(Random(repeats=1, seed=seed), target=goal, seed=seed)
    known = pruned.stages[0], pruned.right[0]
    attach(model, units=pruned.kinds)
    random = prune(model, judge, source, MENDED, whole=known)
    return random.stages[-1]


def _export(shrunk: Shrunk, example: torch.Tensor) -> None:
    """Put the files of the smaller network into ``files``, each read again and compared with the network."""
    pruned, network = shrunk.pruned, shrunk.network
    gates = gates_of(network.model).effective()
    folded = None if bool((gates == 1).all()) else gates.tolist()
    stored = shrunk.layout.kept(pruned.gone)
    made = {
        "by": "mhprobe.shrink",
        "from": str(network.file),
        "data": shrunk.data.fingerprint,
        "target": {shrunk.target.unit: shrunk.target.share},
        "order": shrunk.order,
        "images": shrunk.images,
        f"test/{pruned.scored.metric}": shrunk.after.accuracy,
        "test/images": shrunk.after.images,
    }
    chosen_by = list(dict.fromkeys(pruned.chosen_by))
    description = {**network.description, "made": made, "chosen_by": chosen_by}
    about = pruned_description(description, stored, "keep", folded)
    smaller = pruned.model.cpu()
    with tempfile.TemporaryDirectory(prefix="mhprobe_") as folder:
        files = weights_files(smaller, Path(folder) / WRITTEN, about)
        for path, content in files.items():
            path.write_bytes(content)
        again = load_pruned(Path(folder) / WRITTEN)
        shrunk.loaded = largest_difference(smaller, again, [example])[0]
    shrunk.files = {path.name: content for path, content in files.items()}
    try:
        export.needs_onnx()
        shrunk.files["pruned.onnx"] = export.onnx_bytes(smaller, _pair(example))
    except UserError as error:  # without the extra, the other files are there
        shrunk.onnx = str(error)


def _pair(images: torch.Tensor) -> torch.Tensor:
    return images.repeat(2, 1, 1, 1) if len(images) == 1 else images


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - began


def metrics(shrunk: Shrunk) -> Mapping[str, Any]:
    """Return the numbers of the page, as plain values."""
    after, before, control = shrunk.after, shrunk.before, shrunk.control
    rows = {"dense": before, "shrunk": after, "random": control}
    numbers: dict[str, Any] = {"target": dataclasses.asdict(shrunk.target), "score": after.score}
    for name, row in rows.items():
        paired = ("difference", "difference_low", "difference_high") if row is not before else ()
        keys = ("accuracy", "low", "high", *paired, "images", "parameters", "flops", "heads")
        numbers |= {f"{name}/{key}": getattr(row, key) for key in (*keys, "neurons")}
    for timed in shrunk.speeds:
        for key in ("speedup", "speedup_low", "speedup_high", "peak_memory"):
            numbers[f"batch_{timed['batch']}/{key}"] = timed[key]
    return {**numbers, "seconds": {name: round(took, 1) for name, took in shrunk.seconds.items()}}
