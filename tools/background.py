"""Draw docs/figures/background.png: how much of each head's attention lies on the object of a photograph.

python tools/background.py

The photograph is scikit-learn's flower, whose petals are told from leaves by their colour; the network
is weights/cifar10_vit_dinov2.safetensors. Its heads stand beside those of an untrained network, and
beside even attention. The numbers go to docs/tables/background.csv.
"""

import csv
import io
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_sample_image
from torch import Tensor
from torch.nn.functional import interpolate

from mhprobe.io.files import write
from mhprobe.maps.attention import attention
from mhprobe.pages.looking.network import OpenNetwork, network_to_look_at
from mhprobe.report.figures import style
from mhprobe.report.runs.facts import made_by

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "weights" / "cifar10_vit_dinov2.safetensors"
FIGURE = ROOT / "docs" / "figures" / "background.png"
TABLE = ROOT / "docs" / "tables" / "background.csv"
REDDER = 25  # of 255: a petal's red is above its green by more than that
BRIGHT = 110  # of 255: and its red is above that


class Shares(NamedTuple):
    """Attention of heads, on a photograph of H x W pixels and a grid of rows x columns.

    photo: (3, H, W) in [0, 1]. petals: (rows, columns) share of each patch that is petals. even: that of
    the photograph. maps: (A, rows, columns) attention of the class token. trained, untrained: (A,)
    share of a head's attention to patches that lies on petals.
    """

    photo: Tensor
    petals: Tensor
    even: float
    maps: Tensor
    trained: Tensor
    untrained: Tensor


def main() -> None:
    """Write the figure and its table; the figure first, as it names the commit."""
    network = network_to_look_at(WEIGHTS)
    shares = measured(network)
    write(FIGURE, drawn(network, shares))
    write(TABLE, rows(network, shares).encode())
    ends = [f"{value:.3f}" for value in (shares.trained.min(), shares.trained.max())]
    print(f"{FIGURE}\n{TABLE}\nfrom {ends[0]} to {ends[1]}, even attention {shares.even:.3f}")


def measured(network: OpenNetwork) -> Shares:
    """Return how much of the attention of each head lies on the petals, in the middle of the photograph."""
    whole = torch.from_numpy(load_sample_image("flower.jpg").copy()).permute(2, 0, 1)
    edge = (whole.shape[2] - whole.shape[1]) // 2
    photo = whole[:, :, edge : edge + whole.shape[1]]
    red, green, _ = photo.int()
    petals = ((red > green + REDDER) & (red > BRIGHT)).float()
    size = network.spec["size"]
    pixels = interpolate(photo[None] / 255, size, mode="bicubic", antialias=True)
    mean, std = (torch.tensor(network.spec[name]).view(3, 1, 1) for name in ("mean", "std"))
    image = (pixels - mean) / std
    maps = attention(network.model, image, query="class")[0]
    petals = interpolate(petals[None, None], maps.shape[-2:], mode="area")[0, 0]
    random = attention(network.twin(), image, query="class")[0]
    return Shares(
        photo / 255, petals, float(petals.mean()), maps, on(petals, maps), on(petals, random)
    )


def on(petals: Tensor, maps: Tensor) -> Tensor:
    """Return (A,) the share of each map that lies on the petals."""
    return (maps * petals).sum((1, 2)) / maps.sum((1, 2))


def rows(network: OpenNetwork, shares: Shares) -> str:
    """Return the table: a row per head."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("block", "head", "trained", "untrained", "even_attention"))
    sites = network.layout.sites
    for (site, head, _), trained, untrained in zip(
        network.layout, shares.trained.tolist(), shares.untrained.tolist(), strict=True
    ):
        numbers = (f"{value:.4f}" for value in (trained, untrained, shares.even))
        writer.writerow((sites[site].block, head, *numbers))
    return table.getvalue()


def drawn(network: OpenNetwork, shares: Shares) -> bytes:
    """Return the figure as a PNG: the photograph, the extreme heads, and the shares by block."""
    most, least = int(shares.trained.argmax()), int(shares.trained.argmin())
    names = [network.layout.name_of(at) for at in (most, least)]
    with style.canvas((7.4, 2.1)) as figure:
        style.show_picture(style.axes_at(figure, 0, 0.4, 1.3, 1.3), shares.photo)
        for left, at, name in zip((1.45, 2.9), (most, least), names, strict=True):
            axes = style.axes_at(figure, left, 0.4, 1.3, 1.3)
            axes.imshow(shares.maps[at].numpy())
            axes.set_axis_off()
            axes.set_title(f"{name}: {100 * shares.trained[at]:.1f} %", loc="left")
        axes = style.axes_at(figure, 4.85, 0.4, 2.4, 1.3)
        blocks = torch.tensor([network.layout.sites[site].block for site, _, _ in network.layout])
        look = {"s": 9, "linewidths": 0.7}
        axes.scatter(
            blocks + 0.18,
            100 * shares.untrained,
            c="none",
            edgecolors="0.5",
            label="untrained",
            **look,
        )
        axes.scatter(blocks - 0.18, 100 * shares.trained, color="C0", label="trained", **look)
        style.level(axes, 100 * shares.even, "even attention")
        axes.set_xlabel("block")
        axes.set_ylabel("attention on petals (%)")
        style.whole_ticks(axes.xaxis)
        style.legend_above(axes)
        origin = made_by("python tools/background.py")
        with tempfile.TemporaryDirectory() as folder:
            picture, _ = style.save_figure(figure, Path(folder, FIGURE.stem), origin=origin)
            return picture.read_bytes()


if __name__ == "__main__":
    main()
