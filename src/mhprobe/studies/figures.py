"""The figures of one paper: each is drawn as soon as what it needs is measured, and none is made again.

A figure is an entry of conf/paper/<paper>.yaml: the measures and masking curves that it needs, by the names that the
same file gives them, the kinds of figures that draw them or a panel of its own, and its caption.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
from torch import nn

from mhprobe import ranks
from mhprobe.callbacks.curve import SPLITS, MaskingCurve, identity_of
from mhprobe.data.base import ImageData
from mhprobe.errors import UserError
from mhprobe.gates import gates_of
from mhprobe.heads import HeadLayout
from mhprobe.io.code import stands_on
from mhprobe.io.files import write
from mhprobe.io.progress import announce, duration, progress
from mhprobe.masking.parts.cache import cache_key
from mhprobe.measures.base import Measure
from mhprobe.recording.measuring import Walk, measure
from mhprobe.report.report import Report, Result
from mhprobe.studies import page, plan, stored
from mhprobe.studies.panels.curves import masking_curves
from mhprobe.studies.panels.material import Columns, Material, Panel
from mhprobe.studies.panels.measured import measured

log = logging.getLogger(__name__)

FINISHED = "finished.json"  # figure -> what it was made from, and its files


def chosen(paper: Mapping[str, Any], wanted: Sequence[int | str] | None, papers: Sequence[str]) -> list[str]:
    """The keys of the figures to make, in the paper's order. wanted: keys, or 3 for figure_3; None for all.

    UserError for no paper, or a figure that it has not.
    """
    known = list(paper["figures"])
    if not known:
        raise UserError(f"paper: which one? Give +paper=<name>, one of {', '.join(papers)}.")
    keys = known if wanted is None else [f"figure_{key}" if str(key).isdigit() else str(key) for key in wanted]
    if unknown := [key for key in keys if key not in known]:
        raise UserError(f"figures: {paper['name']} has {', '.join(known)}, got {unknown[0]}.")
    return [key for key in known if key in keys]


@dataclasses.dataclass
class _Network:
    """A network that is measured: the model, or a freshly initialised one.

    keys: by measure, what its columns are stored under. suffix: of the files. columns: what is known so far.
    """

    model: nn.Module
    keys: Mapping[str, str]
    suffix: str
    columns: dict[str, Columns]

    def missing(self, names: Sequence[str], measures: Mapping[str, Measure]) -> dict[str, Measure]:
        """Return the named measures that are wanted of this network and not known."""
        return {name: measures[name] for name in names if name in self.keys and name not in self.columns}


class Figures(L.Callback):
    """Makes the chosen figures at the end of the test; each is written when it is done.

    paper: as checked by run/schema.py. chosen: keys of its figures. measures: by name. curves: a callback per masking
    curve, by name. panels: by figure, for those that have one of their own. control: a freshly initialised twin of the
    model, with gates, for the figures that draw measures as they are; None for none.
    Writes ``tables/<figure>_*.csv``, ``figures/<figure>_*.png``, ``measured/*.safetensors`` and ``finished.json``.
    """

    def __init__(
        self,
        paper: Mapping[str, Any],
        chosen: Sequence[str],
        report: Report,
        measures: Mapping[str, Measure | UserError],
        curves: Callable[[Sequence[str]], MaskingCurve | None],
        panels: Mapping[str, Panel],
        control: Callable[[], nn.Module] | None = None,
        seed: int = 0,
    ) -> None:
        self.control = control
        self.paper, self.chosen, self.report = paper, list(chosen), report
        self.measures = {name: each for name, each in measures.items() if isinstance(each, Measure)}
        self.unfit = {name: each for name, each in measures.items() if isinstance(each, UserError)}
        self.curves, self.panels, self.seed = curves, panels, seed
        self.refused: dict[str, UserError] = {}

    def on_test_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        data: ImageData = trainer.datamodule  # type: ignore[attr-defined]
        identity = {**identity_of(pl_module, data), "seed": self.seed}
        made = self.finished()
        digests = {key: cache_key(**identity, figure=self._ingredients(key)) for key in self.chosen}
        pending = [key for key in self.chosen if self._drawn(key) and not _is_made(made.get(key), digests[key])]
        for key in [key for key in self.chosen if self._drawn(key) and key not in pending]:
            self._say(trainer, f"{key}: there already")
        steps = plan.steps({key: self.paper["figures"][key] for key in pending}, self.measures)
        networks = self._networks(pl_module, pending, identity)
        lines = self._plan(steps, networks, pl_module, data)
        if trainer.is_global_zero:
            announce(lines)
        for step in steps:
            for network in networks:
                self._measure(trainer, network, step.measures, data)
            for key in step.figures:
                make = functools.partial(self._make, key, networks, trainer, pl_module, data)
                try:
                    results = ranks.together(make)
                except ranks.LeftAlone:
                    raise
                except UserError as error:  # a figure that cannot be made does not hold up the others
                    self.refused[key] = error
                    self._say(trainer, f"{key}: not made. {error}")
                    continue
                if trainer.is_global_zero:
                    self._write(key, results, digests[key])
                    log.info("%s: done", key)

    def _make(
        self, key: str, networks: Sequence[_Network], trainer: L.Trainer, module: L.LightningModule, data: ImageData
    ) -> Mapping[str, Result]:
        return self._panel(key)(self._material(key, networks, trainer, module, data))

    def finished(self) -> dict[str, Any]:
        """Read finished.json, the same on every rank."""
        file = self.report.folder / FINISHED
        try:
            return ranks.from_rank_zero(lambda: json.loads(file.read_text()) if file.exists() else {})
        except (OSError, ValueError) as error:
            raise UserError(f"{file} is damaged. Remove it: the figures are then made again.") from error

    def write_page(self, name: str, model: L.LightningModule, data: ImageData) -> Path:
        """``figures.md``: every figure of the paper in its order, with its caption. name: of the weights."""
        reasons = {key: str(error) for key, error in self.refused.items()}
        text = page.text(self.paper, self.finished(), reasons, page.about(name, model, data))
        return write(self.report.folder / "figures.md", text.encode())

    def complain(self, asked: bool) -> None:
        """UserError for a figure that could not be made though it was asked for by name."""
        if asked and self.refused:
            raise next(iter(self.refused.values()))

    def _panel(self, key: str) -> Panel:
        figure = self.paper["figures"][key]
        if key in self.panels:
            return self.panels[key]
        if figure["curves"]:
            return masking_curves
        return functools.partial(measured, kinds=figure["kinds"], options=figure["options"])

    def _drawn(self, key: str) -> bool:
        """Return True if this command makes the figure."""
        return self.paper["figures"][key]["elsewhere"] is None

    def _ingredients(self, key: str) -> dict[str, Any]:
        """All of the configuration that the figure depends on."""
        figure, masking = self.paper["figures"][key], self.paper["masking"]
        words = ("title", "shows", "look", "differs")
        parts = {
            **{name: value for name, value in figure.items() if name not in words},
            "measures": {name: self.paper["measure"][name] for name in figure["measure"]},
            "masking": masking if figure["curves"] else None,
            **({"control": "random_init"} if self.control is not None and self._shows_control(key) else {}),
        }
        return {**parts, "stands_on": stands_on(parts)}

    def _shows_control(self, key: str) -> bool:
        """Return True if the figure draws measures as they are; a panel makes its own comparison."""
        return getattr(inspect.unwrap(self._panel(key)), "func", None) is measured

    def _networks(
        self, module: L.LightningModule, pending: Sequence[str], identity: Mapping[str, Any]
    ) -> list[_Network]:
        """The model, then the freshly initialised one of the same shape for the figures that draw it."""

        def network(model: nn.Module, figures: Sequence[str], suffix: str, **more: Any) -> _Network:
            names = dict.fromkeys(name for key in figures for name in self.paper["figures"][key]["measure"])
            options = {name: self.paper["measure"][name] for name in names}
            keys = {
                name: cache_key(**identity, **more, measure=each, stands_on=stands_on(each))
                for name, each in options.items()
            }
            return _Network(model, keys, suffix, self._stored(keys, suffix))

        networks = [network(module, pending, "")]
        if self.control is not None:
            shown = [key for key in pending if self._shows_control(key)]
            networks.append(network(self.control(), shown, "_random_init", control=True))
        return networks

    def _stored(self, keys: Mapping[str, str], suffix: str) -> dict[str, Columns]:
        """Columns that an earlier run of this study measured under the same keys."""
        folder = self.report.folder / "measured"
        fit = {name: key for name, key in keys.items() if name in self.measures}
        found = ranks.from_rank_zero(lambda: stored.read_all(folder, fit, suffix))
        for name, result in found.items():
            self.measures[name].axes = result.axes
        return {name: result.columns for name, result in found.items()}

    def _plan(
        self, steps: Sequence[plan.Step], networks: Sequence[_Network], module: L.LightningModule, data: ImageData
    ) -> list[str]:
        """The steps in words, with estimated minutes. A collective."""
        if not steps:
            return []
        batches = functools.partial(data.batches, device=module.device)
        few = {split: plan.sample(data.sizes[split], data.eval_batch_size) for split in ("val", "test")}
        walks = {split: functools.partial(batches, split, images=count) for split, count in few.items()}
        forward = plan.forward_seconds(module, walks["test"])
        lines = [f"plan, with times estimated from {few['test']} of {data.sizes['test']} test images:"]
        for number, step in enumerate(steps, 1):
            if step.curves:
                cost = self._cost_of_curves(step.curves, forward, gates_of(module).layout, data)
            elif step.measures:
                times = [self._seconds(network, step.measures, walks, data) for network in networks]
                kept = not any(network.missing(step.measures, self.measures) for network in networks)
                cost = "measured before" if kept else plan.about(*times)
            else:
                cost = "not estimated"
            lines.append(step.line(number, cost))
        return lines

    def _seconds(
        self, network: _Network, names: Sequence[str], walks: Mapping[str, Walk], data: ImageData
    ) -> float | None:
        """The time to measure what is not stored, of all images; None for nothing, or where it cannot be told."""
        group = network.missing(names, self.measures)
        each = plan.seconds_per_image(network.model, group, walks["test"], walks["val"]) if group else None
        return None if each is None else each * data.sizes["test"] / ranks.size()

    def _cost_of_curves(self, names: Sequence[str], forward: float, layout: HeadLayout, data: ImageData) -> str:
        try:
            drawer = self.curves(names)
        except UserError:  # said where the figure is refused
            return "not estimated"
        assert drawer is not None
        sizes = data.sizes[SPLITS[drawer.select_on]], data.sizes["test"]
        passes = sum(plan.forwards(spec, layout, drawer.steps, *sizes) for spec in drawer.specs)
        return f"about {duration(passes * forward / ranks.size())} at most, less what is known from before"

    def _measure(self, trainer: L.Trainer, network: _Network, names: Sequence[str], data: ImageData) -> None:
        """Take these measures of a network, but for those that are known; each is kept for the next run."""
        group = network.missing(names, self.measures)
        if not group:
            return
        columns, refused = self._pass(trainer, network, data, group)
        network.columns |= columns
        for name, error in refused.items():
            if not network.suffix:
                self.unfit[name] = error
            elif name not in self.unfit:
                self._say(trainer, f"{name}: no control. {error}")
        if trainer.is_global_zero:
            for name, values in columns.items():
                stored.write(
                    self.report.folder / "measured",
                    f"{name}{network.suffix}",
                    network.keys[name],
                    values,
                    group[name].axes,
                )

    def _pass(
        self, trainer: L.Trainer, network: _Network, data: ImageData, group: Mapping[str, Measure]
    ) -> tuple[dict[str, Any], dict[str, UserError]]:
        device = next(network.model.parameters()).device
        chooses = any(each.select_needs is not None for each in group.values())
        total = data.sizes["test"] + (data.sizes["val"] if chooses else 0)
        label = "random initialisation, " if network.suffix else ""
        with progress(f"{label}measuring {', '.join(group)}", total, show=trainer.is_global_zero) as done:
            return measure(
                network.model,
                group,
                batches=functools.partial(data.batches, "test", device),
                select=functools.partial(data.batches, "val", device),
                class_names=data.class_names,
                done=lambda batch: done(int(batch.valid.sum())),
            )

    def _material(
        self,
        key: str,
        networks: Sequence[_Network],
        trainer: L.Trainer,
        module: L.LightningModule,
        data: ImageData,
    ) -> Material:
        figure = self.paper["figures"][key]
        columns = networks[0].columns
        control = networks[1].columns if len(networks) > 1 else {}
        for name in figure["measure"]:
            if name not in columns:
                raise self.unfit[name]
        drawer = self.curves(figure["curves"])
        curves = [] if drawer is None else drawer.curves(trainer, module)
        return Material(
            layout=gates_of(module).layout,
            model=module,
            data=data,
            measures={name: self.measures[name] for name in figure["measure"]},
            columns={name: columns[name] for name in figure["measure"]},
            control={name: control[name] for name in figure["measure"] if name in control},
            curves=curves,
            specs=[] if drawer is None else drawer.specs,
            heads=[] if drawer is None else drawer.masked_heads(trainer, module, curves),
            join=None if drawer is None else drawer.join,
            seed=self.seed,
            first=trainer.is_global_zero,
        )

    def _write(self, key: str, results: Mapping[str, Result], digest: str) -> None:
        caption = page.caption(self.paper, key)
        named = {f"{key}_{end}": _in_figure(result, key, caption) for end, result in results.items()}
        files = [path for path in self.report.add_all(named) if path.parent != self.report.folder]
        inside = [str(path.relative_to(self.report.folder)) for path in files]
        made = {**self.finished_here(), key: {"made_from": digest, "files": inside}}
        write(self.report.folder / FINISHED, (json.dumps(made, indent=2) + "\n").encode())

    def finished_here(self) -> dict[str, Any]:
        """The same on this rank alone."""
        file = self.report.folder / FINISHED
        return json.loads(file.read_text()) if file.exists() else {}

    def _say(self, trainer: L.Trainer, line: str) -> None:
        if trainer.is_global_zero:
            log.info("%s", line)


def _in_figure(result: Result, key: str, caption: str) -> Result:
    """Return a result as a part of a paper's figure, whose caption is its own."""
    control_of = f"{key}_{result.control_of}" if result.control_of else ""
    return result._replace(caption=caption, part_of=key, control_of=control_of)


def _is_made(entry: Mapping[str, Any] | None, digest: str) -> bool:
    return entry is not None and entry["made_from"] == digest
