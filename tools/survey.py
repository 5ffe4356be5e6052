"""python tools/survey.py: which of timm's models are supported, and why others are not, as markdown; some minutes.

Models stand on torch's meta device: they have shapes and no weights.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import timm
import torch

from mhprobe.backbones import family_of, layout_of
from mhprobe.backbones.huggingface import REFUSED
from mhprobe.errors import HeadsMixed, UserError

TOWERS = (
    "Towers of transformers, as vision-language models hold them:",
    "",
    "| class in transformers | can be gated, measured, masked |",
    "|---|---|",
    "| CLIPVisionModel, SiglipVisionModel, Dinov2Model, Dinov2WithRegistersModel, DINOv3ViTModel | "
    "yes, with SDPA or eager attention |",
    "| LlavaForConditionalGeneration, and others that hold one such tower | the tower's heads; give "
    "images to the tower (`model.model.vision_tower`) |",
    "| TimmWrapperModel | as the timm model inside, whose attention stays fused |",
)


@dataclass
class Architecture:
    """Number of models of one class of timm, that have heads, by result.

    mixed: refused since no head is a slice.
    """

    attached: int = 0
    prunable: int = 0
    mixed: int = 0
    refused: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # by reason

    @property
    def names(self) -> int:
        return self.attached + sum(map(len, self.refused.values()))


def survey(names: Iterable[str]) -> dict[str, Architecture]:
    """Results of these names of timm by architecture class."""
    results: dict[str, Architecture] = defaultdict(Architecture)
    for name in names:
        with torch.device("meta"):
            model = timm.create_model(name)
        entry = results[type(model).__name__]
        if not any(
            hasattr(module, "num_heads") for module in model.modules()
        ):  # of convolutions alone
            continue
        try:
            layout_of(model)
        except UserError as error:
            entry.mixed += isinstance(error, HeadsMixed)
            reason = re.sub(
                r"^timm\.models\S*: |; docs/models\.md.*| Not supported\.$", "", str(error)
            )
            # the name of a block: all have the same reason
            place = r"^\S*\d\S*: |^\S*\d\S*?(?=\.attn| )"
            entry.refused[
                re.sub(place, lambda name: "" if name[0].endswith(" ") else "a block", reason)
            ].append(name)
        else:
            entry.attached += 1
            entry.prunable += family_of(model).unprunable(model) is None
    return results


def page(results: dict[str, Architecture]) -> str:
    """The results as markdown."""
    heads = {name: entry for name, entry in results.items() if entry.names}
    heads = dict(
        sorted(heads.items(), key=lambda item: (-item[1].attached, -item[1].names, item[0]))
    )
    attached, prunable, mixed, total = (
        sum(getattr(entry, what) for entry in heads.values())
        for what in ("attached", "prunable", "mixed", "names")
    )
    reasons: dict[str, list[str]] = defaultdict(list)
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, entry in heads.items():
        words = {0: "none", entry.names: "all"}
        able = tuple(words.get(count, str(count)) for count in (entry.attached, entry.prunable))
        alike[able].append(f"{name} {entry.names}")
        for reason, names in entry.refused.items():
            reasons[reason].append(f"{name} {len(names)} (e.g. {names[0]})")
    return "\n".join(
        [
            "# Which timm models work",
            "",
            f"timm {timm.__version__} has {total} model names with attention heads. mhprobe can "
            "gate, measure and mask "
            f"the heads of {attached}, and remove heads from {prunable}. {mixed} of the others mix "
            "their heads before "
            "the projection, so no head can be gated alone; without those, "
            f"{attached / max(1, total - mixed):.0%} of "
            f"the names work. `make models` writes this page.",
            "",
            "Some heads have no attention weights over the tokens of an image (attention between "
            "channels, coarser "
            "keys); measures of attention are then left out with that reason.",
            "",
            "| class in timm, and its number of names | can be gated, measured, masked | heads can "
            "be removed |",
            "|---|---|---|",
            *(f"| {', '.join(names)} | {' | '.join(able)} |" for able, names in alike.items()),
            "",
            f"{len(results) - len(heads)} more classes have no heads that mhprobe finds: mostly "
            "convolutions, and "
            f"models that name their heads otherwise (Hiera).",
            "",
            "| names that are refused | why |",
            "|---|---|",
            *(f"| {', '.join(names)} | {reason} |" for reason, names in reasons.items()),
            "",
            *TOWERS,
            *(f"| {name} | refused: {reason} |" for name, reason in REFUSED.items()),
        ]
    )


if __name__ == "__main__":
    print(page(survey(timm.list_models())))
