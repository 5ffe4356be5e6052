"""Survey of timm's models: the supported ones, and the reason for each refused one.

Every name is asked for without weights or memory (torch's meta device).
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import timm
import torch

from mhprobe.errors import HeadsMixed, UserError


@dataclass
class Architecture:
    """Result of the survey for one class of timm, of its models that have modules with heads.

    mixed: how many of the refused have heads that are no slices of what enters a projection.
    """

    attached: int = 0
    prunable: int = 0
    mixed: int = 0
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # by reason

    @property
    def names(self) -> int:
        return self.attached + sum(map(len, self.refused.values()))


def survey(names: Iterable[str]) -> dict[str, Architecture]:
    """Architecture class -> what became of these names of timm's."""
    from mhprobe.backbones import family_of, layout_of

    found: dict[str, Architecture] = defaultdict(Architecture)
    for name in names:
        with torch.device("meta"):
            model = timm.create_model(name)
        entry = found[type(model).__name__]
        if not any(hasattr(module, "num_heads") for module in model.modules()):  # of convolutions alone
            continue
        try:
            layout_of(model)
        except UserError as error:
            entry.mixed += isinstance(error, HeadsMixed)
            reason = re.sub(r"^timm\.models\S*: |; docs/models\.md.*| Not supported\.$", "", str(error))
            place = r"^\S*\d\S*: |^\S*\d\S*?(?=\.attn| )"  # where it says it of one block: of all it is the same
            entry.refused[re.sub(place, lambda name: "" if name[0].endswith(" ") else "a block", reason)].append(name)
        else:
            entry.attached += 1
            entry.prunable += family_of(model).unprunable(model) is None
    return found


def page(found: dict[str, Architecture]) -> str:
    """The answer as markdown."""
    heads = {name: entry for name, entry in found.items() if entry.names}
    heads = dict(sorted(heads.items(), key=lambda item: (-item[1].attached, -item[1].names, item[0])))
    attached, prunable, mixed, total = (
        sum(getattr(entry, what) for entry in heads.values()) for what in ("attached", "prunable", "mixed", "names")
    )
    alike: dict[str, list[str]] = defaultdict(list)
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, entry in heads.items():
        if entry.refused and entry.attached:
            some = f"{name} {entry.attached} of {entry.names} ({entry.prunable} can be pruned)"
            alike["Some names attach"].append(some)
        elif entry.attached:
            can = "can" if entry.prunable else "cannot"
            alike[f"Every name attaches and {can} be pruned"].append(f"{name} {entry.names}")
        for reason, names in entry.refused.items():
            reasons[reason].append(f"{name} {len(names)} (e.g. {names[0]})")
    return "\n".join(
        [
            "# Which of timm's models have their heads found",
            "",
            f"Written by `make models` with timm {timm.__version__}. {attached} of the {total} names with heads can be "
            f"gated, measured and masked; of {prunable} heads can be removed. {mixed} of the others mix their heads "
            f"before the projection, so no head can be gated alone: of the names whose heads can be told apart "
            f"{attached / max(1, total - mixed):.0%} attach. {len(found) - len(heads)} more architectures have no "
            f"heads that mhprobe finds: mostly convolutions, and models that name their heads otherwise (Hiera).",
            "",
            "Some heads have no attention weights over the tokens of an image (attention between channels, coarser "
            "keys); measures of attention are then left out with that reason. The number after a class counts its "
            "names.",
            "",
            *(line for words, names in alike.items() for line in (f"{words}: {', '.join(names)}.", "")),
            "| names that are refused | why |",
            "|---|---|",
            *(f"| {', '.join(names)} | {reason} |" for reason, names in reasons.items()),
        ]
    )
