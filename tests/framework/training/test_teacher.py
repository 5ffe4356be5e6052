"""Learning from a teacher: what the loss is, and what a teacher is not (trained, saved, counted)."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
import torch
from scipy import special

import mhprobe.prune
import mhprobe.train
import runs
from mhprobe.backbones import input_spec
from mhprobe.data.augment import normalise
from mhprobe.data.base import InputSpec
from mhprobe.errors import UserError
from mhprobe.framework.run import image_data, networks
from mhprobe.framework.run.resume import facts_of_run
from mhprobe.io.code import file_digest
from mhprobe.io.files import write
from mhprobe.io.tensors import packed
from mhprobe.weights.checkpoint import load_weights, save_weights
from mhprobe.weights.teacher import Teacher, distillation, renormalised

SMALL = ("data.limit_train=24", "data.batch_size=12")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Weights that nothing has trained, of a run of ``runs.TINY``."""
    folder = tmp_path_factory.mktemp("teacher")
    model, _ = network(folder, "seed=3")
    path = folder / "teacher.safetensors"
    save_weights(model.backbone, path, model.description)
    return path


def network(folder, *overrides):
    """A classifier that can be stepped by hand, and its first batch of training images."""
    cfg = runs.config("train", folder, *SMALL, *overrides)
    data = image_data.build_images(cfg)
    model = networks.build_classifier(cfg, data).train()
    model.log = lambda *args, **kwargs: None
    return model, data.transform(next(iter(data.train_dataloader())), train=True)


def test_the_distance_is_that_of_the_textbook():
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 7, 5, generator=generator, dtype=torch.float64)
    p, q = (special.softmax(logits.numpy() / 3.0, axis=1) for logits in (teacher, student))
    expected = 9.0 * np.mean(np.sum(special.rel_entr(p, q), axis=1))
    p, q = torch.from_numpy(p), torch.from_numpy(q)
    assert float(distillation(student, p, 3.0)) == pytest.approx(expected, rel=1e-12)
    assert float(distillation(teacher, q, 3.0)) != pytest.approx(
        expected, rel=1e-3
    )  # it has a direction


def test_who_learns_from_itself_with_weight_one_has_no_loss(file, tmp_path):
    own = [f"weights={file}", f"optim.teacher={file}", "optim.teacher_weight=1"]
    model, batch = network(tmp_path, *own)
    loss = model.training_step(batch, 0)
    loss.backward()
    assert abs(loss.item()) < 1e-6  # float32: the two softmaxes are the same numbers
    assert (
        max(float(p.grad.abs().max()) for p in model.backbone.parameters() if p.grad is not None)
        < 1e-6
    )
    other, batch = network(tmp_path, "seed=5", *own[1:])
    assert other.training_step(batch, 0).item() > 1e-3


def test_the_weight_is_a_share_of_the_loss(file, tmp_path):
    losses = [
        model.training_step(batch, 0).item()
        for share in (0, 0.25, 1)
        for model, batch in [
            network(tmp_path, f"optim.teacher={file}", f"optim.teacher_weight={share}")
        ]
    ]
    plain, batch = network(tmp_path)
    assert losses[0] == plain.training_step(batch, 0).item()
    assert losses[1] == pytest.approx(0.75 * losses[0] + 0.25 * losses[2], rel=1e-6)


def test_a_teacher_is_frozen_in_eval_mode_and_in_no_checkpoint(file, tmp_path):
    model, batch = network(tmp_path, f"optim.teacher={file}")
    plain, _ = network(tmp_path)
    before = {key: value.clone() for key, value in model.teacher.model.state_dict().items()}
    model.training_step(batch, 0).backward()
    assert not any(module.training for module in model.teacher.model.modules())
    assert all(p.grad is None and not p.requires_grad for p in model.teacher.model.parameters())
    assert all(
        torch.equal(value, before[key]) for key, value in model.teacher.model.state_dict().items()
    )
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert len(list(model.parameters())) == len(list(plain.parameters()))


def test_it_sees_the_images_as_it_was_trained_to_see_them():
    pixels = torch.randint(
        0, 256, (4, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    ours = InputSpec((8, 8), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    theirs = InputSpec((8, 8), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    seen = renormalised(normalise(pixels, ours.size, ours.mean, ours.std), ours, theirs)
    # float32: a few roundings of numbers up to 3
    torch.testing.assert_close(
        seen, normalise(pixels, theirs.size, theirs.mean, theirs.std), rtol=0, atol=2e-6
    )
    larger = InputSpec((12, 12), theirs.mean, theirs.std)
    seen = renormalised(normalise(pixels, ours.size, ours.mean, ours.std), ours, larger)
    torch.testing.assert_close(
        seen, normalise(pixels, larger.size, larger.mean, larger.std), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("classes", "line"),
    [
        (
            ["cat", "dog"],
            "10 classes, the data has 2; they differ first in class 0: '0' there, 'cat' in the "
            "data.",
        ),
        (
            list("01234"),
            "10 classes, the data has 5; they differ first in class 5: '5' there, none in the "
            "data.",
        ),
        (
            list("012345678x"),
            "10 classes, .* they differ first in class 9: '9' there, 'x' in the data.",
        ),
    ],
)
def test_a_teacher_of_other_classes_is_refused_with_both_numbers_and_where_they_differ(
    file, classes, line
):
    """The first three names of both were shown, which may be the same."""
    with pytest.raises(UserError, match=f"^teacher: .* has {line}"):
        Teacher(file, classes, InputSpec((8, 8)))


def test_a_missing_teacher_is_refused(tmp_path):
    with pytest.raises(UserError, match="no file"):
        network(tmp_path, "optim.teacher=nowhere.safetensors")


def test_dense_is_the_network_before_pruning_where_there_is_one(file, tmp_path):
    tuned = ("optim.teacher=dense", "prune.tune_epochs=1")
    for command in ("prune", "prunebench"):
        assert runs.config(command, tmp_path, f"weights={file}", *tuned).optim.teacher == str(file)
        assert (
            runs.config(command, tmp_path, f"weights={file}", tuned[0]).optim.teacher is None
        )  # nothing is tuned
        with pytest.raises(UserError, match=r"optim\.teacher=dense: is the network before pruning"):
            runs.config(command, tmp_path, "weights=random", *tuned)
    with pytest.raises(UserError, match=r"optim\.teacher=dense: .* here is none"):
        runs.config("train", tmp_path, tuned[0])


def test_another_teacher_is_another_run_wherever_the_file_lies(file, tmp_path):
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(file.read_bytes())
    changed = tmp_path / "changed.safetensors"
    changed.write_bytes(file.read_bytes() + b"0")

    def of(path):
        return facts_of_run(
            runs.config("train", tmp_path, f"optim.teacher={path}"), {"backbone": {}}, "images"
        )

    assert of(file) == of(copy)
    assert of(file)["optim.teacher"] != of(changed)["optim.teacher"]


WHOLE = (*SMALL, "data.augment.mixup=0", "data.augment.cutmix=0", "optim.teacher_sees=whole")


def recalled(folder, file, *overrides):
    """A student of the teacher's answers to whole images, and its data."""
    cfg = runs.config("train", folder, *WHOLE, f"optim.teacher={file}", *overrides)
    data = image_data.build_images(cfg)
    return networks.build_classifier(cfg, data), data


def test_answers_to_whole_images_are_the_mean_over_image_and_mirror_image(file, tmp_path):
    model, data = recalled(tmp_path, file, f"cache_dir={tmp_path}")
    model.teacher.prepare(data, torch.device("cpu"))
    teacher, _ = load_weights(file)
    spec = InputSpec(**input_spec(teacher))
    pixels, index = data.splits["train"].cached.images[data.splits["train"].rows], [3, 17]
    images = normalise(torch.as_tensor(pixels[index]), spec.size, spec.mean, spec.std)
    with torch.no_grad():
        expected = (teacher(images) + teacher(images.flip(-1))) / 2
    batch = data.transform(next(iter(data.train_dataloader())), train=True)._replace(
        index=torch.tensor(index)
    )
    logits = model.teacher.logits[index]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)  # float32, other batches
    assert (logits - teacher(images)).abs().max() > 1e-3  # it is not the image alone
    torch.testing.assert_close(
        model.teacher(batch, 0.5), (2 * expected).softmax(1), rtol=0, atol=1e-5
    )


def test_what_a_teacher_answered_is_not_asked_again_and_an_interrupted_walk_goes_on(
    file, tmp_path, monkeypatch
):
    monkeypatch.setattr("mhprobe.weights.teacher.EVERY", -1.0)  # kept after every batch
    asked = []

    def count(model, data, stop=None):
        def forward(images, forward=model.teacher.model.forward):
            if stop is not None and len(asked) == stop:
                raise KeyboardInterrupt
            asked.append(len(images))
            return forward(images)

        monkeypatch.setattr(model.teacher.model, "forward", forward)
        model.teacher.prepare(data, torch.device("cpu"))
        return model.teacher.logits

    options = (f"cache_dir={tmp_path}", "data.eval_batch_size=8")
    with pytest.raises(KeyboardInterrupt):
        count(
            *recalled(tmp_path, file, *options), stop=2
        )  # an image and its mirror image: one batch of three
    first = count(*recalled(tmp_path, file, *options))
    assert sum(asked) == 2 * 24
    assert torch.equal(count(*recalled(tmp_path, file, *options)), first)
    assert sum(asked) == 2 * 24
    monkeypatch.setattr("mhprobe.weights.teacher.__version__", "another")
    count(*recalled(tmp_path, file, *options))
    assert sum(asked) == 4 * 24


@pytest.mark.parametrize("limit", [None, 60])
def test_answers_that_lie_beside_a_teachers_file_are_taken_for_its_own_images_alone(
    file, tmp_path, monkeypatch, limit
):
    options = (f"cache_dir={tmp_path}", f"data.limit_train={limit or 'null'}")
    model, data = recalled(tmp_path, file, *options)
    model.teacher.prepare(data, torch.device("cpu"))
    asked = model.teacher.logits
    teacher = shutil.copytree(file.parent, tmp_path / "shipped") / file.name
    next(tmp_path.glob("teacher-*.safetensors")).rename(teacher.with_suffix(".answers"))

    def answers(*overrides):
        model, data = recalled(tmp_path, teacher, *options, *overrides)
        monkeypatch.setattr(model.teacher, "_ask", lambda *_: pytest.fail("asked"))
        model.teacher.prepare(data, torch.device("cpu"))
        return model.teacher.logits, data.splits["train"].positions.tolist()

    def expected(positions):
        row_of = {position: row for row, position in enumerate(data.splits["train"].positions)}
        return asked[[row_of[position] for position in positions]]

    assert torch.equal(answers()[0], asked)
    assert torch.equal(answers("data.limit_val=3")[0], asked)  # nobody learns from these
    # a part of the images has a part of the answers
    known = set(data.splits["train"].positions.tolist())
    part = recalled(tmp_path, teacher, "data.limit_train=24")[1].splits["train"].positions.tolist()
    if known.issuperset(part):
        logits, positions = answers("data.limit_train=24")
        assert positions == part and torch.equal(logits, expected(part))
    else:
        assert limit is not None
        with pytest.raises(pytest.fail.Exception, match="asked"):
            answers("data.limit_train=24")
    with pytest.raises(pytest.fail.Exception, match="asked"):  # other training images
        answers("data.seed=5")


def test_answers_beside_a_teacher_decode_no_image_that_nobody_learns_from(
    file, tmp_path, monkeypatch
):
    model, data = recalled(tmp_path, file, f"cache_dir={tmp_path}")
    model.teacher.prepare(data, torch.device("cpu"))
    teacher = shutil.copytree(file.parent, tmp_path / "shipped") / file.name
    next(tmp_path.glob("teacher-*.safetensors")).rename(teacher.with_suffix(".answers"))
    fresh = (f"cache_dir={tmp_path / 'fresh'}", "data.limit_train=24")
    model, data = recalled(tmp_path, teacher, *fresh)
    monkeypatch.setattr(model.teacher, "_ask", lambda *_: pytest.fail("asked"))
    model.teacher.prepare(data, torch.device("cpu"))
    assert len(data.splits["train"].cached.images) == 24


@pytest.mark.parametrize(
    "edit",
    [
        lambda logits: {"logits": logits[:-1]},
        lambda logits: {"logits": torch.cat([logits, logits[:1]])},
        lambda logits: {"logits": logits[:, :1].contiguous()},
        lambda logits: {"logits": logits[:, 1:].contiguous()},
        lambda logits: {"logits": logits[0]},
        lambda logits: {"logits": logits[..., None]},
        lambda logits: {"logits": logits > 0},
        lambda logits: {"logits": logits.long()},
        lambda logits: {"logits": logits * torch.nan},
        lambda logits: {"logits": logits / 0},
        lambda logits: {"answers": logits},
    ],
)
def test_answers_of_another_shape_or_type_beside_a_teacher_are_refused(
    file, tmp_path, monkeypatch, edit
):
    teacher = shutil.copytree(file.parent, tmp_path / "shipped") / file.name
    options = (f"cache_dir={tmp_path}", "data.limit_train=24")
    model, data = recalled(tmp_path, teacher, *options)
    monkeypatch.setattr(model.teacher, "_ask", lambda *_: pytest.fail("asked"))
    whole = torch.zeros(data.sizes["train"], len(data.class_names))
    about = {"teacher": file_digest(teacher)[:16]}
    digests = torch.from_numpy(data.splits["train"].digests.view("int64"))
    answers = teacher.with_suffix(".answers")
    write(answers, packed({"logits": whole, "digests": digests}, about))
    model.teacher.prepare(data, torch.device("cpu"))  # as they should be
    write(answers, packed({**edit(whole), "digests": digests}, about))
    with pytest.raises(UserError, match=r"teacher\.answers: expected finite logits \(24, "):
        model.teacher.prepare(data, torch.device("cpu"))


def test_a_pipe_or_a_device_beside_a_teacher_is_not_read(file, tmp_path):
    teacher = shutil.copytree(file.parent, tmp_path / "shipped") / file.name
    model, data = recalled(tmp_path, teacher, f"cache_dir={tmp_path}", "data.limit_train=24")
    answers = teacher.with_suffix(".answers")
    for make in (
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: (path.touch(), os.truncate(path, 500_000_000)),
    ):
        make(answers)
        with pytest.raises(UserError, match=r"ordinary file|500,000,000 bytes"):
            model.teacher.prepare(data, torch.device("cpu"))
        answers.unlink()


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_a_teacher_of_whole_images_blends_its_answers_as_the_images_are_blended(
    file, tmp_path, name
):
    model, data = recalled(tmp_path, file, f"data.augment.{name}=1", "data.augment.crop_padding=0")
    model.teacher.prepare(data, torch.device("cpu"))
    batch = data.transform(next(iter(data.train_dataloader())), train=True)
    at, spec = (
        data.splits["train"].rows[torch.stack([batch.index, batch.other]).numpy()],
        data.input_spec,
    )
    pixels = (torch.as_tensor(data.splits["train"].cached.images[row]) for row in at)
    own, other = (normalise(images, spec.size, spec.mean, spec.std) for images in pixels)
    if name == "mixup":  # what is told of the images is what was done to them
        share = batch.share[:, None, None, None]
        torch.testing.assert_close(
            batch.images, share * own + (1 - share) * other, rtol=0, atol=1e-5
        )
    else:
        same = (batch.images == own).all(1).float().mean((1, 2))
        assert (same >= batch.share - 1e-6).all() and 0 < batch.share.min() < 1
    p, q = ((model.teacher.logits[rows] / 0.1).softmax(1) for rows in (batch.index, batch.other))
    expected = batch.share[:, None] * p + (1 - batch.share[:, None]) * q
    torch.testing.assert_close(model.teacher(batch, 0.1), expected)
    assert (expected - p).abs().max() > 1e-3  # it is not the answer to the image alone


def test_a_student_learns_from_answers_on_disk(file, tmp_path):
    folder = tmp_path / "run"
    options = (f"optim.teacher={file}", "optim.teacher_weight=1")
    mhprobe.train.run(
        runs.config("train", tmp_path, *WHOLE, *options, "trainer.log_every_n_steps=1"), folder
    )
    logged = [
        row["train/distance_to_teacher"]
        for row in runs.rows(next(folder.glob("logs/**/metrics.csv")))
    ]
    assert any(value and float(value) > 0 for value in logged)
    assert len(list(tmp_path.glob("teacher-*.safetensors"))) == 1


@pytest.mark.slow
def test_what_was_pruned_is_tuned_with_the_whole_network_as_teacher(trained, tmp_path):
    weights = trained.folder / "model.safetensors"
    cfg = runs.config(
        "prune",
        tmp_path,
        f"weights={weights}",
        f"optim.teacher={weights}",
        "optim.teacher_weight=1",
        "prune=order",
        *("prune.remove=2", "prune.tune_epochs=1", "trainer.log_every_n_steps=1", *SMALL),
    )
    folder = tmp_path / "run"
    mhprobe.prune.run(cfg, folder)
    logged = [
        row["train/distance_to_teacher"]
        for row in runs.rows(next(folder.glob("logs/**/metrics.csv")))
    ]
    assert any(value and float(value) > 0 for value in logged)
    tuned = runs.rows(folder / "tables" / "pruning.csv")[-1]
    made = json.loads((folder / "pruned.json").read_text())["made"]
    assert (tuned["stage"], float(tuned["accuracy"])) == (
        "tuned",
        pytest.approx(made["test/accuracy"], abs=1e-6),
    )
    assert (
        0 < made["test/accuracy"] < 1
    )  # barely trained: neither is what a broken network or a leak would give
