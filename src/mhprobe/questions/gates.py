"""Learned gates: which heads they keep, and what the binary decision costs."""

import torch

from mhprobe.gates import gates_of
from mhprobe.gates.hard_concrete import HardConcreteGates
from mhprobe.questions.material import Material
from mhprobe.report import tables
from mhprobe.report.figures.gates import BINS, gate_density
from mhprobe.report.result import Result, Sample
from mhprobe.scoring.parts.tally import tally


def learned_gates(material: Material, keep: int | None = None, threshold: float | str = 0.5) -> dict[str, Result]:
    """The table gates, of hard-concrete gates also the figure gate_density, and metrics.

    keep, threshold: the binary decision, as in ``HeadGates.kept``. Table: gate (in evaluation), open (P(open), or
    |gate|), kept (0 or 1), shifted (0 or 1) where a model has shifted windows. Metrics: gates/kept,
    gates/expected_open; test accuracy and loss once more with gates of exactly 0 and 1.
    """
    gates, data = gates_of(material.model), material.data
    kept = gates.kept(keep, threshold)
    with gates.fixed(kept.float()):
        binary = tally(material.model, material.walk()(), data.sizes["test"])
    columns = {"gate": gates.effective(), "open": gates.amount().detach(), "kept": kept.long()}
    metrics = {
        "gates/heads": gates.layout.num_heads,
        "gates/kept": int(kept.sum()),
        "gates/expected_open": float(columns["open"].sum()),
        "gates/open_not_zero": int((columns["gate"] != 0).sum()),
        "gates/binary_accuracy": float(binary["accuracy"]),
        "gates/binary_loss": float(binary["loss"]),
    }
    shifted = [site.windows is not None and any(site.windows.shift) for _, _, site in gates.layout]
    if any(shifted):
        columns["shifted"] = torch.tensor(shifted).long()
    table = tables.per_head(gates.layout, {name: values.cpu() for name, values in columns.items()})
    results = {"gates": Result(table, metrics=metrics, label="learned gate", decides="closed", of=Sample())}
    if isinstance(gates, HardConcreteGates):
        spread = gates.distribution.binned(gates.log_alpha.detach(), BINS)
        drawn = gate_density({}, (gates.effective().cpu(), spread.mean(0)))
        results["gate_density"] = Result(figure=drawn, of=Sample(), drawn="gate_density")
    return results
