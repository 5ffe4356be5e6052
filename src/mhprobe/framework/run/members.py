"""Options without a yaml: the members of a folder, each by the name of its file.

Measures, kinds of maps, scores, orders and searches have their options in their constructors. A
yaml in conf/ wins.
"""

import ast
import functools
import re
from typing import Any, NamedTuple

from mhprobe.framework.run.constructors import OURS, PACKAGE


class MemberFolder(NamedTuple):
    """A folder of members.

    partial: they are built later, for a model. several: a run takes some, by name.
    """

    name: str
    partial: bool
    several: bool


FOLDERS = {
    "measure": MemberFolder("measures", partial=True, several=True),
    "maps": MemberFolder("maps", partial=False, several=True),
    "score": MemberFolder("scoring", partial=True, several=False),
    "prune/order": MemberFolder("masking", partial=False, several=False),
    "search": MemberFolder("masking/search", partial=False, several=False),
}


@functools.cache
def members(group: str) -> dict[str, dict[str, Any]]:
    """Return the parts of a group without a yaml, by name: classes with their file's name and a base class of ours."""
    if group not in FOLDERS:
        return {}
    folder, partial, _ = FOLDERS[group]
    parts = {}
    for path in sorted((PACKAGE / folder).glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for name, base in re.findall(r"^class (\w+)\((\w+)", text, re.M):
            ours = re.search(rf"^from {OURS}\S+ import (?:\([^)]*|.*)\b{base}\b", text, re.M)
            if ours and name.lower() == path.stem.replace("_", ""):
                target = {"_target_": f"{OURS}{folder.replace('/', '.')}.{path.stem}.{name}"}
                parts[path.stem] = {**target, "_partial_": True} if partial else target
    return parts


def option_key(group: str, name: str) -> str:
    """Return the key of an option: measure.svcca, score."""
    return (
        f"{group}.{name}"
        if group in FOLDERS and FOLDERS[group].several
        else group.replace("/", ".")
    )


def meaning(group: str, name: str) -> str:
    """Return the first paragraph of a member's file."""
    text = (PACKAGE / FOLDERS[group].name / f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0]
