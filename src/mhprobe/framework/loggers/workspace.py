"""W&B workspace and report of a project's runs, as code.

Needs the extra ``dashboard`` (wandb-workspaces).

Panels use the names that ``framework/loggers/wandb.py`` logs. All curves share the axis of heads masked.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from mhprobe.errors import UserError, quoted

CURVE_AXIS = "masking/heads_masked"  # shared by all curves and runs, so that W&B overlays them


def views(
    project: str, group: str | None, measures: Sequence[str], curves: Sequence[str]
) -> tuple[Any, Any]:
    """Build (workspace, report) of "entity/project".

    group: only the runs of this sweep or experiment.

    measures: names of figures to show, e.g. gate_importance. curves: names of masking curves.
    Raises UserError for a project of another form, or without wandb-workspaces.
    """
    entity, _, name = project.partition("/")
    if not entity or not name or "/" in name:
        raise UserError(f"dashboard: project: expected entity/project, got {quoted(project)}.")
    try:
        import wandb_workspaces.reports.v2 as wr
        import wandb_workspaces.workspaces as ws
    except ImportError:
        raise UserError(
            "dashboard: wandb-workspaces is not installed; pip install 'mhprobe[dashboard]'."
        ) from None
    parts = _parts(wr, measures, curves)
    sections = [ws.Section(name=title, panels=panels, is_open=True) for title, _, panels in parts]
    filters = f"Metric('group') = '{group}'" if group else ""
    workspace = ws.Workspace(
        entity=entity,
        project=name,
        name=f"mhprobe: {group or name}",
        sections=sections,
        runset_settings=ws.RunsetSettings(filters=filters),
    )
    runs = wr.Runset(entity=entity, project=name, name=group or "all runs", filters=filters)
    blocks: list[Any] = [wr.TableOfContents()]
    for title, how, panels in parts:
        blocks += [wr.H2(title), wr.P(how), wr.PanelGrid(runsets=[runs], panels=panels)]
    return workspace, wr.Report(
        entity=entity, project=name, title=f"Attention heads: {group or name}", blocks=blocks
    )


def specification(view: Any) -> Any:
    """Return the view as plain values, without empty ones."""
    if dataclasses.is_dataclass(view):
        fields = {
            field.name: specification(getattr(view, field.name))
            for field in dataclasses.fields(view)
        }
        filled = {
            name: value
            for name, value in fields.items()
            if value not in (None, "", [], {}) and name[0] != "_"
        }
        return {"is": type(view).__name__, **filled}
    if isinstance(view, list | tuple):
        return [specification(part) for part in view]
    return view if isinstance(view, str | int | float | bool | None) else str(view)


def _parts(
    wr: Any, measures: Sequence[str], curves: Sequence[str]
) -> list[tuple[str, str, list[Any]]]:
    """Return title, explanation and panels of each section."""
    along = [f"masking/{name}/test/accuracy" for name in curves]
    return [
        (
            "Masking curves",
            "Accuracy on test images as heads are switched off, all runs on one axis. Compare with "
            "the random orders.",
            [
                wr.LinePlot(
                    title="accuracy as heads are masked",
                    x=CURVE_AXIS,
                    y=along,
                    title_x="heads masked",
                )
            ],
        ),
        (
            "Heads left against accuracy",
            "A point per run: how many heads pruning or learned gates leave, and what is left of "
            "the accuracy.",
            [
                wr.ScatterPlot(
                    title=title, x=wr.SummaryMetric(left), y=wr.SummaryMetric("test/accuracy")
                )
                for title, left in (("pruned", "prune/heads"), ("learned gates", "gates/kept"))
            ],
        ),
        (
            "What heads do",
            "A map of heads per measure, and its table; first how to read each result.",
            [wr.WeavePanelSummaryTable(table_name="tables/results")]
            + [
                panel
                for name in measures
                for panel in (
                    wr.MediaBrowser(title=name.replace("_", " "), media_keys=[f"figures/{name}"]),
                    wr.WeavePanelSummaryTable(table_name=f"tables/{name}"),
                )
            ],
        ),
        (
            "Training",
            "Losses and accuracy along training.",
            [
                wr.LinePlot(title=name, x="trainer/global_step", y=[name])
                for name in ("train/loss", "val/accuracy", "val/loss")
            ],
        ),
    ]
