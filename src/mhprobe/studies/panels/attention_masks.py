"""Attention as a mask over the image: which patches a block reads, and the image with the others darkened.

Byun & Kim, "What does the multi-head do?", Figure 5, show an attention mask and the attention map that it makes of an
image. The mask is the weight on each patch, from the class token where the logits are read off it, otherwise the mean
over queries; here the mean, or the maximum, over the heads of a block.

Shapes: B images, H heads of one site, h x w patches.
"""

from typing import Any, Literal

from torch import Tensor

from mhprobe.errors import one_of
from mhprobe.maps.attention import readers
from mhprobe.questions.material import Material
from mhprobe.recording.looks import looked_at
from mhprobe.recording.record import record
from mhprobe.report import tables
from mhprobe.report.figures import maps as figure
from mhprobe.report.report import Result, Sample

OverHeads = Literal["mean", "max"]


def attention_masks(material: Material, images: int = 2, over_heads: OverHeads = "mean") -> dict[str, Result]:
    """Draw masks and maps of test images, evenly from all, block by block.

    over_heads: how the heads of a block are made one; UserError for another. Table: image (position in the test split),
    label, site, block, least and greatest weight of a patch, as multiples of even attention to all tokens.
    """
    one_of("attention_masks", "over_heads", over_heads, OverHeads)
    layout, data = material.layout, material.data
    batch = data.some("test", images, material.model.device)
    attn = record(material.model, batch.images, needs={"attn"}).need("attn", "attention_masks")
    masks: list[Tensor] = []  # per site (B, h, w), 1 for even attention
    for weights, site in zip(attn, layout.sites, strict=True):
        of_heads = looked_at(weights, site, readers(site)).double().cpu()
        even = 1 / (site.prefix_tokens + of_heads[0, 0].numel())
        masks.append((of_heads.mean(1) if over_heads == "mean" else of_heads.amax(1)) / even)
    positions, labels = batch.index.tolist(), [data.class_names[label] for label in batch.labels.tolist()]
    rows: list[dict[str, Any]] = [
        {
            **{"image": position, "label": labels[number], "site": site.name, "block": site.block},
            **{"least": mask[number].min().item(), "greatest": mask[number].max().item()},
        }
        for number, position in enumerate(positions)
        for site, mask in zip(layout.sites, masks, strict=True)
    ]
    pictures = data.stored("test", positions).images.float() / 255
    titles = [f"image {position}: {label}" for position, label in zip(positions, labels, strict=True)]
    drawn = figure.attention_masks(pictures, titles, [f"block {site.block}" for site in layout.sites], masks)
    return {"masks": Result(tables.from_rows(rows), drawn, of=Sample(len(positions), "test"))}
