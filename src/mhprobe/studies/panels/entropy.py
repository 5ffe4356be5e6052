"""Attention entropy of all queries and of the class token, beside a network that has learned nothing.

Clark et al., 2019, arXiv 1906.04341, Figure 4.
"""

from mhprobe.questions.material import Material
from mhprobe.recording.measuring import measured
from mhprobe.report import tables
from mhprobe.report.figures import heads
from mhprobe.report.result import Result


def entropy(material: Material, images: int = 500) -> dict[str, Result]:
    """Entropy of attention by block, and that of the class token's own row where a model reads one.

    images: test images that the untrained network is shown, at most. Table: value, class_query, uniform and the
    same two of the untrained network, in nats.
    """
    layout = material.layout
    (name,) = material.names
    columns = material.columns(name)
    found = measured(material.untrained(), {name: material.about(name)}, material.walk(images))
    results = {}
    shown = {"value": "value", "class_query": "class token"}
    for column, who in shown.items():
        if columns[column].isnan().all():
            continue
        drawn = {"value": columns[column], "uniform": columns["uniform"], "random_init": found[name][column]}
        label = "entropy of attention (nats)" if column == "value" else f"entropy of the {who}'s row (nats)"
        results["all_tokens" if column == "value" else column] = Result(figure=heads.by_depth(layout, drawn, label))
    both = {f"{column}_untrained": found[name][column] for column in shown}
    values = {column: columns[column] for column in (*shown, "uniform")}
    return {**results, "heads": Result(tables.per_head(layout, {**values, **both}))}
