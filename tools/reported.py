"""Say of every number of README and docs/ where it comes from: docs/tables/reported.csv.

python tools/reported.py
python tools/reported.py missing PAGE [PAGE ...]

Without words it checks the pages against the table, prints what does not fit, and ends with 1 for
anything. missing prints rows for the numbers of a page that have none, with an empty source.

A number is one with a unit, a list of them, or one with an interval: "2.8 points (.9 to 5.2)".
Numbers in code, and the level of an interval ("95 % interval"), are none. A table of numbers needs a
command, or a file of docs/tables, above it on its page. A row has

- page: README.md or a page of docs/;
- number: as the page prints it; every row stands on its page, and every number of a page has a row;
- source: one of
  - `table FILE [column=value ...] column ...`: the cells of this row of a file of docs/, which round to
    the numbers, as they are or times a hundred (a share told in per cent, a loss without its sign);
  - `run HEADING`: said by the command below this heading of the page; this row is its record;
  - `rule FILE`: a limit that this file of src/mhprobe holds, e.g. the level of a test;
  - `test FILE`: a file of tests/ simulates it;
  - `page FILE`: it stands on that page, there perhaps with its interval, and has its source there.
"""

import csv
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mhprobe.errors import UserError, one_line

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TABLE = DOCS / "tables" / "reported.csv"
COLUMNS = ("page", "number", "source")
KINDS = ("table", "run", "rule", "test", "page")
FOLDERS = {"rule": "src/mhprobe", "test": "tests"}

SIGN = "[-+\N{MINUS SIGN}]"
NUMBER = rf"{SIGN}?(?:\d{{1,3}}(?:,\d{{3}})+|\d+)?(?:\.\d+)?(?<=\d)"
UNIT = (
    r"(?:%|points?\b|times\b|x\b|\N{MULTIPLICATION SIGN}|[kKMG]i?B\b|ms\b|s\b|seconds?\b|minutes?\b"
    r"|hours?\b|images/s\b|[GM]FLOPs?\b)"
)
LIST = rf"(?:{NUMBER}, )*(?:{NUMBER} and )?{NUMBER}"
INTERVAL = rf"\({NUMBER} to {NUMBER}"
REPORTED = re.compile(
    rf"(?<![\w.,])(?:{LIST} ?{UNIT}(?: {INTERVAL})?|{NUMBER} {INTERVAL}|{INTERVAL})(?![\w%])"
)
LEVEL = re.compile(r"\b9[05] % (?=intervals?\b|confidence\b|confident\b)|\bIntervals are 9[05] %")
NOT_PROSE = re.compile(r"```.*?```|<!--.*?-->|!?\[[^\]]*\]\([^)]*\.(?:png|gif)\)", re.DOTALL)
NUMBER_IN_CELL = re.compile(r"\|\s*\**[-\N{MINUS SIGN}]?(?:\d*\.\d+|\d+ ?%)")
CODE = re.compile(r"`[^`]*`")
TABLE_OF_PAGE = re.compile(r"(?:^\|.*\n?)+", re.MULTILINE)
COMMAND = re.compile(r"(?:^|`)(?:python\s+-m\s|python\s+tools/|mhprobe\s|make\s)", re.MULTILINE)


class Row(NamedTuple):
    """A number of a page, and where it comes from."""

    page: str
    number: str
    source: str


@one_line()
def main(arguments: Sequence[str]) -> int:
    """Do what the arguments ask for; return the exit status. UserError for something else."""
    if arguments and (arguments[0] != "missing" or len(arguments) == 1):
        raise UserError(f"reported: expected nothing, or missing PAGE, got {' '.join(arguments)}.")
    rows = read()
    if arguments:
        known = {(row.page, row.number) for row in rows}
        texts = {page: (ROOT / page).read_text() for page in arguments[1:]}
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows((*found, "") for found in _reported(texts) if found not in known)
        return 0
    wrong = list(complaints(rows, pages()))
    print("\n".join(wrong) or f"{len(rows)} numbers have a source.")
    return int(bool(wrong))


def pages() -> dict[str, str]:
    """Return README and the pages of docs/, from the top of the repository, with what they say."""
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in found}


def read(file: Path = TABLE) -> list[Row]:
    """Return the rows of the table."""
    with file.open(newline="") as lines:
        return [Row(*(row[column] for column in COLUMNS)) for row in csv.DictReader(lines)]


def numbers_of(text: str) -> list[str]:
    """Return the numbers of a page's sentences as they are printed, intervals closed."""
    prose = NOT_PROSE.sub(" ", text)
    prose = "\n".join("" if line.startswith("|") else line for line in prose.split("\n"))
    prose = CODE.sub("code", prose)
    prose = LEVEL.sub("", re.sub(r"\s+", " ", re.sub(r"\n\s*\n", " . ", prose)).replace("**", ""))
    found = (match.group() for match in REPORTED.finditer(prose))
    return [number + ")" if "(" in number else number for number in found]


def complaints(rows: Sequence[Row], texts: Mapping[str, str]) -> Iterator[str]:
    """Say of every number without a row, row without a number, and source that says otherwise.

    texts: the pages and what they say.
    """
    known = {(row.page, row.number) for row in rows}
    on_pages = _reported(texts)
    for page, number in on_pages:
        if (page, number) not in known:
            yield f"{page}: {number} has no source in docs/tables/reported.csv."
    for row in rows:
        if (row.page, row.number) not in on_pages:
            yield f"docs/tables/reported.csv: {row.number} does not stand on {row.page}."
        elif problem := _problem(row, texts):
            yield f"{row.page}: {row.number}: {problem}"
    for page, text in texts.items():
        for header in tables_without_source(text):
            yield f"{page}: no command and no file of docs/tables stands above the table {header}"


def tables_without_source(text: str) -> list[str]:
    """Return the first lines of tables with numbers above which no command and no file stands."""
    found = []
    for table in TABLE_OF_PAGE.finditer(text):
        above = text[: table.start()]
        measured = NUMBER_IN_CELL.search(table.group())
        if measured and not COMMAND.search(above) and "tables/" not in above:
            found.append(table.group().partition("\n")[0])
    return found


def _reported(texts: Mapping[str, str]) -> dict[tuple[str, str], None]:
    """Return the numbers with their pages, in order."""
    return dict.fromkeys(
        (page, number) for page, text in texts.items() for number in numbers_of(text)
    )


def _problem(row: Row, texts: Mapping[str, str]) -> str | None:
    """Say what is wrong with a row's source."""
    kind, _, rest = row.source.partition(" ")
    if kind not in KINDS or not rest:
        return f"expected a source that begins with one of {', '.join(KINDS)}, got {row.source!r}."
    if kind == "table":
        return _other_cells(row.number, shlex.split(rest))
    if kind == "run" and not _has_command(texts[row.page], rest):
        return f"no command stands below {rest!r}."
    if kind in FOLDERS and not (ROOT / FOLDERS[kind] / rest).is_file():
        return f"{FOLDERS[kind]}/{rest} is no file."
    if kind == "page" and (rest == row.page or not _stands_in(texts.get(rest, ""), row.number)):
        return f"it does not stand on {rest}, or {rest} is this page."
    return None


def _stands_in(text: str, number: str) -> bool:
    """Whether a page has this number, alone or with an interval behind it."""
    return any(f"{found} ".startswith(f"{number} ") for found in numbers_of(text))


def _has_command(text: str, heading: str) -> bool:
    """Whether a command stands below this heading of a page, before the next one."""
    sections = re.split(r"^#+ ", text, flags=re.MULTILINE)
    below = [section for section in sections if section.partition("\n")[0] == heading]
    return any(COMMAND.search(section) for section in below)


def _other_cells(number: str, words: Sequence[str]) -> str | None:
    """Say which cells of the table the words name, where they are not the number's."""
    file, *rest = words
    wanted = dict(word.split("=", 1) for word in rest if "=" in word)
    columns = [word for word in rest if "=" not in word]
    if not (DOCS / file).is_file():
        return f"docs/{file} is no file."
    with (DOCS / file).open(newline="") as lines:
        found = [row for row in csv.DictReader(lines) if wanted.items() <= row.items()]
    if len(found) != 1:
        return f"expected one row of docs/{file} with {wanted}, found {len(found)}."
    if missing := [column for column in columns if column not in found[0]]:
        return f"docs/{file} has no column {', '.join(missing)}."
    printed = [_value(text) for text in re.findall(NUMBER, number) if text]
    cells = [cell for column in columns for cell in _cells(found[0][column])]
    for factor in (1, 100):
        sized = [factor * abs(cell) for cell in cells]
        if len(sized) == len(printed) and all(map(_rounds_to, sized, printed)):
            return None
    return f"docs/{file} has {', '.join(f'{cell:.4g}' for cell in cells)}."


def _cells(text: str) -> list[float]:
    """Return the numbers of a cell: one, or several ("0.96 to 1.09")."""
    try:
        return [float(text)]
    except ValueError:
        return [_value(number)[0] for number in re.findall(NUMBER, text) if number]


def _value(printed: str) -> tuple[float, int]:
    """Return the size of a printed number, and its digits behind the point."""
    plain = printed.lstrip("-+\N{MINUS SIGN}").replace(",", "")
    return float(plain), len(plain.partition(".")[2])


def _rounds_to(cell: float, printed: tuple[float, int]) -> bool:
    """Whether a number is printed so. A half may be rounded either way."""
    value, digits = printed
    return abs(cell - value) <= 0.5000001 * 10.0**-digits


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
