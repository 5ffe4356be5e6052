"""The task: choose heads -> remove them -> check against the mask -> repair, tune -> save -> report.

With ``rounds=k`` a k-th of the heads goes in each round, chosen anew on the network that the round before left.

Shapes: A heads of all sites of the network that was loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mhprobe.backbones import attach, input_spec, layout_of
from mhprobe.data.batch import Batch
from mhprobe.data.split import stratified
from mhprobe.errors import UserError
from mhprobe.gates import gates_of, remove_gates
from mhprobe.io.files import write_all
from mhprobe.io.progress import progress
from mhprobe.report import tables
from mhprobe.report.figures import speed as speed_figure
from mhprobe.scoring.tally import tally
from mhprobe.stats.significance import wilson
from mhprobe.surgery import export
from mhprobe.surgery.costs import count_flops, count_parameters
from mhprobe.surgery.removal import drop_bias, kept_heads, largest_difference, prune_heads
from mhprobe.surgery.repair import repair
from mhprobe.surgery.sources import Source, View
from mhprobe.surgery.speed import BATCHES, SHARES, evenly, speed_table
from mhprobe.weights.checkpoint import weights_files
from mhprobe.weights.pruned import pruned_description

if TYPE_CHECKING:
    from mhprobe.run.session import Session

CHECKED = 256  # test images on which masked and pruned logits are compared
TOLERANCE = 1e-5  # relative to the largest logit, in float32: the same sums in another order


def refuse(cfg: dict[str, Any]) -> None:
    """UserError for what can be seen before anything is loaded."""
    settings = cfg["prune"]
    if cfg["weights"] is None:
        raise UserError("prune: which trained network? Give weights=<.safetensors or .ckpt>.")
    if cfg.get("ckpt_path") is not None:
        raise UserError("prune: a pruning run cannot be taken up in the middle; leave ckpt_path out.")
    if settings["mask"] is None:
        raise UserError(
            "prune: which heads go? Choose prune=measure, fisher, scores, curve, gates, kept, file or list, and its "
            "options: prune=measure prune.mask.remove=<how many>."
        )


class Pruning:
    """One run of the task on a Session. ``remove``, ``save`` and ``report``, in this order.

    gone: (A,) bool, the heads that were removed. model: the network without them.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.settings = session, session.cfg["prune"]
        if session.trainer.world_size > 1:
            raise UserError(
                f"prune: runs in one process, got {session.trainer.world_size}. To tune on several devices, prune with "
                f"tune_epochs=0 and then train with weights=<pruned.safetensors>."
            )
        self.device = session.trainer.strategy.root_device
        self.source: Source = session.make(self.settings["mask"], "prune.mask")
        rounds, remove = self.settings["rounds"], getattr(self.source, "remove", None)
        if rounds > 1 and not (self.source.looks_again and remove is not None):
            raise UserError(
                f"prune.rounds: {rounds} rounds need a source that decides anew and a number of heads: prune=measure "
                f"or prune=fisher with prune.mask.remove=<how many>."
            )
        if rounds > 1 and remove is not None and remove < rounds:
            raise UserError(f"prune.rounds: {rounds} rounds for {remove} heads; the nearest is {max(remove, 1)}.")
        if self.settings["onnx"]:
            export.needs_onnx()
        self.dense: nn.Module = session.classifier.to(self.device).backbone.eval()
        self.layout, self.loaded = session.classifier.gates.layout, session.classifier.description
        self.image = torch.zeros(1, 3, *input_spec(self.dense)["size"], device=self.device)
        self.gone = torch.zeros(self.layout.num_heads, dtype=torch.bool)
        self.difference = 0.0
        self.rows: list[list[Any]] = []
        self.score("dense", 0, self.dense)

    def remove(self) -> None:
        """All rounds."""
        rounds, model = self.settings["rounds"], self.dense
        total: Any = getattr(self.source, "remove", None)
        for number in range(1, rounds + 1):
            share = None if rounds == 1 else round(total * number / rounds) - int(self.gone.sum())
            view = View(model, layout_of(model), self.train_batches, self.session.gates_kept)
            mask = self.source.choose(view, share)
            model = self.round(number, model, mask)
            left = torch.nonzero(~self.gone).flatten()
            self.gone[left[mask]] = True
        remove_gates(model)
        self.model = model.eval()

    def round(self, number: int, model: nn.Module, mask: Tensor) -> nn.Module:
        """Remove the heads of ``mask``, check, repair and tune."""
        choice = self.settings["proj_bias"]
        pruned = prune_heads(model, mask, proj_bias=choice)
        layout = layout_of(model)
        reference = model
        if choice == "drop":
            reference = copy.deepcopy(model)
            drop_bias(reference, [name for name, heads in kept_heads(layout, mask).items() if not heads])
        with gates_of(reference).masked(mask):
            self.check(reference, pruned)
            self.score("masked", number, reference, heads=int((~mask).sum()))
        self.score("pruned", number, pruned)
        if self.settings["repair"]["per"] != "none":
            images = lambda: (batch.images for batch in self.train_batches())  # noqa: E731
            repair(pruned, model, images, **self.settings["repair"], proj_bias=choice)
            self.score("repaired", number, pruned)
        if epochs := self.settings["tune_epochs"]:
            session = self.session
            description = self.description(kept_after(self.layout, self.gone, mask))
            pruned = session.retrain(pruned, description, epochs, session.folder / "checkpoints" / f"round_{number}")
            remove_gates(pruned)  # those of the training, wherever they are now
            self.score("tuned", number, pruned)
        attach(pruned)
        return pruned

    def check(self, masked: nn.Module, pruned: nn.Module) -> None:
        """Masked and pruned logits on real images are the same up to rounding; anything else is a bug of mhprobe."""
        images = (batch.images for batch in self.batches("test", self.some("test", CHECKED)))
        difference, size = largest_difference(masked, pruned, images)
        if not difference <= TOLERANCE * max(1.0, size):
            raise RuntimeError(
                f"prune: masked and pruned logits differ by up to {difference:.3g} (logits up to {size:.3g}); nothing "
                f"was saved. This should never happen: please report it."
            )
        self.difference = max(self.difference, difference)

    def score(self, stage: str, number: int, model: nn.Module, heads: int | None = None) -> None:
        """One row of the table: accuracy on the test images, and what the network costs."""
        model = model.to(self.device).eval()
        images = self.session.data.sizes["test"]
        with progress(f"{stage} on test", images) as done:
            result = tally(model, self.batches("test"), images, lambda batch: done(int(batch.valid.sum())))
        low, high = (float(bound) for bound in wilson(result["correct"].cpu(), torch.tensor(images)))
        heads = layout_of(model).num_heads if heads is None else heads
        scores = [float(result["accuracy"]), low, high, float(result["loss"]), images]
        self.rows.append([number, stage, heads, *scores, count_parameters(model), count_flops(model, self.image)])

    def save(self) -> None:
        """``pruned.safetensors`` and its JSON, and what was asked for besides; all of them or none."""
        folder, settings = self.session.folder, self.settings
        description = self.description(kept_heads(self.layout, self.gone))
        made = {
            "by": "mhprobe.prune",
            "from": str(self.session.cfg["weights"]),
            "data": self.session.data.fingerprint,
            "seed": self.session.cfg["seed"],
            "test/accuracy": self.rows[-1][3],
        }
        files = weights_files(self.model, folder / "pruned.safetensors", {**description, "made": made})
        images = next(self.batches("test", self.some("test", 8))).images.cpu()
        images = images.repeat(2, 1, 1, 1) if len(images) == 1 else images
        if settings["onnx"]:
            files[folder / "pruned.onnx"] = export.onnx_bytes(self.model, images)
        if settings["torch_export"]:
            files[folder / "pruned.pt2"] = export.torch_export_bytes(self.model, images)
        self.saved = write_all(files)

    def report(self) -> None:
        """Tables, figures and metrics; on the terminal, the table in short."""
        report = self.session.report
        columns = ["round", "stage", "heads", "accuracy", "low", "high", "loss", "images", "parameters", "flops"]
        report.add_table("pruning", tables.Table(columns, self.rows))
        kept = (~self.gone).long()
        report.add_measure("kept_heads", "per_head", {"value": kept, "kept": kept}, "kept (1), removed (0)")
        first, last = self.rows[0], self.rows[-1]
        report.add_metrics(
            {
                **{f"prune/{row[1]}/accuracy": row[3] for row in self.rows},  # of the last round
                **{f"prune/{name}": last[at] for name, at in (("heads", 2), ("parameters", 8), ("flops", 9))},
                "prune/largest_difference": self.difference,
                "test/accuracy": last[3],
                "test/loss": last[6],
                "test/images": last[7],
            }
        )
        if self.settings["speed"]:
            self.speed()
        for number, stage, heads, accuracy, low, high, *_ in self.rows:
            interval = f"({100 * low:.2f} - {100 * high:.2f})"
            print(f"round {number} {stage:>8}: {heads} heads, accuracy {100 * accuracy:.2f} % {interval}")
        print(f"masked and pruned logits differ by at most {self.difference:.2g}")
        print(f"parameters {first[8]:,} -> {last[8]:,}, FLOPs per image {first[9]:,} -> {last[9]:,}")
        print(f"saved: {', '.join(path.name for path in self.saved)}")

    def speed(self) -> None:
        masks = {"this mask": self.gone}
        masks |= {f"{100 * share:.0f} % removed": evenly(self.layout, share) for share in SHARES}
        with progress("timing", len(BATCHES), "batch sizes") as done:
            rows = speed_table(self.dense, masks, rounds=self.settings["speed_rounds"], show=done)
        self.session.report.add_table("speed", tables.Table(list(rows[0]), [list(row.values()) for row in rows]))
        self.session.report.add_figure("speed", speed_figure.draw(rows))

    def description(self, kept: dict[str, list[int]]) -> dict[str, Any]:
        gates = gates_of(self.dense).effective()
        folded = None if bool((gates == 1).all()) else gates.tolist()
        return pruned_description(self.loaded, kept, self.settings["proj_bias"], folded)

    def train_batches(self) -> Iterator[Batch]:
        return self.batches("train", self.some("train", self.settings["images"]))

    def batches(self, split: str, images: Tensor | None = None) -> Iterator[Batch]:
        return self.session.data.batches(split, self.device, images)

    def some(self, split: str, count: int) -> Tensor | None:
        """Positions of ``count`` images of a split, of every class alike; None for all of them."""
        labels = self.session.data.splits[split].labels
        if count >= len(labels):
            return None
        return torch.from_numpy(np.asarray(stratified(labels, count, self.session.cfg["seed"])))


def kept_after(layout: Any, gone: Tensor, mask: Tensor) -> dict[str, list[int]]:
    """Per site the heads of the loaded network that are left once those of ``mask``, of the present one, go too."""
    gone = gone.clone()
    gone[torch.nonzero(~gone).flatten()[mask]] = True
    return kept_heads(layout, gone)
