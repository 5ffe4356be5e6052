"""python -m benchmarks.gpu pack FOLDER --cifar ARCHIVE, then on the machine: run FOLDER [stage ...].

Every stage takes at most nine minutes, writes FOLDER/results/<stage>.json when it is done, and is
skipped where that is there. A training that ran out of its minutes goes on with the next ``run``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> int:
    """0 when every stage that was asked for is done, else 1."""
    chosen = _options()
    if chosen.what == "pack":
        from benchmarks.gpu.pack import pack

        print(f"{chosen.folder}: {pack(chosen.folder, chosen.cifar) / 2**20:.1f} MiB")
        return 0
    _unpack(chosen.folder)
    from benchmarks.gpu.stages import Kit, stages

    works = stages()
    if unknown := set(chosen.stages) - set(works):
        raise SystemExit(
            f"no stage {', '.join(sorted(unknown))}; expected some of {', '.join(works)}"
        )
    kit = Kit(chosen.folder.resolve(), ROOT, chosen.tiny, chosen.minutes)
    return 0 if all([_stage(kit, name, works[name]) for name in chosen.stages or works]) else 1


def _stage(kit, name, work) -> bool:
    """Whether it is done: now, or before."""
    from benchmarks.harness.record import conditions
    from mhprobe.io.files import write

    out = kit.results / f"{name}.json"
    if out.is_file():
        print(f"{name}: done before")
        return True
    print(f"{name} ...", flush=True)
    start = time.monotonic()
    try:
        results = work(kit)
    except Exception as error:  # the other stages go on
        print(f"{name} failed: {type(error).__name__}: {error}", flush=True)
        return False
    if results is None:
        print(f"{name}: not finished; run it again", flush=True)
        return False
    about = {
        **conditions("tiny" if kit.tiny else "full"),
        "minutes": round((time.monotonic() - start) / 60, 2),
    }
    write(
        out,
        (
            json.dumps({"stage": name, "conditions": about, "found": results}, indent=2) + "\n"
        ).encode(),
    )
    print(f"{name}: {about['minutes']} minutes, {out}", flush=True)
    return True


def _unpack(folder: Path) -> None:
    """Put those packages of the kit on the path which this machine lacks."""
    import importlib.util
    import zipfile

    site = folder.resolve() / "site"
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            tops = {name.split("/")[0] for name in archive.namelist() if ".dist-info" not in name}
            if not all(
                importlib.util.find_spec(top.removesuffix(".py"))
                for top in tops
                if "." not in top[:-3]
            ):
                archive.extractall(site)
    sys.path[:0] = [str(ROOT / "src"), str(site)]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), str(site), os.environ.get("PYTHONPATH", "")]
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_kit.sh", description=__doc__)
    what = parser.add_subparsers(dest="what", required=True)
    pack = what.add_parser("pack", help="make the folder")
    pack.add_argument("folder", type=Path)
    pack.add_argument("--cifar", type=Path, required=True, help="the archive of images")
    run = what.add_parser("run", help="do the stages that are not done yet")
    run.add_argument("folder", type=Path)
    run.add_argument("stages", nargs="*", metavar="stage")
    run.add_argument(
        "--tiny", action="store_true", help="shrunk, on whatever device there is: to try the kit"
    )
    run.add_argument(
        "--minutes", type=float, default=8.5, help="after which a training stops, to go on later"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
