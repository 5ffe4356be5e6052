"""Michel et al.'s order goes by slopes that are divided by their layer's l2 norm, in every yaml that says so."""

from __future__ import annotations

import itertools

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch.utils.data import DataLoader, TensorDataset

import mhprobe
from mhprobe.framework.run.sections import CONF
from models import images_for, labels_for, tiny_vit
from oracles import gate_importance as oracle

CURVES = {
    "orders": ("masking/orders.yaml", "curves", "importance_layer_l2", "importance"),
    "michel": ("paper/michel.yaml", "masking.curves", "importance", "importance_unnormalised"),
}


def masked_first(curve, model, loader) -> list[int]:
    """The heads in the order in which the curve of a yaml takes them."""
    order = {
        key: value for key, value in instantiate(curve.order).__dict__.items() if key == "measure"
    }
    rows = mhprobe.masking_curve(model, loader, units=curve.units, order="by_score", **order)
    seen = [
        set() if not row["masked"] else {int(head) for head in str(row["masked"]).split()}
        for row in rows
    ]
    return [head for before, after in itertools.pairwise(seen) for head in after - before]


@pytest.mark.parametrize("name", CURVES)
def test_the_normalised_curve_takes_heads_by_their_share_of_the_layers_norm(name):
    file, at, normalised, plain = CURVES[name]
    curves = OmegaConf.select(OmegaConf.load(CONF / file), at)
    torch.manual_seed(0)
    model = tiny_vit().double().eval()
    with torch.no_grad():
        model.blocks[
            0
        ].attn.proj.weight *= 0.02  # its slopes are all smaller than those of the next block
    images, labels = images_for(model, 8, dtype=torch.float64), labels_for(8)
    gates = mhprobe.attach(model)
    sites = [(site.name, site.num_heads) for site in gates.layout.sites]
    slopes = oracle.value(model, images, labels, sites)
    shares = torch.cat(
        [layer / layer.norm() for layer in slopes.split([heads for _, heads in sites])]
    )
    by_slope, by_share = slopes.argsort().tolist(), shares.argsort().tolist()
    assert by_slope != by_share
    loader = DataLoader(TensorDataset(images, labels), batch_size=4)
    assert masked_first(curves[normalised], model, loader) == by_share
    assert masked_first(curves[plain], model, loader) == by_slope
