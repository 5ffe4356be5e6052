"""results.json, the ledger: an entry per result of a run, with its kind, files, unit, direction and caption.

docs/results.schema.json is made of the classes in this file.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from mhprobe.report.result import Decision, Extreme, Result
from mhprobe.report.tables import Kind, Table

FILE = "results.json"
COLUMNS = re.compile(  # how columns are called that are no values, by their role
    r"(?P<error>standard_error|null_sd|null_error.*)|(?P<images>images)|(?P<folds>folds)|(?P<draws>null_draws)"
    r"|(?P<control>(?:.+_)?(?:random_init|untrained))|(?P<chance>(?:null|chance|uniform|random)(?:_.+)?|.+_(?:null|chance))"
    r"|(?P<low>(?:.+_)?low)|(?P<high>(?:.+_)?high)"
)

Role = Literal["low", "high", "chance", "control", "error", "images", "folds", "draws"]
Text = Annotated[str, Field(max_length=20_000)]
File = Annotated[str, Field(pattern=r"^(tables|figures)/[^/\x00]+$", max_length=300)]


class _Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Entry(_Plain):
    """A result, by its name: what it is, how to read it, what it is read against, and its files."""

    kind: Kind | Literal["figure", "metrics"] = Field(description="what the rows of its table are")
    title: Text = Field(description="what people call it")
    about: Text = Field("", description="what was measured, a sentence")
    label: Text = Field("", description="what its values are, with their unit")
    unit: Text = Field("", description="of its values; empty for a share, a correlation, a count")
    larger: Text = Field(
        "", description='what a larger value means; "nothing: ..." where it means nothing'
    )
    alike: Extreme | None = Field(
        None, description="of pairs: which value the two have that are most alike"
    )
    columns: dict[str, Text] = Field({}, description="what further columns of the table are")
    interval: Annotated[list[Text], Field(max_length=2)] = Field(
        [], description="columns: the ends of 95 % intervals"
    )
    chance: Text = Field(
        "",
        description="the column of the reference: what chance gives, or even attention (uniform)",
    )
    control: Text = Field(
        "", description="the column that says what a freshly initialised network gives"
    )
    roles: dict[str, Role] = Field(
        {}, description="further columns that are no values: what they are"
    )
    decides: Decision | None = Field(
        None, description="heads with kept = 0 were removed, or their gates are closed"
    )
    masks: bool = Field(
        False, description="the value is what masking the head alone does to the loss"
    )
    split: Text = Field("", description="the images that it is of")
    images: int | None = Field(None, ge=0, description="how many of them")
    during: Text = Field("", description="the point of a training that it is of; empty for the end")
    part_of: Text = Field("", description="the result or the figure of a paper that it belongs to")
    control_of: Text = Field(
        "", description="the result whose control, of a freshly initialised network, it is"
    )
    drawn: Text = Field("", description="the kind of figure")
    caption: Text = Field("", description="how to read the figure, and what it is read against")
    metrics: list[Text] = Field([], description="its numbers in metrics.json")
    table: File | None = Field(None, description="its table, a .csv")
    figure: File | None = Field(None, description="its figure, a .png")

    @property
    def reference(self) -> str:
        """Return what the column ``chance`` is of: even attention, which nothing drew, or chance."""
        return "even attention" if self.chance.startswith("uniform") else "chance"

    @property
    def reading(self) -> str:
        """Return how to read it: label, direction and caption."""
        words = (
            self.label and f"{self.label}.",
            self.larger and f"Larger means: {self.larger}.",
            self.caption,
        )
        return " ".join(filter(None, words))


class Ledger(_Plain):
    """Every result of a run, in the order in which they were written first."""

    version: Literal[2]
    of: Annotated[
        dict[Text, Text], Field(description="names of the network and the images, by their digests")
    ] = {}
    results: Annotated[
        dict[Annotated[str, Field(max_length=300)], Entry], Field(max_length=20_000)
    ] = {}


def entry(name: str, result: Result) -> Entry:
    """Return the entry of a result whose files are called ``name``.

    of: as the report has filled it in.
    """
    table = result.table
    figure = result.figure
    of = result.of
    beside = {} if table is None else column_roles(table)
    main = _of_the_value(beside)
    same = {key: getattr(result, key) for key in Result._fields if key in Entry.model_fields}
    fields = dict(
        kind=_kind(result),
        title=name.replace("_", " "),
        columns=dict(result.columns),
        interval=[end for end in (main["low"], main["high"]) if end],
        chance=main["chance"],
        control=main["control"],
        roles={column: role for column, role in beside.items() if column != main.get(role)},
        split=of.split if of else "",
        images=(of.images or None) if of and of.split else None,
        caption=result.how_to_read if figure is not None else "",
        metrics=list(result.metrics),
        table=None if table is None else f"tables/{name}.csv",
        figure=None if figure is None else f"figures/{name}.png",
    )
    return Entry(**{**same, **fields})


def _of_the_value(roles: dict[str, str]) -> dict[str, str]:
    """Return the columns with the interval, the chance level and the control of the value itself.

    Of several "low" is chosen rather than "delta_low"; "" where there is none.
    """
    plainest_last = sorted(reversed(roles.items()), key=lambda item: "_" not in item[0])
    column_of = {role: column for column, role in plainest_last}
    return {role: column_of.get(role, "") for role in ("low", "high", "chance", "control")}


def _kind(result: Result) -> str:
    if result.table is not None:
        return result.table.kind
    return "metrics" if result.figure is None else "figure"


def column_roles(table: Table) -> dict[str, Any]:
    """Return the columns of a table that are no values, with what they are; {} if data have named its columns."""
    if table.kind.endswith("_along"):
        return {}
    matches = {name: COLUMNS.fullmatch(name) for name in table.columns}
    return {name: match.lastgroup for name, match in matches.items() if match}
