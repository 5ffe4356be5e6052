"""Each room speaks its language: below the command line a message names an argument, and no key of conf/."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import mhprobe
import runs
from mhprobe.errors import UserError
from mhprobe.framework.run.construct import construct, keyed, naming_keys
from mhprobe.framework.run.sections import commands_of_conf, options_of_group

PACKAGE = Path(mhprobe.__file__).parent
# who composes a configuration, or reads that of a run that has ended
DOORS = (
    "framework/run",
    "framework/loggers",
    "report",
    "pages",
    "lab/prunebench/cells.py",
    "lab/papers/voita.py",
)


def places(part: object, above: str = "") -> Iterator[str]:
    for key, value in part.items() if isinstance(part, dict) else ():
        yield f"{above}{key}"
        yield from places(value, f"{above}{key}.")


@pytest.fixture(scope="module")
def keys() -> set[str]:
    """Every key of every command, below its section."""
    chosen = [(command,) for command in commands_of_conf()]
    chosen += [("prune", f"prune={name}") for name in options_of_group("prune")] + [
        ("train", "gates=hard_concrete")
    ]
    chosen += [("train", f"+callback={name}") for name in options_of_group("callback")]
    configurations = (
        OmegaConf.to_container(runs.composed(*words), resolve=False) for words in chosen
    )
    return {key for cfg in configurations for key in places(cfg) if "." in key}


def is_door(path: Path) -> bool:
    return (
        str(path.relative_to(PACKAGE)).startswith(DOORS)
        or "from mhprobe.framework.run.cli import main" in path.read_text()
    )


def texts(tree: ast.AST) -> Iterator[str]:
    """What a file says at run time: every literal but docstrings; where a value is put in, an x stands for it."""
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(node.value)
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values
            )
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.value


def named(text: str, keys: set[str]) -> set[str]:
    sections = "|".join({key.partition(".")[0] for key in keys})
    text = re.sub(
        r"(?<=: x: )[\w.]+", "", text
    )  # "weights: <file>: backbone.depth": behind a file stands its own key
    text = re.sub(
        r"python -m mhprobe\S*( \S*=\S*| \.\.\.)*", "", text
    )  # a whole command says which command it is of
    found = re.findall(rf"(?<![\w./-])(?:{sections})\.\w+", text)
    return {key for key in found if key in keys or key.endswith(".x")}


def test_no_message_below_the_command_line_names_a_key_of_its_configuration(keys):
    assert {"data.root", "prune.heads", "optim.lr", "masking.curves"} <= keys
    homes = PACKAGE / "__init__.py"  # says in which module a name is
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if not is_door(path) and path != homes]
    said = {
        path: {key for text in texts(ast.parse(path.read_text())) for key in named(text, keys)}
        for path in files
    }
    assert not {str(path.relative_to(PACKAGE)): found for path, found in said.items() if found}


def test_a_message_that_names_one_is_seen(keys):
    """Negative control."""
    for line in (
        'UserError(f"prune.heads: {path} is none.")',
        'UserError("Raise data.val_fraction.")',
    ):
        assert [key for text in texts(ast.parse(line)) for key in named(text, keys)]
    for line in ('"""data.root"""', 'UserError(f"weights: {file}: data.root: expected another.")'):
        assert not [key for text in texts(ast.parse(line)) for key in named(text, keys)]
    assert not named("Write one: python -m mhprobe.prune ... prune.elastic=true writes it.", keys)


def refuse(option: str) -> None:
    raise UserError(f"{option}: expected another, got this.")


@pytest.mark.parametrize(
    ("option", "key"),
    [
        ("root", "data.root"),
        ("kinds", "data.source.kinds"),
        ("flip", "data.augment.flip"),
        ("a.b", "data.a.b"),
        ("other", "other"),
    ],
)
def test_the_command_line_puts_its_key_in_front(option, key):
    part = {
        "root": None,
        "source": {"root": "x", "kinds": []},
        "augment": {"flip": True},
        "a": {"b": 1},
    }
    with pytest.raises(UserError, match=f"^{key}: expected another") as error, keyed(part, "data"):
        refuse(option)
    with pytest.raises(UserError) as again, keyed({"data": part}):  # a key is put there once
        raise error.value
    assert str(again.value) == str(error.value)


def test_advice_names_keys_of_the_command_line_too():
    with pytest.raises(UserError) as error, keyed({"fold": "mean", "units": None}, "prune"):
        raise UserError(
            "fold: it has no bias; use fold=zero, units=head or data=scenes, not root.fold=mean, "
            "unfold=1."
        )
    advice = "use prune.fold=zero, prune.units=head or data=scenes, not root.fold=mean, unfold=1."
    assert str(error.value) == f"prune.fold: it has no bias; {advice}"


def test_parts_that_are_made_now_or_later_complain_under_their_keys():
    corrupted = {"_target_": "mhprobe.data.corrupted.Corrupted", "source": None, "kinds": ["snow"]}
    with pytest.raises(UserError, match=r"^data\.source\.kinds: expected some of"):
        construct({"_target_": "builtins.dict", "source": corrupted}, "data")
    later = construct(
        {"_target_": f"{__name__}.refuse", "_partial_": True, "option": "option"}, "score"
    )
    with pytest.raises(UserError, match=r"^score\.option: expected another"):
        naming_keys(later, "score")()


def test_an_error_that_needs_no_key_is_not_its_own_cause():
    """Whoever follows causes to the first would never arrive."""
    with pytest.raises(UserError) as error, keyed({"root": None}, "data"):
        raise UserError("all is wrong.") from OSError("first")
    assert isinstance(error.value.__cause__, OSError)
    with pytest.raises(UserError) as again:
        naming_keys(functools.partial(refuse, "other"), "score")()
    assert again.value.__cause__ is None
