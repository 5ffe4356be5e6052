"""Make the tables of docs/claims.md: which claims hold for which network.

python tools/claims_matrix.py run NAME [option=value ...]
python tools/claims_matrix.py write NAME [NAME ...]
python tools/claims_matrix.py page NAME [NAME ...]

run judges all claims on one network, after training it where it is not shipped. write puts the
tables of the named networks into docs/tables/claims, their figure into docs/figures, and the tables
of docs/claims.md between its marks; a network without a run here keeps the table that it has there.
`make claims` does both for every network of the page. page
writes the tables of the page anew from docs/tables/claims, e.g. for a new claim, which no network
was asked yet.

A name is one of weights/, or an experiment, which is trained here. Endings: `.seed1`, the
experiment with another seed; `.untrained`, with random weights; `.before`, with the pretrained file
that the environment variable BEFORE names, and without a classifier.
"""

import csv
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mhprobe.errors import UserError, one_line
from mhprobe.io.files import write
from mhprobe.lab.claims.parts.claim import all_claims
from mhprobe.lab.claims.parts.pooled import judge_together
from mhprobe.pages.several import matrix as matrix_of
from mhprobe.report.figures.style import save_figure
from mhprobe.report.runs.facts import made_by

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "docs" / "tables" / "claims"
PAGE = ROOT / "docs" / "claims.md"
FIGURE = ROOT / "docs" / "figures" / "claims.png"
OUT = Path("outputs")

# validation images of a draw: a search over all of them takes most of a network's time
ALWAYS = ("evidence.chosen_on=300",)
# of a network of which an image costs fifty times as much
LARGE = (
    *("data.limit_test=1000", "evidence.measures_of=500", "evidence.control_of=100"),
    *("evidence.chosen_on=60", "evidence.maps_of=100"),
)
OF_NETWORK = {"cifar10_vit_dinov2": LARGE}

# networks whose heads are pruned here, and trained from scratch: options of mhprobe.studies.voita
PRUNED = {
    "digits_vit": ("+experiment=digits_voita", "voita.heads=[12]"),
    "cifar10_vit_small.seed0": (
        *("+experiment=cifar10_voita", "voita.heads=[12]"),
        *("trainer.max_epochs=2", "data.limit_train=30000"),
    ),
}
# networks that are trained here with half as many heads of twice the width, too
WIDER = {"digits_vit": "backbone.num_heads=3", "cifar10_vit_small.seed0": "backbone.num_heads=3"}

SIGNS = {  # of the page, where a minus is as wide as a plus
    "holds": "**+**",
    "contradicted": "**\N{MINUS SIGN}**",
    "too small to matter": "0",
    "cannot be told": "·",
    "not applicable": "/",
}
AS_BUILT = ("untrained", "before")  # endings of networks that were not trained for the data
DECIDED = ("holds", "contradicted", "too small to matter")
COLUMNS = {
    "cifar10_vit_stem": "stem",
    "cifar10_vit_taught": "taught",
    "cifar10_vit_small": "small",
    "cifar10_swin_taught": "Swin",
    "cifar10_vit_dinov2": "ViT-S",
    "digits_vit": "digits",
    "scenes_vit": "scenes",
}
PAPERS = {
    "Abnar & Zuidema 2020": "https://arxiv.org/abs/2005.00928",
    "Byun & Kim": "papers/byun_kim.md",
    "Chefer et al. 2021": "https://arxiv.org/abs/2103.15679",
    "Clark et al. 2019": "https://arxiv.org/abs/1906.04341",
    "Darcet et al. 2024": "https://arxiv.org/abs/2309.16588",
    "Gandelsman et al. 2024": "https://arxiv.org/abs/2310.05916",
    "Michel et al. 2019": "https://arxiv.org/abs/1905.10650",
    "Park & Kim 2022": "https://arxiv.org/abs/2202.06709",
    "Raghu et al. 2021": "https://arxiv.org/abs/2108.08810",
    "Tran": "papers/rollout.md",
    "Voita et al. 2019": "https://arxiv.org/abs/1905.09418",
    "What makes each head unique?": "papers/unique.md",
    "Xiao et al. 2024": "https://arxiv.org/abs/2309.17453",
    "ours, docs/": "",
}

Row = Mapping[str, str]


@one_line()
def main(arguments: Sequence[str]) -> None:
    """Do what the arguments ask for. UserError for something else."""
    if len(arguments) < 2 or arguments[0] not in ("run", "write", "page"):
        raise UserError(
            f"claims_matrix: expected run NAME, write NAME or page NAME, got {arguments}."
        )
    if arguments[0] == "run":
        run(arguments[1], arguments[2:])
        return
    if arguments[0] == "write":
        write_tables(arguments[1:])
    judged = {name: rows_of(TABLES / f"{name}.csv") for name in arguments[1:]}
    write(PAGE, page(PAGE.read_text(), judged).encode())


def run(name: str, options: Sequence[str]) -> None:
    """Judge all claims on the network of this name; train it before, where it is not shipped.

    options: of mhprobe.claims. UserError for a name of nothing.
    """
    counts = OF_NETWORK.get(name.partition(".")[0], ())
    command("claims", *network(name, options), f"name={name}", *ALWAYS, *counts, *options)


def network(name: str, options: Sequence[str]) -> list[str]:
    """Return the options that name a network; train it where it is not shipped.

    UserError for a name of nothing.
    """
    experiment, _, form = name.partition(".")
    shipped = ROOT / "weights" / f"{name}.safetensors"
    if shipped.is_file():
        return [f"weights={shipped}"]
    if not (ROOT / "conf" / "experiment" / f"{experiment}.yaml").is_file():
        raise UserError(f"{name}: there are neither weights nor an experiment of this name.")
    if form == "untrained":
        return [f"+experiment={experiment}", "weights=random", "backbone.pretrained=false"]
    if form == "before":
        if not (file := os.environ.get("BEFORE")):
            raise UserError(f"{name}: BEFORE names no file, expected the pretrained one.")
        return [
            f"+experiment={experiment}",
            "weights=null",
            f"backbone.checkpoint={file}",
            "backbone.pretrained=false",
            "backbone.num_classes=0",
        ]
    if form and not (form.startswith("seed") and form[4:].isdigit()):
        raise UserError(f"{name}: expected the ending seed<number>, untrained or before.")
    data = roots(options)
    seed = form.removeprefix("seed") or "0"
    asked = [f"+experiment={experiment}", f"seed={seed}", "data.seed=0", *data]
    folder = trained(name, [*asked, "+callback=settling"])
    return [f"weights={folder}", f"evidence.runs.training={folder}", *others(name, folder, asked)]


def roots(options: Sequence[str]) -> list[str]:
    """Return the options that say where the images are."""
    return [option for option in options if option.startswith("data.root=")]


def trained(name: str, options: Sequence[str]) -> Path:
    """Train a network where that is not done yet, and return its folder."""
    folder = OUT / "claims_trained" / name
    if not (folder / "results.json").is_file():
        command("train", *options, f"hydra.run.dir={folder}")
    return folder


def others(name: str, weights: Path, asked: Sequence[str]) -> list[str]:
    """Make the other runs that claims compare a network with, and return the options that name them.

    asked: options of its training.
    """
    given, data = [], roots(asked)
    if pruning := PRUNED.get(name):
        study = OUT / "claims_trained" / f"{name}.pruned"
        if not (study / "results.json").is_file():
            place = f"hydra.run.dir={study}"
            command("studies.voita", *pruning, f"weights={weights}", place, *data)
        (pruned,) = study.glob("heads_*_pruned")
        (scratch,) = study.glob("heads_*_scratch")
        given += [f"evidence.runs.pruned={pruned}", f"evidence.runs.scratch={scratch}"]
    if wider := WIDER.get(name):
        wide = f"{name}.wide"
        folder = trained(wide, [*asked, wider, f"name={wide}"])
        claim = "claims=[heads_of_a_block_are_alike]"
        command("claims", f"weights={folder}", f"name={wide}", claim, "control=null", *data)
        given.append(f"evidence.runs.wider={OUT / 'claims' / wide}")
    return given


def command(name: str, *options: str) -> None:
    """Run a command of mhprobe; end with its exit code where it fails."""
    ended = subprocess.run([sys.executable, "-m", f"mhprobe.{name}", *options], check=False)
    if ended.returncode:
        sys.exit(ended.returncode)


def write_tables(names: Sequence[str]) -> None:
    """Write the figure and the tables of these networks; the figure first, as it names the commit.

    A network that was judged elsewhere keeps its table of docs/tables/claims, and a line says so.
    """
    found = {name: table_of(name) for name in names}
    judged = {name: list(rows_of(path).values()) for name, path in found.items()}
    figure = matrix_of(judged).figure
    assert figure is not None  # every network has rows
    made = made_by(shlex.join(["python", "tools/claims_matrix.py", "write", *names]))
    with tempfile.TemporaryDirectory() as folder:
        drawn = save_figure(figure, Path(folder) / FIGURE.stem, origin=made)
        shutil.copyfile(drawn[0], FIGURE)
    TABLES.mkdir(parents=True, exist_ok=True)
    for name, path in found.items():
        if path.parent != TABLES:
            shutil.copyfile(path, TABLES / f"{name}.csv")


def table_of(name: str) -> Path:
    """Return the newest table of a network: of its run here, else that of docs/tables/claims."""
    here = OUT / "claims" / name / "tables" / "claims.csv"
    kept = TABLES / f"{name}.csv"
    if here.is_file() or not kept.is_file():
        return here
    print(f"{name}: no run in {OUT / 'claims'}, its table of docs/tables/claims stays.")
    return kept


def rows_of(path: Path) -> dict[str, Row]:
    """Read a table of claims, by claim. UserError where it is missing."""
    try:
        with path.open(newline="") as lines:
            return {row["claim"]: row for row in csv.DictReader(lines)}
    except FileNotFoundError:
        raise UserError(f"{path} does not exist. Make it by: claims_matrix run") from None


def page(text: str, judged: Mapping[str, Mapping[str, Row]]) -> str:
    """Return the page with the tables of these networks between its marks."""
    tables = {
        "matrix": matrix(judged),
        "as built": as_built(judged),
        "undecided": undecided(judged),
    }
    for mark, lines in tables.items():
        begin, end = f"<!-- {mark}: generated -->", f"<!-- {mark}: end -->"
        head, _, rest = text.partition(begin)
        if not rest or end not in rest:
            raise UserError(f"{PAGE}: the marks {begin} and {end} are missing.")
        text = "\n".join([head + begin, *lines, end + rest.partition(end)[2]])
    return text


def matrix(judged: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Return the lines of the table of claims that a trained network decides: most decided ones first.

    The last column but one is over the heads of all of them together.
    """
    trained, together = trained_ones(judged), over_all_heads(judged)
    columns = grouped(trained)
    rows = []
    for claim in decided(trained, together):
        verdicts = words(claim, trained)
        holds = sum(word == "holds" for word in verdicts.values())
        told = sum(word in DECIDED for word in verdicts.values())
        signs = [cell([verdicts[name] for name in of]) for of in columns.values()]
        more = [cell([together[claim]]), not_learned(claim, judged)]
        line = table_line([says(claim), matters(claim), *signs, *more])
        rows.append((-holds, -told, claim, line))
    head = table_head(["claim", "matters from", *columns, "all heads", "not learned"])
    return [*head, *(line for *_, line in sorted(rows))]


def as_built(judged: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Return the lines of the table of claims that a network decides which was not trained for the data."""
    networks = {name: rows for name, rows in judged.items() if _as_built(name)}
    columns = grouped(networks)
    lines = table_head(["claim", "matters from", *columns])
    for claim in claims_of(networks):
        verdicts = words(claim, networks)
        if {*verdicts.values()} & {*DECIDED}:
            signs = [cell([verdicts[name] for name in of]) for of in columns.values()]
            lines.append(table_line([says(claim), matters(claim), *signs]))
    return lines


def undecided(judged: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Return the lines of the table of claims that no network decides, with what would decide them."""
    told = decided(judged, over_all_heads(judged))
    lines = table_head(["claim", "matters from", "what would decide it"])
    for claim in sorted(all_claims()):
        if claim not in told:
            about = [rows[claim] for rows in trained_ones(judged).values() if claim in rows]
            lines.append(table_line([says(claim), matters(claim), needed(about)]))
    return lines


def table_head(names: Sequence[str]) -> list[str]:
    """Return the two lines that begin a table of Markdown."""
    return [table_line(names), f"|{'|'.join(['---'] * len(names))}|"]


def table_line(cells: Sequence[str]) -> str:
    """Return a row of a table of Markdown."""
    return f"| {' | '.join(cells)} |"


def over_all_heads(judged: Mapping[str, Mapping[str, Row]]) -> dict[str, str]:
    """Return the verdict on each claim over the heads of all trained networks together."""
    claims = {name: all_claims()[name] for name in claims_of(judged)}
    verdicts = judge_together(claims, list(trained_ones(judged).values()))
    return {name: str(verdict.word) for name, verdict in verdicts.items()}


def trained_ones(judged: Mapping[str, Mapping[str, Row]]) -> dict[str, Mapping[str, Row]]:
    """Return the networks that were trained for the data, with their rows."""
    return {name: rows for name, rows in judged.items() if not _as_built(name)}


def _as_built(name: str) -> bool:
    return name.partition(".")[2] in AS_BUILT


def decided(judged: Mapping[str, Mapping[str, Row]], together: Mapping[str, str]) -> list[str]:
    """Return the names of the claims that a network decides, or all heads together."""
    return [
        claim
        for claim in claims_of(judged)
        if {*words(claim, judged).values(), together[claim]} & {*DECIDED}
    ]


def grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the networks of each column, by its title: seeds of one experiment share a column."""
    columns: dict[str, list[str]] = {}
    for name in names:
        first, _, form = name.partition(".")
        experiment = first.partition("_seed")[0]
        title = COLUMNS.get(experiment, experiment)
        if _as_built(name):
            title = f"{title}, {form}"
        columns.setdefault(title, []).append(name)
    return columns


def claims_of(judged: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Return the names of all claims, in the order of the alphabet."""
    return sorted({claim for rows in judged.values() for claim in rows})


def words(claim: str, judged: Mapping[str, Mapping[str, Row]]) -> dict[str, str]:
    """Return the verdict of each network on a claim, "" where it was not asked."""
    return {name: rows[claim]["verdict"] if claim in rows else "" for name, rows in judged.items()}


def cell(verdicts: Sequence[str]) -> str:
    """Return the sign of a column: one where its networks agree, otherwise one for each."""
    signs = [SIGNS.get(verdict, "") for verdict in verdicts]
    return signs[0] if len(set(signs)) == 1 else ", ".join(signs)


def not_learned(claim: str, judged: Mapping[str, Mapping[str, Row]]) -> str:
    """Say in how many of the trained networks where a claim holds it holds for the untrained twin, too."""
    holding = [rows[claim] for rows in trained_ones(judged).values() if claim in rows]
    holding = [row for row in holding if row["verdict"] == "holds" and row["untrained"]]
    unlearned = sum(row["learned"] == "no" for row in holding)
    return f"{unlearned} of {len(holding)}" if unlearned else ""


def says(claim: str) -> str:
    """Return the claim's name in words, as a link to its source."""
    return f"[{claim.replace('_', ' ')}]({link(all_claims()[claim].source)})"


def link(source: str) -> str:
    """Return the address of a claim's source. UserError for one that has none."""
    if source.startswith("ours, docs/"):
        return source.removeprefix("ours, docs/").partition(";")[0].partition(",")[0]
    for begin, address in PAPERS.items():
        if source.startswith(begin):
            return address
    raise UserError(f"claims_matrix: no address for the source {source!r}.")


def matters(claim: str) -> str:
    """Return the smallest effect that matters, as it stands on the page."""
    return f"{all_claims()[claim].margin.size:g}".removeprefix("0")


def needed(rows: Sequence[Row]) -> str:
    """Say how many heads or images would decide a claim, or why no number would.

    rows: of one claim, one of each network; the network that is nearest to a verdict counts.
    """
    if not rows:
        return "it has not been asked yet"
    near = [row for row in rows if row["needed"] and int(row["count"])]
    if near:
        row = min(near, key=lambda one: int(one["needed"]) / int(one["count"]))
        return f"{int(row['needed']):,} {row['over']} (here {int(row['count']):,})"
    reasons = [row["reason"] for row in rows if row["reason"]]
    return reasons[0] if reasons else "no number: the effect lies on the smallest that matters"


if __name__ == "__main__":
    main(sys.argv[1:])
