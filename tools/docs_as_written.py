"""An extension of griffe: docstrings are shown as they are written.

Their lines and examples are no Markdown.
"""

from __future__ import annotations

from typing import Any

import griffe


class AsWritten(griffe.Extension):
    """The first sentence is prose, the rest keeps its lines."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            first, _blank, rest = obj.docstring.value.strip().partition("\n\n")
            first = first.replace("[", "\\[")
            obj.docstring.value = f"{first}\n\n```text\n{rest}\n```" if rest else first
