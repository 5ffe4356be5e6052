"""The library without the framework: beside torch and timm a notebook needs few packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
# mhprobe's commands, pages and figures use these; a notebook that measures, masks and prunes does not
FRAMEWORK = "lightning pytorch_lightning hydra omegaconf pydantic pydantic_core wandb rich matplotlib jinja2 sklearn"
# as in an environment where they aren't installed: nothing finds them
ABSENT = """
import sys

ABSENT = set({absent!r}.split())

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        absent = name.partition(".")[0] in ABSENT
        return None if absent else self.finder.find_spec(name, path, target)

    def find_distributions(self, context):
        hidden = ABSENT | {{"scikit-learn"}}
        find = getattr(self.finder, "find_distributions", None)
        return [] if find is None or context.name in hidden else find(context)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
NETWORKS = {
    "ViT": """
model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=16, embed_dim=12, depth=4,
                          num_heads=3, num_classes=4).eval()
""",
    "Swin": """
model = timm.create_model("swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=12,
                          depths=(2, 2), num_heads=(3, 3), num_classes=4).eval()
""",
}
IMAGES = """
images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
labels = torch.arange(8) % 4
loader = [(images[:4], labels[:4]), (images[4:], labels[4:])]
"""
AFTER = """
torch.testing.assert_close(small(images), masked)
assert masked.std() > 0.01 and len(least) == 3
assert values["gate_importance"].shape == (12,)
gates_off = mhprobe.masking_curve(model, loader, units="layer")
assert [row["heads_masked"] for row in gates_off][-1] == 12
assert not ABSENT & {name.partition(".")[0] for name in sys.modules}
print("done")
"""


def run(*lines: str, absent: str = FRAMEWORK) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "\n".join([ABSENT.format(absent=absent), *lines])],
        capture_output=True,
        text=True,
        timeout=300,
    )


def notebook_calls(network: str) -> str:
    """README's block for notebooks from the gates on, for a tiny ``network`` instead of the shipped one.

    The lines before them read scikit-learn's photographs and shipped weights, which need more packages.
    """
    _, _, after = README.read_text().partition("## In a notebook")
    block = after.split("```python\n")[1].split("```")[0]
    calls = block[block.index("gates = mhprobe.attach(model)") :]
    smaller = {"[:10]": "[:3]"}  # the tiny networks have 12 heads
    if network == "Swin":
        smaller['query="class"'] = "head=[0, 1]"  # no class token, and grids of several sizes
    for written, instead in smaller.items():
        assert calls.count(written) == 1
        calls = calls.replace(written, instead)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_the_readmes_notebook_runs_without_the_framework(network):
    begin = "import timm, torch, mhprobe"
    result = run(begin, NETWORKS[network], IMAGES, notebook_calls(network), AFTER)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("done\n")


def test_what_is_absent_cannot_be_imported():
    """The control of the test above."""
    for name in FRAMEWORK.split():
        assert f"No module named '{name}'" in run(f"import {name}").stderr


SCRIPT = """
import timm

import mhprobe

model = timm.create_model("vit_tiny_patch16_224")
gates = mhprobe.attach(model)
reveal_type(mhprobe.attach)
reveal_type(gates.layout.num_heads)
mhprobe.prune_heads(3)
gates.layout.no_such_name
"""


@pytest.mark.slow
def test_a_type_checker_sees_the_signatures_of_the_library(tmp_path):
    """A script of a user, and its three mistakes; what is found is cached where ``make types`` has it."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(script)]
    root = README.parent
    found = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=root).stdout
    said = {
        number: [line for line in found.splitlines() if f"script.py:{number}:" in line]
        for number in range(1, 1 + SCRIPT.count("\n"))
    }
    assert [number for number, lines in said.items() if lines] == [8, 9, 10, 11], found
    assert "def (model: torch.nn.modules.module.Module" in said[8][0]
    assert "-> mhprobe.gates.base.HeadGates" in said[8][0]
    assert '"int"' in said[9][0].replace("builtins.int", "int")
    assert '"mask"' in "".join(said[10]) and '"int"' in "".join(said[10])
    assert 'has no attribute "no_such_name"' in said[11][0]


@pytest.mark.slow
def test_without_rich_work_that_takes_long_is_told_in_lines():
    code = """
import logging
from mhprobe.io import progress
logging.basicConfig(level=logging.DEBUG)
with progress.progress("measure", 2) as advance:
    advance(2)
"""
    assert "measure: 2 images in 0 s" in run(code).stderr
