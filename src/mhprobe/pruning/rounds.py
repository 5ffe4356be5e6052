"""Prune a network: choose heads, remove them, check against the mask, repair, tune, and go on with the next round.

Shapes: A heads of all sites of the network that was loaded, N test images.
"""

import copy
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, channels_of, gives_features, input_spec, layout_of
from mhprobe.data.base import SPLITS, ImageData, drawn_of_each_class
from mhprobe.data.batch import Batch, Walk
from mhprobe.errors import UserError, quoted
from mhprobe.gates import gates_of, remove_gates
from mhprobe.gates.fill import Fill
from mhprobe.heads import HeadLayout, Kind
from mhprobe.io.progress import progress
from mhprobe.io.tensors import digest
from mhprobe.io.written import counted
from mhprobe.masking.base import LABELS, Evaluate, Scored
from mhprobe.masking.parts.cache import MaskCache, cache_key, describe
from mhprobe.pruning.budget import within
from mhprobe.pruning.by_chance import ByChance, by_chance
from mhprobe.pruning.given import Choice, Given
from mhprobe.pruning.on_path import OnPath, removed_after
from mhprobe.pruning.promised import Promise, check_unseen, promise_of
from mhprobe.recording.fills import check_fill, find_fill
from mhprobe.recording.outputs import Of
from mhprobe.recording.replay import gate_values
from mhprobe.recording.state import moved
from mhprobe.scoring.base import Score, looked, score_for
from mhprobe.scoring.parts.evaluate import Evaluator, MaskedAs
from mhprobe.scoring.parts.tally import tally
from mhprobe.stats.significance import paired, wilson
from mhprobe.surgery.costs import count_flops, count_parameters
from mhprobe.surgery.removal import (
    ProjBias,
    drop_bias,
    largest_difference,
    prune_heads,
    refuse_unfoldable,
    refuse_unprunable,
)
from mhprobe.surgery.repair import repair

CHECKED = 256  # test images on which masked and pruned logits are compared
TOLERANCE = 1e-5  # relative to the largest logit, in whole float32: the same sums in another order

Fold = Literal[
    "zero", "mean", "optimal"
]  # the constant that a removed head leaves in its projection's bias
Train = Callable[[nn.Module, dict[str, list[int]], int], nn.Module]
"""(network, the loaded network's heads that it has by site, round) -> the network after some training."""


class Stage(NamedTuple):
    """One row of the table: what the network can do on the test images, and its costs, after one piece of work."""

    round: int
    stage: str  # dense, masked, pruned, repaired, tuned
    heads: int | None  # None where none can go: without gates on them
    accuracy: float
    low: float  # Wilson's 95 % interval
    high: float
    loss: float  # mean nats
    difference: float  # accuracy minus the dense network's, on the same images
    difference_low: float  # Newcombe's 95 % interval
    difference_high: float
    p: float  # exact McNemar against the dense network; NaN where these images chose the heads
    images: int
    parameters: int
    flops: int  # per image
    # what accuracy and loss are: labels, or agreement with the dense network (mhprobe.scoring)
    score: str
    neurons: int | None = None  # where they can go, too

    @property
    def counted(self) -> str:
        """Numbers of heads and neurons in words."""
        numbers = {"head": self.heads, "neuron": self.neurons}
        return " and ".join(
            counted(number, kind) for kind, number in numbers.items() if number is not None
        )


@dataclass
class Pruned:
    """Result of a pruning."""

    model: nn.Module  # a plain timm model without gates
    gone: Tensor  # (A,) bool, the removed heads
    stages: list[Stage] = field(default_factory=list)  # in their order; the last is of ``model``
    right: list[Tensor] = field(
        default_factory=list
    )  # (N,) bool per stage, the test images that it has right
    difference: float = 0.0  # the largest between masked and pruned logits
    rescaled: bool = False  # True if kept heads were multiplied by H / kept
    scored: Scored = LABELS
    promise: Promise | None = (
        None  # None without a guarantee; of no step, ``model`` is the loaded one
    )
    chosen_by: tuple[
        str, ...
    ] = ()  # the images that chose the heads, "split:digest" each, as far as known
    kinds: frozenset[Kind] = frozenset({"head"})  # of its units
    scores: Tensor | None = None  # (A,) of the last round's path, if it had scores
    minutes: float = 0.0  # that choosing took
    by_chance: ByChance | None = None  # what as many random units cost

    @property
    def optimistic(self) -> bool:
        """True if test images chose the heads: accuracies on them are too high, and a test would not know of it."""
        return any(images.startswith("test:") for images in self.chosen_by)


class Selection:
    """Images of a pruning on ``device``: those that choose and repair, test images, calibration for a guarantee.

    Called with nothing, or with some ``positions`` of the images that choose, it starts a walk over
    them: batches whose ``index`` counts from 0.

    look_at: number of images of the split ``select_on``, stratified, not augmented.
    """

    def __init__(
        self,
        data: ImageData,
        device: torch.device,
        select_on: str = "train",
        look_at: int = 1024,
        seed: int = 0,
    ) -> None:
        self.data, self.device, self.seed = data, device, seed
        self.split = SPLITS[select_on]
        # validation images that choose do not vote for themselves
        self.banked = ("train",) if self.split == "val" else ("train", "val")
        self.chosen = self.some(self.split, look_at)
        self.shown = data.only(self.split, self.chosen.numpy())

    @property
    def digest(self) -> str:
        """16 hex digits that name the images that choose."""
        return self.shown.images_of(self.split)

    @property
    def name(self) -> str:
        """The images that choose: "split:digest", or "split:digest:number:seed" for some of a split."""
        name = f"{self.split}:{self.digest}"
        if len(self.chosen) < self.data.sizes[self.split]:
            name += f":{len(self.chosen)}:{self.seed}"
        return name

    def __call__(self, positions: Tensor | None = None) -> Iterator[Batch]:
        return self.shown.batches(self.split, self.device, positions)

    def first(self) -> Tensor:
        """(B, 3, height, width), the first batch of the images that choose."""
        return next(self()).images

    def test(self, count: int | None = None) -> Iterator[Batch]:
        """Batches of all test images, or of some."""
        some = None if count is None else self.some("test", count)
        return self.data.batches("test", self.device, some)

    def calibration(self) -> Iterator[Batch]:
        """Batches of the images that were set aside for a guarantee."""
        return self.data.batches("calibration", self.device)

    def bank(self) -> Iterator[Batch]:
        """Images with labels that a score may compare with; ``index`` counts through their splits."""
        for number, split in enumerate(self.banked):
            for batch in self.data.batches(split, self.device):
                yield batch._replace(index=batch.index + number * self.data.sizes[self.banked[0]])

    def stands_in(self, model: nn.Module, fold: Fold) -> Fill | None:
        """Find the fill for the heads that go, on the images that choose."""
        if fold != "zero":
            refuse_unfoldable(model)
        return find_fill(model, fold, self)

    def some(self, split: str, count: int) -> Tensor:
        """Positions of so many images of a split, evenly from all classes; of all if it has no more."""
        return torch.from_numpy(drawn_of_each_class(self.data, split, count, self.seed))


class Judge:
    """Scores masks on the images of a ``selection``, and smaller networks on its test images.

    score: None for the labels, or without them what the model allows. half: units are chosen in
    bfloat16. cache: folder for the scores of masks, so that a killed run goes on; None for none.
    facts: plain values that decide scores, beside the weights and the images.
    """

    def __init__(
        self,
        selection: Selection,
        score: type[Score] | None = None,
        half: bool = False,
        cache: Path | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.selection, self.score, self.half = selection, score, half
        self.cache, self.facts = cache, facts or {}
        # by who is shown the images; until ``show`` the labels alone
        self.scores: dict[str, Score] = {}
        self.of: Of = "loss"

    def show(self, dense: nn.Module) -> None:
        """Run the whole network on all images, for scores that compare with it."""
        selection, sizes = self.selection, self.selection.data.sizes
        features = gives_features(dense)
        self.of = "norm" if features else "loss"
        walks: dict[str, tuple[Walk, int]] = {"chosen": (selection, len(selection.chosen))}
        walks["test"] = selection.test, sizes["test"]
        if "calibration" in sizes:
            walks["calibration"] = selection.calibration, sizes["calibration"]
        bank = selection.bank, sum(sizes[split] for split in selection.banked)
        fewest = min(count for _, count in walks.values())
        labelled = not selection.data.unlabelled
        kind = score_for(self.score, "score", labelled, features, fewest, bank[1])
        self.scores = {
            name: looked(kind, dense, *walk, bank, show=True, of=self.of)
            for name, walk in walks.items()
        }
        itself = selection.split == selection.banked[0]
        self.scores["chosen"].places = selection.chosen if itself else None

    def sloped(self, positions: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """(images, labels) of the selection for slopes, after ``show``; without labels the network's own classes."""
        for batch in self.selection(positions):
            labels = batch.labels
            if self.of != "norm":
                labels = self.scores["chosen"].sloped(batch).labels
            yield batch.images[batch.valid], labels[batch.valid]

    def choosing(self) -> torch.autocast:
        """Context in which units are chosen: products in bfloat16 with ``half``."""
        # a cache would hold the weights of all smaller networks that are tried
        kind = self.selection.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=self.half, cache_enabled=False)

    def evaluate(self, model: nn.Module, rescale: bool, fill: Fill | None = None) -> Evaluate:
        """Scores masks of ``model`` on the images that choose."""
        walk, masked = self.selection, MaskedAs(fill, rescale)
        return Evaluator(
            model,
            walk,
            len(walk.chosen),
            "choosing what goes",
            pick=walk,
            masked=masked,
            score=self.scores.get("chosen"),
            cache=self._cache("chosen", model, masked),
        )

    def calibrate(self, model: nn.Module, rescale: bool, fill: Fill | None = None) -> Evaluate:
        """Scores masks of ``model`` on the images that were set aside."""
        masked = MaskedAs(fill, rescale)
        return Evaluator(
            model,
            self.selection.calibration,
            self.selection.data.sizes["calibration"],
            "what can be promised",
            masked=masked,
            score=self.scores.get("calibration"),
            cache=self._cache("calibration", model, masked),
        )

    def _cache(self, shown: str, model: nn.Module, masked: MaskedAs) -> MaskCache | None:
        """Answers that are known of this network, these images and this score."""
        if self.cache is None:
            return None
        selection, score = self.selection, self.scores.get(shown)
        weights = digest({**model.state_dict(), "gates": gates_of(model).effective()})
        chosen = [selection.split, selection.digest]
        how = {
            "images": chosen if shown == "chosen" else [shown, selection.data.set_aside],
            "rescale": masked.rescale,
            "fill_from": None if masked.fill is None else chosen,
            "score": describe(type(score)),
            "half": self.half,
        }
        if score is not None and score.banked:
            how["bank"] = [*map(selection.data.images_of, selection.banked)]
            how["itself"] = score.places is None
        return MaskCache(self.cache, cache_key(dense=self.facts, pruned=weights, **how))


class Chooses(Protocol):
    """A method that is shown the network itself: gates that are learned, or another package."""

    def choose(self, model: nn.Module, judge: Judge, target: Mapping[str, float]) -> Tensor:
        """(A,) bool, units to remove so that at most ``target`` is left (units of it: ``within``).

        model: carries gates. judge: of masks, on the images of its ``selection``.
        """


@dataclass(frozen=True)
class ShownChooser:
    """Units that a method chooses which is shown the network.

    target: what may be left, see ``within``.
    """

    method: Chooses
    target: Mapping[str, float]
    guarantee: ClassVar[None] = None

    def check(self, model: nn.Module, rounds: int) -> None:
        """UserError for a target below what is left without all units, and widths that are no multiples."""
        within(model, self.target, multiple=getattr(self.method, "multiple", 1))

    def choose(self, model: nn.Module, judge: Judge) -> Choice:
        """Choose units.

        UserError for what is no mask of the units, and for a mask that misses the target.
        """
        name, limits = type(self.method).__name__, within(model, self.target).limits
        assert limits is not None
        mask = getattr(self.method, "choose", lambda *_: None)(model, judge, self.target)
        if not isinstance(mask, Tensor) or (mask.dtype, *mask.shape) != (
            torch.bool,
            limits.layout.num_heads,
        ):
            raise UserError(
                f"{name}: choose: expected a mask, ({limits.layout.num_heads},) bool, got "
                f"{quoted(mask)}."
            )
        if not limits.reached(mask := mask.cpu()):
            left = ", ".join(f"{target.unit}={target.left(mask):.3g}" for target in limits.targets)
            raise UserError(
                f"{name}: choose: expected at most {quoted({**self.target})} to be left, got "
                f"{left}."
            )
        return Choice(mask)


Source = Given | OnPath | ShownChooser


@dataclass(frozen=True)
class Removal:
    """Options of a removal, and of the work on the smaller network behind it.

    proj_bias: as for ``prune_heads``. fold: see ``Fold``. mend: options of ``repair``, None for
    none. train: called behind them. draws: of as many random units, to compare with.
    """

    proj_bias: ProjBias = "keep"
    fold: Fold = "zero"
    mend: Mapping[str, Any] | None = None
    train: Train | None = None
    draws: int = 0


def prune(
    model: nn.Module,
    judge: Judge,
    source: Source,
    removal: Removal = Removal(),
    *,
    rounds: int = 1,
    chosen_by: Sequence[str] = (),
    whole: tuple[Stage, Tensor] | None = None,
    promised: bool = True,
) -> Pruned:
    """Return a copy of ``model`` without the heads that ``source`` chooses; ``model`` itself keeps its gates.

    rounds: of choosing and removing, with ``OnPath``. chosen_by: images that chose heads before.
    whole: the dense network's row and right images, if known: the masked is not scored.
    promised: False where a guarantee is of budgets, which are tested later.

    UserError for a model that cannot lose heads, RuntimeError if masked and pruned logits differ by
    more than rounding.
    """
    refuse_unprunable(model)  # before anything is evaluated
    check_fill(model, removal.fold, "fold")
    layout = layout_of(model)
    _check_source(source, model, rounds)
    preset = source.choose(model) if isinstance(source, Given) else None
    looked_at = _looked_at(source, preset, judge.selection, chosen_by)
    judge.show(model.to(judge.selection.device).eval())
    now, left = model, 1.0
    nothing = torch.zeros(layout.num_heads, dtype=torch.bool)
    scored = judge.scores["test"].scored
    record = Pruned(model, nothing, scored=scored, chosen_by=looked_at, kinds=layout.kinds)
    score = functools.partial(_score, judge, record)
    fills: list[Fill | None] = []
    if whole:
        record.stages.append(whole[0])
        record.right.append(whole[1])
    else:
        score("dense", 0, model)
    for number in range(1, rounds + 1):
        start = time.perf_counter()
        fill = judge.selection.stands_in(now, removal.fold)
        fills.append(fill)
        if source.guarantee is not None and promised:
            choice, record.promise = _promised(source, preset, now, judge, fill)
            if not record.promise.steps:
                return record
        else:
            this = _Round(now, fill, layout, left, number / rounds)
            choice, left = _choose(source, preset, judge, this)
        record.minutes += (time.perf_counter() - start) / 60
        record.gone, record.rescaled = removed_after(record.gone, choice.mask), choice.rescale
        record.scores = choice.scores
        proj_bias = removal.proj_bias
        smaller = _remove(now, choice, proj_bias, judge, record, number, fill, whole is None)
        if removal.mend is not None:
            walk = _images_of(judge.selection)
            repair(smaller, now, walk, **removal.mend, proj_bias=proj_bias)
            score("repaired", number, smaller)
        if removal.train is not None:
            smaller = removal.train(smaller, layout.kept(record.gone), number)
            score("tuned", number, smaller)
        attach(smaller, units=layout.kinds)
        now = smaller
    record.by_chance = by_chance(
        model,
        judge,
        record.gone,
        record.right[0],
        draws=removal.draws,
        rescale=record.rescaled,
        fill=fills[0],
    )
    remove_gates(now)
    return dataclasses.replace(record, model=now.eval())


def _check_source(source: Source, model: nn.Module, rounds: int) -> None:
    """Raise UserError for heads that cannot be chosen in so many rounds, or not on this model."""
    if not isinstance(source, OnPath) and rounds > 1:
        raise UserError(
            f"rounds: {rounds} rounds need heads that are chosen anew in each: prune=order."
        )
    if not isinstance(source, Given):
        source.check(model, rounds)


class _Round(NamedTuple):
    """A round of choosing.

    model: what the rounds before have left, with gates. fill: for its removed heads. loaded: the
    units before all rounds. left: the share that is left of the cost. share: of the way to the
    goal, at the end of this round.
    """

    model: nn.Module
    fill: Fill | None
    loaded: HeadLayout
    left: float
    share: float


def _choose(
    source: Source, preset: Choice | None, judge: Judge, this: _Round
) -> tuple[Choice, float]:
    """Return what goes in a round, without a promise, and the share of the cost that is left behind it.

    preset: of ``Given`` heads.
    """
    if isinstance(source, OnPath):
        evaluate = judge.evaluate(this.model, source.rescale, this.fill)
        first = judge.selection.first
        with judge.choosing():
            return source.choose(this.model, evaluate, first, this.loaded, this.left, this.share)
    if isinstance(source, ShownChooser):
        with judge.choosing():
            return source.choose(this.model, judge), this.left
    assert preset is not None
    return preset, this.left


def _images_of(walk: Walk) -> Callable[[], Iterator[Tensor]]:
    return lambda: (batch.images for batch in walk())


def _looked_at(
    source: Source, choice: Choice | None, selection: Selection, before: Sequence[str]
) -> tuple[str, ...]:
    """The images that choose, with those of ``before``; UserError if a promise is asked for on some of them."""
    if isinstance(source, Given):
        chosen_by = (*before, *(choice.chosen_by if choice else ()))
    else:
        chosen_by = (
            (*before, selection.name)
            if isinstance(source, ShownChooser) or source.order.searches
            else tuple(before)
        )
    if source.guarantee is None:
        return chosen_by
    check_unseen(chosen_by, selection.data)
    return (*chosen_by, f"calibration:{selection.data.set_aside}")


def _promised(
    source: Source, choice: Choice | None, model: nn.Module, judge: Judge, fill: Fill | None
) -> tuple[Choice, Promise]:
    if isinstance(source, OnPath):
        evaluate = judge.evaluate(model, source.rescale, fill)
        calibrate = judge.calibrate(model, source.rescale, fill)
        return source.promise(model, evaluate, calibrate, judge.selection.first)
    assert isinstance(source, Given) and source.guarantee is not None and choice is not None
    calibrate = judge.calibrate(model, choice.rescale, fill)
    return choice, promise_of(choice, calibrate, source.guarantee, layout_of(model), source.seed)


def _remove(
    model: nn.Module,
    choice: Choice,
    proj_bias: ProjBias,
    judge: Judge,
    record: Pruned,
    number: int,
    fill: Fill | None,
    score_masked: bool,
) -> nn.Module:
    layout, gates = layout_of(model), gates_of(model)
    kept = layout.kept(choice.mask)
    values = gate_values(gates, choice.mask[None], choice.rescale)[0]
    pruned = (
        None if fill is None else prune_heads(model, choice.mask, fold=fill)
    )  # under the present gates
    with gates.filled(fill, values[None]), gates.fixed(values):
        pruned = pruned or prune_heads(model, choice.mask, proj_bias=proj_bias)
        reference = model
        if proj_bias == "drop":
            reference = copy.deepcopy(model)
            drop_bias(reference, [site for site in layout.sites if not kept[site.name]])
        with gates_of(reference).fixed(values):
            shown = (batch.images for batch in judge.selection.test(CHECKED))
            difference, size = largest_difference(reference, pruned, shown)
            if not difference <= TOLERANCE * max(1.0, size):
                raise RuntimeError(
                    f"prune: masked and pruned logits differ by up to {difference:.3g} (logits up "
                    f"to {size:.3g}); "
                    f"nothing was saved. This should never happen: please report it."
                )
            record.difference = max(record.difference, difference)
            if score_masked:
                _score(judge, record, "masked", number, reference, choice.mask)
    _score(judge, record, "pruned", number, pruned)
    return pruned


@torch.inference_mode()
def _score(
    judge: Judge,
    record: Pruned,
    stage: str,
    number: int,
    model: nn.Module,
    mask: Tensor | None = None,
) -> None:
    """Another row of ``record``: ``model`` on the test images.

    mask: (A,) bool, its units that are off.
    """
    selection, kind = judge.selection, judge.scores["test"]
    model = moved(model, selection.device).eval()
    count = selection.data.sizes["test"]
    with progress(f"{stage} on test", count) as done:
        result = tally(
            model,
            selection.test(),
            count,
            lambda batch: done(int(batch.valid.sum())),
            kind,
        )
    low, high = (float(bound) for bound in wilson(result["correct"].cpu(), torch.tensor(count)))
    record.right.append(
        result["right"].cpu().reshape(-1)
    )  # of one image torchmetrics makes a number
    change = paired(record.right[0], record.right[-1])
    layout = layout_of(model, record.kinds)
    left_A = torch.ones(layout.num_heads, dtype=torch.bool) if mask is None else ~mask
    heads = layout.of("head").num_heads
    row = Stage(
        round=number,
        stage=stage,
        heads=int(left_A[:heads].sum()) if "head" in record.kinds else None,
        accuracy=float(result["accuracy"]),
        low=low,
        high=high,
        loss=float(result["loss"]),
        difference=change.difference,
        difference_low=change.low,
        difference_high=change.high,
        p=math.nan if record.optimistic else change.p,
        images=count,
        parameters=count_parameters(model),
        flops=count_flops(
            model,
            torch.zeros(1, channels_of(model), *input_spec(model)["size"], device=selection.device),
        ),
        score=kind.scored.name,
        neurons=int(left_A[heads:].sum()) if "neuron" in record.kinds else None,
    )
    record.stages.append(row)
