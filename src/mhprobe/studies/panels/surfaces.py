"""One image's rollout over space, and the size of the residual stream over channels and blocks, as surfaces.

Shapes: B images, h x w patches, L blocks of the last stage, C channels.
"""

import torch

from mhprobe.maps.rollout import Rollout
from mhprobe.questions.material import Material
from mhprobe.recording.record import record
from mhprobe.report import tables
from mhprobe.report.figures import maps as figure
from mhprobe.report.result import Result


def surfaces(material: Material, image: int = 0) -> dict[str, Result]:
    """Surfaces of the largest channels.

    image: position in the test split. Table: block, channel, size (mean over patches of the absolute value).
    """
    model, data, layout = material.model, material.data, material.layout
    chosen = torch.tensor([min(image, data.sizes["test"] - 1)])
    # every rank looks at the same image: the share of a rank may be padded
    (batch,) = data.batches("test", model.device, images=chosen)
    (rollout,) = Rollout()(model.backbone, batch.images).values()  # type: ignore[arg-type]
    streams = record(model, batch.images, needs={"stream"}).need("stream", "surfaces")
    last = [number for number, block in enumerate(layout.blocks) if block.stage == layout.blocks[-1].stage]
    prefix = layout.sites[-1].prefix_tokens
    size = torch.stack([streams[number].after[0, prefix:].abs().double().mean(0) for number in last]).cpu()
    rows = [
        {"block": block, "channel": channel, "size": value}
        for block, values in zip(last, size.tolist(), strict=True)
        for channel, value in enumerate(values)
    ]
    return {
        "surfaces": Result(tables.from_rows(rows), figure.surfaces(rollout[0].cpu(), size, last), of=material.of(1))
    }
