"""results.json, the ledger: an entry per result of a run, with its kind, files, unit, direction and caption.

docs/results.schema.json is made of the classes in this file.
"""

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mhprobe.report.result import Decision, Extreme, Result
from mhprobe.report.tables import Kind

FILE = "results.json"

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
    larger: Text = Field("", description="what a larger value means")
    alike: Extreme | None = Field(None, description="of pairs: which value the two have that are most alike")
    columns: dict[str, Text] = Field({}, description="what further columns of the table are")
    interval: Annotated[list[Text], Field(max_length=2)] = Field([], description="columns: the ends of 95 % intervals")
    chance: Text = Field("", description="the column that says what chance gives")
    control: Text = Field("", description="the column that says what a freshly initialised network gives")
    decides: Decision | None = Field(None, description="heads with kept = 0 were removed, or their gates are closed")
    masks: bool = Field(False, description="the value is what masking the head alone does to the loss")
    split: Text = Field("", description="the images that it is of")
    images: int | None = Field(None, ge=0, description="how many of them")
    during: Text = Field("", description="the point of a training that it is of; empty for the end")
    part_of: Text = Field("", description="the result or the figure of a paper that it belongs to")
    control_of: Text = Field("", description="the result whose control, of a freshly initialised network, it is")
    drawn: Text = Field("", description="the kind of figure")
    caption: Text = Field("", description="how to read the figure, and what chance would give")
    metrics: list[Text] = Field([], description="its numbers in metrics.json")
    table: File | None = Field(None, description="its table, a .csv")
    figure: File | None = Field(None, description="its figure, a .png")


class Ledger(_Plain):
    """Every result of a run, in the order in which they were written first."""

    version: Literal[1] = 1
    results: Annotated[dict[Annotated[str, Field(max_length=300)], Entry], Field(max_length=20_000)] = {}


def entry(name: str, result: Result) -> Entry:
    """Return the entry of a result whose files are called ``name``. of: as the report has filled it in."""
    plain = ("about", "label", "unit", "larger", "alike", "chance", "control", "decides", "masks", "during", "part_of")
    table, figure, of = result.table, result.figure, result.of
    return Entry(
        kind="figure" if table is None and figure is not None else "metrics" if table is None else table.kind,
        title=name.replace("_", " "),
        **{key: getattr(result, key) for key in (*plain, "control_of", "drawn")},
        columns=dict(result.columns),
        interval=list(result.interval or ()),
        split=of.split if of else "",
        images=of.images if of and of.split else None,
        caption=result.how_to_read if figure is not None else "",
        metrics=list(result.metrics),
        table=None if table is None else f"tables/{name}.csv",
        figure=None if figure is None else f"figures/{name}.png",
    )


def schema() -> str:
    """The JSON schema of results.json, as docs/results.schema.json holds it."""
    return json.dumps(Ledger.model_json_schema(), indent=2) + "\n"
