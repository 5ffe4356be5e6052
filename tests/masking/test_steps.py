"""A sweep over the steps of masking curves: each job scores its own step, and nobody searches twice."""

from __future__ import annotations

from pathlib import Path

import pytest

import mhprobe.mask
import mhprobe.questions.masking
import runs

pytestmark = pytest.mark.slow


def rows(folder: Path) -> list[dict[str, str]]:
    return runs.rows(folder / "tables" / "masking_curves.csv")


@pytest.fixture(scope="module")
def command(trained):
    return [
        *runs.TINY,
        f"weights={trained.folder / 'model.safetensors'}",
        "trainer.precision=32-true",
    ]


@pytest.fixture(scope="module")
def whole(command, tmp_path_factory):
    """The rows of the whole curves, from a run with a cache of its own."""
    result = runs.run("mask", *command, cwd=tmp_path_factory.mktemp("whole"))
    assert result.code == 0, result.err
    return rows(result.folder)


@pytest.mark.parametrize(
    "more", [(), ("trainer=ddp", "trainer.devices=2", "trainer.accelerator=cpu")], ids=["1", "2"]
)
def test_each_job_writes_its_step_of_the_whole_curve(command, whole, tmp_path, more):
    result = runs.run("mask", "-m", *command, *more, "masking.step=0,1", cwd=tmp_path)
    assert result.code == 0, result.err
    [sweep] = tmp_path.glob("outputs/digits_vit/sweep_*")
    assert sorted(path.name for path in sweep.iterdir() if path.is_dir()) == ["0", "1"]
    for step in ("0", "1"):
        got, expected = rows(sweep / step), [row for row in whole if row["step"] == step]
        assert {row["curve"] for row in got} == {row["curve"] for row in expected}
        for a, b in zip(got, expected, strict=True):
            for column in ("curve", "split", "step", "masked", "accuracy", "seed"):
                assert a[column] == b[column], (step, column)
            assert float(a["loss"]) == pytest.approx(float(b["loss"]), abs=1e-6)


def test_orders_are_searched_once_and_then_read(command, tmp_path, monkeypatch):
    made = []
    make = mhprobe.questions.masking.Evaluator

    def remembering(*args, **kwargs):
        made.append((kwargs["label"], make(*args, **kwargs)))
        return made[-1][1]

    monkeypatch.setattr(mhprobe.questions.masking, "Evaluator", remembering)

    def computed(step: int, cache: str) -> int:
        """Image-forwards on validation, where orders are chosen, of all searched curves together."""
        cfg = runs.checked(
            "mask", *command, f"masking.step={step}", f"cache_dir={tmp_path / cache}"
        )
        made.clear()
        mhprobe.mask.run(cfg, tmp_path / f"{cache}_{step}_{len(list(tmp_path.iterdir()))}")
        return sum(evaluate.computed for label, evaluate in made if label.endswith("on validation"))

    assert computed(1, "cache") > 0
    assert computed(1, "cache") == 0
    assert computed(0, "cache") == 0
    # a later step takes the search up where it was left
    assert 0 < computed(2, "cache") < computed(2, "other")
    assert computed(2, "cache") == 0
