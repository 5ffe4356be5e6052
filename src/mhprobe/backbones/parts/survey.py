"""Survey of timm's models: the supported ones, and the reason for each refused one.

Every name is asked for without weights or memory (torch's meta device). Of a class that no family claims, only the
first model is built: the others get the same answer.
"""

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from mhprobe.errors import HeadsMixed, UserError


@dataclass
class Architecture:
    """Result of the survey for one class of timm. attention: True if its models have modules with heads.

    mixed: how many of the refused have heads that are no slices of what enters a projection.
    """

    attention: bool = False
    attached: int = 0
    prunable: int = 0
    mixed: int = 0
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # by reason

    @property
    def names(self) -> int:
        return self.attached + sum(map(len, self.refused.values()))


class _Known(Exception):
    """The class of a model that need not be built."""


def survey(names: Iterable[str]) -> dict[str, Architecture]:
    """Architecture class -> what became of these names of timm's."""
    from mhprobe.backbones import families, family_of, layout_of
    from mhprobe.backbones.parts.located import Located, path_of

    found: dict[str, Architecture] = defaultdict(Architecture)
    unclaimed: set[type] = set()
    for name in names:
        try:
            model = _built(name, unclaimed)
        except _Known as known:
            found[str(known)].refused[_UNKNOWN].append(name)
            continue
        entry = found[type(model).__name__]
        attention = any(hasattr(module, "num_heads") for module in model.modules())
        entry.attention |= attention
        ours = {name for family in families() if issubclass(family, Located) for name in family.model}
        if path_of(type(model)) not in ours and not any(family.claims(model) for family in families()):
            unclaimed.add(type(model))
            entry.refused[_UNKNOWN].append(name)
            continue
        if not attention:  # a smaller one of its class, of convolutions alone
            continue
        try:
            layout_of(model)
        except UserError as error:
            entry.mixed += isinstance(error, HeadsMixed)
            entry.refused[re.sub(r"^\S*\d\S*?(?=\.attn|[: ])", "a block", str(error))].append(name)
        else:
            entry.attached += 1
            entry.prunable += family_of(model).unprunable(model) is None
    return found


_UNKNOWN = "no family knows where its heads are"


def _built(name: str, unclaimed: set[type]) -> Any:
    import timm
    import torch
    from timm.models import model_entrypoint

    with torch.device("meta"), _stopping_at(model_entrypoint(name).__module__, unclaimed):
        return timm.create_model(name)


@contextlib.contextmanager
def _stopping_at(module: str, classes: set[type]) -> Iterator[None]:
    """For a while timm's file ``module`` raises _Known where it would build one of ``classes``."""
    from timm.models import build_model_with_cfg

    def build(model_cls: Any, *args: Any, **kwargs: Any) -> Any:
        if model_cls in classes:
            raise _Known(model_cls.__name__)
        return build_model_with_cfg(model_cls, *args, **kwargs)

    with mock.patch(f"{module}.build_model_with_cfg", build, create=True):
        yield


def page(found: dict[str, Architecture]) -> str:
    """The answer as markdown."""
    import timm

    named = sorted(found.items(), key=lambda item: (-item[1].attached, -item[1].names, item[0]))
    heads = [(name, entry) for name, entry in named if entry.attention]
    attached, prunable = (sum(getattr(entry, what) for _, entry in heads) for what in ("attached", "prunable"))
    mixed = sum(entry.mixed for _, entry in heads)
    total, others = sum(entry.names for _, entry in heads), len(found) - len(heads)
    rows = [
        f"| {name} | {entry.names} | {entry.attached} | {entry.prunable} | {_reasons(entry)} |" for name, entry in heads
    ]
    return "\n".join(
        [
            "# Which of timm's models have their heads found",
            "",
            f"Written by `make models` with timm {timm.__version__}. {attached} of the {total} names whose "
            f"architecture has modules with heads can be gated, measured and masked; of {prunable} heads can be "
            f"removed. {mixed} of the others mix their heads before the projection, so that none could be gated alone: "
            f"of the names with heads that can be told apart {attached / max(1, total - mixed):.0%} attach.",
            "",
            f"Of an architecture that no family knows only the first model was built. {others} more architectures have "
            f"no such modules there, and are not counted: most are convolutions, but those whose first model has no "
            f"heads where others do (MobileViT), and those that name their heads otherwise "
            f"(Hiera), are among them.",
            "",
            "Where a reason says so, or a family is one of attention between channels or with coarser keys, heads have "
            "no attention weights over the tokens of the image; measures that ask for them are left out with that "
            "reason.",
            "",
            "| architecture class | names | attach | can be pruned | why the others are refused |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


def _reasons(entry: Architecture) -> str:
    return "<br>".join(f"{len(names)} (e.g. {names[0]}): {reason}" for reason, names in sorted(entry.refused.items()))
