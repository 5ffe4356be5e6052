"""python -m benchmarks [part ...]: every part, or the named ones; a row is printed as soon as it is measured.

A part is a file of this folder with ``run(size)``, which yields rows. A part that fails costs its
own rows only; the exit status then is 1. The rows go to bench.json, with versions, commit and
machine.

Times mean something on an idle machine only: the load at the start is printed and kept.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from mhprobe.errors import UserError

FOLDER = Path(__file__).parent
BUSY = 0.5  # processes besides this one


def parts() -> list[str]:
    """The parts, by their files."""
    return sorted(file.stem for file in FOLDER.glob("*.py") if not file.stem.startswith("_"))


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every part ran, else 1; 2 for a wrong command."""
    chosen = _options(arguments)
    from benchmarks.harness import record
    from benchmarks.harness.size import Size

    try:
        before = record.load(chosen.against) if chosen.against else None
    except UserError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    conditions = record.conditions(chosen.size)
    print(", ".join(f"{key} {value}" for key, value in conditions.items()), flush=True)
    if conditions["load"] is not None and conditions["load"] > BUSY:
        print(
            "the machine is busy: ratios are interleaved, but take no time from this run",
            flush=True,
        )
    size, rows, failed, seconds = Size(chosen.size, chosen.cifar, chosen.cache), {}, {}, {}
    for part in chosen.parts or parts():
        print(part, flush=True)
        rows[part], start = [], time.monotonic()
        try:
            for row in _rows(part, size):
                rows[part].append(row)
                print(_line(row, before[1].get(part, []) if before else []), flush=True)
        except Exception as error:  # the other parts go on
            traceback.print_exc()
            failed[part] = f"{type(error).__name__}: {error}"
            print(f"  {part} failed: {failed[part]}", flush=True)
        seconds[part] = round(time.monotonic() - start)
        print(f"  {part} took {seconds[part]} s", flush=True)
        record.save(chosen.out, conditions, rows, failed, seconds)
    _sum_up(chosen.out, rows, failed, before)
    return 1 if failed else 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(parts())}")
    parser.add_argument(
        "--size", choices=("tiny", "usual", "full"), default="usual", help="tiny is for tests"
    )
    parser.add_argument("--out", type=Path, default=Path("bench.json"))
    parser.add_argument(
        "--against", type=Path, help="the bench.json of an earlier run: print the ratio to it"
    )
    parser.add_argument(
        "--cifar", type=Path, help="the CIFAR-10 archive or folder; without it, generated images"
    )
    parser.add_argument(
        "--cache", type=Path, default=Path(".cache/mhprobe"), help="where decoded images are kept"
    )
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.parts) - set(parts()):
        parser.error(f"no part {', '.join(sorted(unknown))}; expected some of {', '.join(parts())}")
    return chosen


def _rows(part: str, size: object) -> Iterator:
    yield from importlib.import_module(f"benchmarks.{part}").run(size)


def _line(row, before: Sequence) -> str:
    """A row as it is printed, with the same row of an earlier run."""
    from benchmarks.harness.record import worse

    text = (
        f"  {row.ratio:8.3g}  {row.low:.3g} - {row.high:.3g}, n {row.rounds}".ljust(42) + row.what
    )
    text += f" ({row.note})" if row.note else ""
    if row.limit:
        text += f", aim {row.limit}" + (": MISSED" if row.missed else "")
    for old in before:
        if old.what == row.what:
            change = row.ratio / old.ratio if old.ratio else float("nan")
            text += f"; {change:.3g} x what it was ({old.ratio:.3g})" + (
                ": WORSE" if worse(row, old) else ""
            )
    return text


def _sum_up(out: Path, rows, failed, before) -> None:
    from benchmarks.harness.record import worse

    missed = sum(row.missed for of_part in rows.values() for row in of_part)
    print(f"{sum(map(len, rows.values()))} rows, {missed} miss their aim: {out}")
    if before:
        pairs = [
            (row, old) for part in rows for row in rows[part] for old in before[1].get(part, [])
        ]
        same = [(row, old) for row, old in pairs if row.what == old.what]
        count = sum(worse(row, old) for row, old in same)
        print(
            f"{len(same)} rows were measured before (commit {before[0].get('commit')}), {count} "
            "got worse"
        )
        if gone := [
            old.what
            for part in rows
            for old in before[1].get(part, [])
            if old not in [o for _, o in same]
        ]:
            print(f"not measured now: {'; '.join(gone)}")
    if failed:
        print(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    sys.exit(main())
