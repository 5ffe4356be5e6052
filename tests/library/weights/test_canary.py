"""With the timm that is installed, nothing that a stranger's file says makes it open anything.

What passes is found in timm's own signatures, so another version is another list:
`make test-oldest` and the suite run this with the oldest and the newest timm that is allowed.
tests/library/weights/test_strangers.py has the cases that are known.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import timm
import timm.models
import torch
from omegaconf import OmegaConf
from packaging.requirements import Requirement
from test_weights import Harmful

from mhprobe.backbones import build
from mhprobe.errors import UserError
from mhprobe.framework.run.sections import CONF
from mhprobe.weights.description import check_setting

JSON = Path("model.json")
# what names a file or an address, in every form a JSON can give it
NAMES = [
    "/tmp/evil.pth",
    "evil.pth",
    "../evil",
    "http://localhost:9/evil",
    "hf-hub:a/b",
    "local-dir:evil",
    "C:evil",
]
# timm's functions between a name and a model
BUILDERS = [
    *(
        timm.create_model,
        timm.models.build_model_with_cfg,
        timm.models.load_pretrained,
        timm.models.load_checkpoint,
    ),
    *(
        timm.models.load_state_dict,
        timm.models.resolve_pretrained_cfg,
        timm.models.load_model_config_from_hf,
    ),
]


@functools.cache
def architectures() -> dict[str, set[str]]:
    """A model of each of timm's files, and every keyword of that file and of what loads weights that passes at all."""
    found: dict[str, set[str]] = {}
    for module in sorted({timm.model_entrypoint(name).__module__ for name in timm.list_models()}):
        name = next(
            name for name in timm.list_models() if timm.model_entrypoint(name).__module__ == module
        )
        made = [made for made in vars(sys.modules[module]).values() if callable(made)]
        taken = {key for each in [*made, *BUILDERS] for key in keywords(each)}
        found[name] = {key for key in taken if passes(name, key, None)}
    return found


def keywords(made: Any) -> list[str]:
    try:
        return list(inspect.signature(made).parameters)
    except ValueError:  # written in C
        return []


def passes(name: str, key: str, value: Any) -> bool:
    try:
        check_setting(name, key, value, JSON)
    except UserError:
        return False
    return True


def test_the_installed_timm_is_one_that_is_allowed():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    (allowed,) = (each for each in map(Requirement, project["dependencies"]) if each.name == "timm")
    assert allowed.specifier.contains(version("timm")) and not allowed.specifier.contains("1.0.25")


def test_no_keyword_of_any_model_takes_a_file_or_an_address():
    assert len(architectures()) > 50
    for name, keys in architectures().items():
        passed = [
            (key, value)
            for key in keys
            for text in NAMES
            for value in (text, [text], [1, text], {"file": text})
            if passes(name, key, value)
        ]
        assert passed == [], name


def test_no_keyword_that_loads_passes_with_any_value():
    for name in architectures():
        for key in (
            "checkpoint_path",
            "pretrained_cfg",
            "pretrained_cfg_overlay",
            "cache_dir",
            "pretrained_filter_fn",
        ):
            assert not any(passes(name, key, value) for value in ("a", 1, True, None, [1])), (
                name,
                key,
            )


def test_sizes_and_switches_pass():
    """Negative control: it is not that everything is refused."""
    vit = "vit_tiny_patch16_224"
    allowed = {key for key in architectures_of(vit) if passes(vit, key, 4)}
    assert len(allowed) > 10 and {"embed_dim", "depth", "num_heads"} <= allowed


OPENED: list[str] = []
WATCHING = False


def watch(event: str, args: tuple[Any, ...]) -> None:
    if WATCHING and event in (
        "open",
        "socket.connect",
        "socket.getaddrinfo",
        "subprocess.Popen",
        "os.system",
    ):
        OPENED.append(f"{event} {args[0]}")


@pytest.fixture(scope="module")
def audited() -> Iterator[None]:
    """An audit hook cannot be taken away again; it sleeps but for this module."""
    global WATCHING
    sys.addaudithook(watch)
    WATCHING = True
    yield
    WATCHING = False


def small(name: str) -> dict[str, Any]:
    """What makes the model of a backbone's yaml small enough to be built many times."""
    known = {
        "img_size": 32,
        "patch_size": 8,
        "window_size": 2,
        "embed_dim": 12,
        "depth": 1,
        "num_heads": 3,
    }
    return {
        key: value
        for key, value in known.items()
        if passes(name, key, value) and not name.startswith("swin")
    }


BACKBONES = sorted({OmegaConf.load(yaml)["name"] for yaml in (CONF / "backbone").glob("*.yaml")})


@pytest.mark.parametrize("name", BACKBONES)
def test_a_plain_word_that_is_a_file_of_this_folder_is_not_opened_by_a_constructor(
    name, audited, tmp_path, monkeypatch
):
    mark = tmp_path / "mark"
    torch.save({"state_dict": Harmful(mark)}, tmp_path / "evil")
    monkeypatch.chdir(tmp_path)
    keys = [key for key in sorted(architectures_of(name)) if passes(name, key, "evil")]
    OPENED.clear()
    for key in keys:
        try:
            with torch.device("meta"):
                build(name, num_classes=2, **{**small(name), key: "evil"})
        except Exception:  # timm knows no such word
            pass
    assert not [
        line for line in OPENED if "evil" in line or "socket" in line or "subprocess" in line
    ]
    assert not mark.exists()


def architectures_of(name: str) -> set[str]:
    module = timm.model_entrypoint(name).__module__
    return next(
        keys
        for each, keys in architectures().items()
        if timm.model_entrypoint(each).__module__ == module
    )


def test_the_watch_would_see_it(audited, tmp_path):
    OPENED.clear()
    (tmp_path / "evil").write_bytes(b"")
    (tmp_path / "evil").open().close()
    assert any("evil" in line for line in OPENED)


CONFIGS: dict[str, dict[str, Any]] = {
    "its own weights": {},
    "a file": {"pretrained_cfg": {"file": "EVIL"}},
    "a file that loads itself": {"pretrained_cfg": {"file": "EVIL", "custom_load": True}},
    "an argument": {"model_args": {"checkpoint_path": "EVIL"}},
    "an overlay": {"model_args": {"pretrained_cfg_overlay": {"file": "EVIL"}}},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_strangers_folder_for_timm_runs_no_code(tmp_path, config):
    mark, evil, folder = tmp_path / "mark", tmp_path / "evil.pth", tmp_path / "folder"
    folder.mkdir()
    for path in (evil, folder / "pytorch_model.bin"):
        torch.save({"state_dict": Harmful(mark)}, path)
    whole = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 2,
        "pretrained_cfg": {},
        **config,
    }
    (folder / "config.json").write_text(json.dumps(whole).replace("EVIL", str(evil)))
    with pytest.raises(UserError) as error:
        build(f"local-dir:{folder}", num_classes=2, pretrained=True)
    assert not mark.exists()
    assert "\n" not in str(error.value) and "retry" not in str(
        error.value
    )  # timm says how to run the code all the same
