"""Numbers of real images, for simulations of intervals: slopes and sizes of the heads of two shipped networks.

``real_heads.npz`` holds, of 1,000 test images (100 of each class) and every third head, float16:
``<network>/slope``, dL/d gate of each image, which gate importance and Fisher information are made
of, and ``<network>/size``, its part of the square of the activation norm. Real slopes have longer
tails than any law that one would write down: among 1,000 images a few decide the mean square.

    python tests/helpers/real_heads.py <CIFAR-10 as class folders, in a tar>

makes it again (a minute of a core).
"""

import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).with_suffix(".npz")
NETWORKS = ("cifar10_vit_stem", "cifar10_swin_taught")
EACH, STRIDE = 100, 3  # images of a class; every third head


def columns(network: str, kind: str) -> Tensor:
    """(1000, A) float64, "slope" or "size" of each image and head of a network."""
    with np.load(FILE) as kept:
        return torch.from_numpy(kept[f"{network}/{kind}"].astype(np.float64))


def _images(archive: str, class_names: list[str]) -> tuple[Tensor, Tensor]:
    """(N, 3, 32, 32) the first test images of each class in [0, 1], and (N,) their labels."""
    from PIL import Image

    pixels, labels = [], []
    with tarfile.open(archive) as files:
        for member in sorted(files.getmembers(), key=lambda each: each.name):
            parts = Path(member.name).parts
            if not member.isfile() or "test" not in parts or parts[-2] not in class_names:
                continue
            label = class_names.index(parts[-2])
            if labels.count(label) < EACH:
                picture = Image.open(io.BytesIO(files.extractfile(member).read())).convert("RGB")
                pixels.append(np.asarray(picture))
                labels.append(label)
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2) / 255, torch.tensor(labels)


def _measured(weights: Path, archive: str) -> dict[str, np.ndarray]:
    import mhprobe
    from mhprobe.measures.parts.losses import gate_slopes
    from mhprobe.recording.record import record

    about = json.loads(weights.with_suffix(".json").read_text())
    images, labels = _images(archive, about["class_names"])
    mean, deviation = (torch.tensor(about["input"][key]).view(3, 1, 1) for key in ("mean", "std"))
    model = mhprobe.load(weights).eval()
    mhprobe.attach(model)
    slopes, sizes = [], []
    for pixels, label in zip(images.split(100), labels.split(100), strict=True):
        heads = record(model, (pixels - mean) / deviation, label, {"grad", "weights"})
        slopes.append(gate_slopes(heads, "slopes").detach())
        read = [part.output.double().square().sum(-1) for part in heads.need("weights", "sizes")]
        sizes.append(
            torch.cat(
                [
                    (z.double().square().sum(1) * read_HD).sum(-1)
                    for z, read_HD in zip(heads.z, read, strict=True)
                ],
                1,
            ).detach()
        )
    return {"slope": torch.cat(slopes).numpy(), "size": torch.cat(sizes).numpy()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    home = Path(__file__).parents[2] / "weights"
    np.savez_compressed(
        FILE,
        **{
            f"{network}/{kind}": values[:, ::STRIDE].astype(np.float16)
            for network in NETWORKS
            for kind, values in _measured(home / f"{network}.safetensors", sys.argv[1]).items()
        },
    )
