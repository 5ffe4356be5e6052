"""Safe reading of a run's folder, which may come from a stranger (SECURITY.md).

Only ordinary files of a limited size inside the folder are read. No file is imported or run, no
link is followed, and no setting is looked up in the environment.
"""

import contextlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from mhprobe.errors import refusing
from mhprobe.io.moved import renamed
from mhprobe.io.ordinary import unlike_ordinary

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C, where it is there
MB = 1_000_000
ROOM = 400 * MB  # of all files of a run together
DEPTH = 40  # of settings within settings


class Folder:
    """Files by their names inside ``root``. Raises ValueError for a file that cannot be read."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root).resolve()
        self.room = ROOM
        self.unread: list[str] = []  # what could not be read, each with the reason

    def tried(self, read: Callable[..., T], *where: Any) -> T | None:
        """Return ``read(*where)``; None, with an entry in ``unread``, for what is damaged; where: its name first."""
        try:
            return read(*where)
        except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            text = str(error).removeprefix("report: ").replace(f"{self.root}/", "")
            names = [f"{name}:" for name in where[:1] if isinstance(name, str) and name not in text]
            self.unread.append(" ".join([*names, text]))
            return None

    def path(self, name: str, most: int) -> Path | None:
        """Return the path of an ordinary file of at most ``most`` bytes; None if it does not exist.

        Raises ValueError for a link, a pipe, a device, a folder, a larger file, or a place outside
        the folder.
        """
        parts = name.split("/")
        if "" in parts or "." in parts or ".." in parts:
            raise ValueError(f"{name}: not a place inside the folder")
        place, status = self.root, None
        for part in parts:
            place = place / part
            try:
                status = os.lstat(place)
            except (FileNotFoundError, NotADirectoryError):
                return None
            if stat.S_ISLNK(status.st_mode):
                raise ValueError(f"{name}: a link, which is not followed")
        if status is None:
            raise ValueError(f"{name}: not an ordinary file")
        if reason := unlike_ordinary(status, min(most, self.room)):
            raise ValueError(f"{name}: {reason}")
        self.room -= status.st_size
        return place

    def bytes(self, name: str, most: int) -> bytes | None:
        """Return the file's content, None if there is none."""
        place = self.path(name, most)
        return None if place is None else place.read_bytes()

    def json(self, name: str, most: int = 4 * MB) -> dict[str, Any]:
        """Return the object in a JSON file; {} for no file, or one that holds something else."""
        data = self.bytes(name, most)
        try:
            value = json.loads(data.decode("utf-8")) if data is not None else {}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name}: {_line(error)}") from error
        return dict(value) if isinstance(value, Mapping) else {}

    def yaml(self, name: str, most: int = MB // 2) -> Any:
        """Return the plain values of a YAML file, with references (``${...}``) unresolved; None for no file."""
        data = self.bytes(name, most)
        try:
            return None if data is None else renamed(plain_yaml(data.decode("utf-8")))
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            raise ValueError(f"{name}: {_line(error)}") from error

    def overrides(self) -> list[str]:
        """Return the overrides of the command line that made the run; [] if they were not kept."""
        lines = self.yaml("config/overrides.yaml")
        return [str(line) for line in lines] if isinstance(lines, list) else []

    def tensors(self, name: str, most: int = 50 * MB) -> tuple[dict[str, "Tensor"], dict[str, str]]:
        """Return the tensors of a safetensors file, and its metadata; both empty if there is none."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        data = self.bytes(name, most)
        if data is None:
            return {}, {}
        try:
            size = int.from_bytes(data[:8], "little")
            about = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
            return load(data), {str(key): str(value) for key, value in about.items()}
        except (SafetensorError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{name}: {_line(error)}") from error


def plain_yaml(text: str) -> Any:
    """Parse a YAML text.

    Raises ValueError for aliases, which can make a small text large, and for deep nesting.
    """
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("an alias, expected plain values")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > DEPTH:
            raise ValueError(f"values within values, more than {DEPTH} deep")
    return yaml.load(text, Loader=LOADER)


def reading(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Turn unforeseen errors while reading the folders of runs into a UserError."""
    where, why = (
        f"report: {folder} cannot be read as a run",
        "Is a file of it damaged, or from another version?",
    )
    return refusing(lambda error: f"{where} ({type(error).__name__}: {_line(error)}). {why}")


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return "".join(letter if letter.isprintable() else "?" for letter in text[:200])
