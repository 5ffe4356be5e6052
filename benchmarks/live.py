"""Heads that switch live: seconds of a processor that Chromium takes for a mask, and what the kept prefix saves.

Seconds are of the page's thread, so that other work on the machine does not count. Without Chromium
or playwright there is only the size of the page.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch

import mhprobe
from benchmarks.harness.size import Size
from benchmarks.harness.timing import Ratio, from_rounds, single
from mhprobe.weights.checkpoint import load_weights

WEIGHTS = Path(__file__).parents[1] / "weights"
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DIGITS = {
    "img_size": 8,
    "patch_size": 2,
    "embed_dim": 96,
    "depth": 4,
    "num_heads": 6,
    "mlp_ratio": 2,
}
MASK = "(closed) => predicted(Float32Array.from(HEADS, ({ id }) => (closed.includes(id) ? 0 : 1)), () => {})"


def run(size: Size) -> Iterator[Ratio]:
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    stem, _ = load_weights(WEIGHTS / "cifar10_vit_stem.safetensors")
    networks = {
        "360 digits": (
            timm.create_model("vit_tiny_patch16_224", num_classes=10, **DIGITS),
            360,
            8,
            "<= 0.3",
        ),
        "200 CIFAR-10 images, ViT with a stem": (stem, 200, 32, "<= 2"),
    }
    with tempfile.TemporaryDirectory() as folder:
        for what in list(networks)[: size.pick(1, 2)]:
            model, count, side, limit = networks[what]
            images = torch.randint(0, 256, (size.pick(4, count), 3, side, side), dtype=torch.uint8)
            page = mhprobe.live(model.eval(), images, torch.zeros(len(images)).long()).save(
                Path(folder) / "live.html"
            )
            yield single(f"live page of {what}: megabytes", page.stat().st_size / 1e6)
            if chromium is not None and importlib.util.find_spec("playwright") is not None:
                yield from _rows(page, chromium, what, limit, size.rounds(7))


def _rows(page: Path, chromium: str, what: str, limit: str, rounds: int) -> Iterator[Ratio]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=FLAGS)
        shown = browser.new_page()
        shown.goto(page.as_uri())
        shown.wait_for_function(
            "() => document.getElementById('live').dataset.answered !== undefined", timeout=300_000
        )
        thread = shown.context.new_cdp_session(shown)
        thread.send("Performance.enable", {"timeDomain": "threadTicks"})

        def seconds(closed: list[int]) -> float:
            before = _busy(thread)
            shown.evaluate(MASK, closed)
            return _busy(thread) - before

        last = shown.evaluate("HEADS.length") - 1
        first, deep = [], []
        for number in range(rounds):
            first.append(seconds([number % 2]))  # another head of the first block each time
            seconds([])
            deep.append(seconds([last]))
            seconds([])
        yield from_rounds(f"a mask in the browser, {what}: seconds", first, limit)
        ratios = [a / b for a, b in zip(first, deep, strict=True)]
        yield from_rounds(f"a mask of the first block / of the last, {what}", ratios)
        browser.close()


def _busy(thread: Any) -> float:
    """Seconds that the page's thread has computed."""
    return {one["name"]: one["value"] for one in thread.send("Performance.getMetrics")["metrics"]}[
        "TaskDuration"
    ]
