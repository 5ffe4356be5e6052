"""A family of one's own, as docs/your_model.md writes it, and a model that does not say what it wants to see."""

from __future__ import annotations

import re
from pathlib import Path

import timm

import runs
from mhprobe.backbones import input_spec

DOC = Path(__file__).parents[3] / "docs" / "your_model.md"
# what the contract tests hold of shipped families: a closed head is the same as a head whose values
# are 0
PROOF = """
images = batch[0][0]
gates = mhprobe.attach(net)
assert [(site.num_heads, site.head_dim, site.token_grid) for site in gates.layout.sites] == [(3, 8, (4, 4))] * 2
assert values["gate_importance"].shape == values["entropy"].shape == (6,)
whole = net(images)
with gates.masked([4]):  # head 1 of block 1
    closed = net(images)
with torch.no_grad():
    net.blocks[1].v.weight[8:16] = 0
    net.blocks[1].v.bias[8:16] = 0
torch.testing.assert_close(closed, net(images))
assert not torch.allclose(closed, whole, atol=1e-4)

del Net.pretrained_cfg
try:
    mhprobe.attach(Net())
except mhprobe.UserError as error:
    assert "the size of its images is unknown" in str(error) and "'input_size'" in str(error)
else:
    raise AssertionError("a size was made up")
"""


def test_the_documented_family_has_heads_of_its_own(tmp_path):
    """In a process of its own: a family that a program has defined stays."""
    (code,) = re.findall(
        r"<!-- a family of your own -->\n```python\n(.*?)```", DOC.read_text(), re.S
    )
    (family,) = re.findall(r"class Mine\(Located\):\n((?:    .+\n)+)", code)
    assert len(family.splitlines()) == 3
    result = runs.python(code + PROOF, tmp_path)
    assert result.code == 0, result.err


def test_mean_and_deviation_are_a_half_where_a_model_says_nothing_of_them():
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=12, depth=1, num_heads=3
    )
    model.pretrained_cfg = {}
    assert input_spec(model) == {"size": (32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3}
