"""What a cluster or a notebook has installed is taken as it is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
REQUIREMENTS = {
    requirement.name: requirement.specifier
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for requirement in [Requirement(line)]
}


@pytest.mark.parametrize(
    ("name", "installed"),
    [
        ("torch", "2.6.0"),
        ("torch", "2.11.0a0"),  # of a vendor's image
        ("torch", "3.0"),
        ("torchvision", "0.21.0"),
        ("numpy", "1.26.4"),
        ("timm", "1.0.26"),
        ("lightning", "2.4.0"),
        ("lightning", "2.7.0"),
    ],
)
def test_what_is_installed_already_is_left_alone(name, installed):
    """pip counts an installed pre-release as what it is."""
    assert REQUIREMENTS[name].contains(installed, prereleases=True)


@pytest.mark.parametrize("name", ["lightning", "pytorch-lightning"])
@pytest.mark.parametrize("version", ["2.6.2", "2.6.3"])
def test_releases_that_held_malware_are_refused(name, version):
    assert not REQUIREMENTS[name].contains(version)
    assert REQUIREMENTS[name].contains("2.6.4")  # the control


def test_only_hydra_and_its_configuration_objects_have_an_upper_limit():
    limited = [
        name
        for name, specifier in REQUIREMENTS.items()
        if any(one.operator in ("<", "<=", "==", "~=") for one in specifier)
    ]
    assert limited == ["hydra-core", "omegaconf"]
