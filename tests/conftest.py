"""What several test files share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import forks

if TYPE_CHECKING:
    import runs


def pytest_configure(config: pytest.Config) -> None:
    forks.prepare()
    forks.collect_rarely()
    if not _hands_out(config):
        _be_quick()


def _hands_out(config: pytest.Config) -> bool:
    """Return True for the process that hands tests out to those of ``-n`` and runs none: it needs no torch."""
    return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")


def _be_quick() -> None:
    import warm

    warm.quick_disk()
    warm.quick_configurations()  # some files compose what they are parametrised by
    warm.quick_imports()
    warm.quick_exports()
    warm.quick_trainers()
    warm.quick_devices()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of this folder itself first: notebooks, the bench and the site take long, and would be waited for.

    What a type checker has to find is last: ``make types``, beside it, has kept most of it by then.
    """
    here = Path(__file__).parent
    items.sort(key=lambda item: ("a_type_checker" in item.name, item.path.parent != here))


@pytest.fixture(scope="session", autouse=True)
def quick() -> None:
    import warm

    warm.quick_pictures()  # after the files of tests have imported what draws and saves them whole


@pytest.fixture
def whole_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    import warm

    for name, whole in warm.quick_pictures().items():
        monkeypatch.setattr(name, whole)


@pytest.fixture(scope="session")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like CIFAR-10: 80 training and 30 test images."""
    import fakes

    return fakes.image_folder(tmp_path_factory.mktemp("cifar"))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> runs.Result:
    """A finished tiny training run; its folder holds ``model.safetensors``."""
    import runs

    cwd = tmp_path_factory.mktemp("trained")
    result = runs.run("train", *runs.TINY, "masking=none", "measure=[]", cwd=cwd)
    assert result.code == 0, result.err
    return result
