"""Each source gives the right pixels, labels and classes, and each kind of bad input is named in one line."""

from __future__ import annotations

import io
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_sets import class_files, encoded, write_folder, write_tar, write_zip
from mhprobe.data.base import ImageData
from mhprobe.data.cache import open_cache
from mhprobe.data.cifar10 import CLASSES, Cifar10
from mhprobe.data.digits import Digits
from mhprobe.data.draws import stratified
from mhprobe.data.images import ImageFolder, decode
from mhprobe.errors import UserError

WRITERS = {
    "folder": lambda path, files: write_folder(path / "set", files),
    "tar": lambda path, files: write_tar(path / "set.tar", files),
    "tar.gz": lambda path, files: write_tar(path / "set.tar.gz", files),
    "tgz": lambda path, files: write_tar(path / "set.tgz", files),
    "zip": lambda path, files: write_zip(path / "set.zip", files),
}


def decoded(source) -> dict[str, np.ndarray]:
    contents = source.scan()
    out = {
        s: np.zeros((len(labels), *contents.size, 3), np.uint8)
        for s, labels in contents.labels.items()
    }
    for split, position, image in contents.images():
        out[split][position] = image
    return out


def refusal(source) -> str:
    """The one line with which scanning and decoding is refused."""
    with pytest.raises(UserError) as error:
        source.key()
        list(source.scan().images())
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("prefix", ["", "some/where/"])
def test_class_folders_read_the_same_from_a_folder_and_every_archive(tmp_path, kind, prefix):
    files = class_files(train=40, test=3)
    extra = {"README.txt": b"read me", "train/cat/.hidden": b"", "__MACOSX/train/cat/._0.png": b""}
    root = WRITERS[kind](
        tmp_path, {prefix + name: data for name, data in reversed({**files, **extra}.items())}
    )
    source = ImageFolder(root, stored_size=32)
    contents = source.scan()
    assert contents.class_names == ("cat", "dog")
    np.testing.assert_array_equal(contents.labels["train"], [0] * 40 + [1] * 40)
    images = decoded(source)
    for split, count in (("train", 40), ("test", 3)):
        names = sorted(f"{split}/{c}/{i}.png" for c in ("cat", "dog") for i in range(count))
        expected = np.stack([np.asarray(Image.open(io.BytesIO(files[name]))) for name in names])
        np.testing.assert_array_equal(images[split], expected)


def test_images_are_resized_by_the_short_side_and_centre_cropped(tmp_path):
    ramp = np.repeat(np.linspace(0, 255, 90).astype(np.uint8)[None, :, None], 30, axis=0).repeat(
        3, axis=2
    )
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "PNG")
    files = {name: buffer.getvalue() for name in class_files(1, 1)}
    image = decoded(ImageFolder(write_folder(tmp_path, files), stored_size=15))["train"][0]
    # 90 x 30 -> 45 x 15 -> columns 15 to 29, which begin at a third and end at two thirds of the
    # ramp; a pixel is 5.7 levels wide, so half of one off would show
    np.testing.assert_allclose(image[7, :, 0], 255 / 45 * (np.arange(15, 30) + 0.5), atol=2.5)


def test_grey_and_transparent_images_become_rgb(tmp_path):
    files = class_files(1, 1, width=8, height=8)
    for name, mode in (("train/cat/0.png", "L"), ("train/dog/0.png", "RGBA")):
        buffer = io.BytesIO()
        Image.new(mode, (8, 8), 77 if mode == "L" else (77, 77, 77, 255)).save(buffer, "PNG")
        files[name] = buffer.getvalue()
    assert (decoded(ImageFolder(write_folder(tmp_path, files), stored_size=8))["train"] == 77).all()


def test_a_missing_root_is_named(tmp_path):
    assert refusal(ImageFolder(tmp_path / "no.zip")).startswith(
        f"root: {tmp_path / 'no.zip'} does not exist."
    )
    with pytest.raises(UserError, match="got null"):
        ImageFolder(None)


def test_a_file_that_is_no_archive_is_named(tmp_path):
    (tmp_path / "set.rar").write_bytes(b"Rar!")
    assert "expected a folder or a .tar, .tar.gz, .tgz or .zip archive" in refusal(
        ImageFolder(tmp_path / "set.rar")
    )


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tgz", "zip"])
@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.9])
def test_a_truncated_archive_is_named(tmp_path, kind, share):
    root = WRITERS[kind](tmp_path, class_files(6, 6))
    data = root.read_bytes()
    root.write_bytes(data[: int(len(data) * share)])
    assert f"root: {root} is damaged or cut short (" in refusal(ImageFolder(root, 32))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("contents", [b"", b"not an image", encoded(5, format="JPEG")[:500]])
def test_a_damaged_image_is_named_inside_its_archive(tmp_path, kind, contents):
    root = WRITERS[kind](tmp_path, class_files() | {"test/dog/1.png": contents})
    line = refusal(ImageFolder(root, 32))
    assert line.startswith(f"root: {root}: test/dog/1.png is damaged (") and "0x" not in line


@pytest.mark.parametrize("kind", ["folder", "tar"])
def test_all_damaged_images_are_named_and_counted_at_once(tmp_path, kind):
    """Once there was one a run: twenty of them took twenty runs."""
    wrong = {f"train/dog/{number}.png": b"not an image" for number in range(20)}
    root = WRITERS[kind](tmp_path, class_files(train=100) | wrong)
    line = refusal(ImageFolder(root, 32))
    assert line.startswith(
        f"root: {root}: train/dog/0.png is damaged (not an image). Replace or remove it. 19 more "
        "of "
    )
    assert line.endswith(
        " images cannot be read either: " + ", ".join([*sorted(wrong)[1:5], "..."])
    )
    two = dict(list(wrong.items())[:2])
    (tmp_path / "two").mkdir()
    assert refusal(
        ImageFolder(WRITERS[kind](tmp_path / "two", class_files(train=3) | two), 32)
    ).endswith("dog/1.png")


@pytest.mark.parametrize("lacks, has", [("test", "train"), ("train", "test")])
def test_a_class_in_one_split_only_is_named(tmp_path, lacks, has):
    files = {
        name: data
        for name, data in class_files(classes=("cat", "dog", "emu")).items()
        if f"{lacks}/emu" not in name
    }
    line = refusal(ImageFolder(write_folder(tmp_path, files), 32))
    assert f"1 of the classes in {has}/ have no images in {lacks}/: emu." in line


@pytest.mark.parametrize(
    "files",
    [{"README.md": b""}, class_files(test=0), class_files(train=0)],
    ids=["none", "train", "test"],
)
def test_an_empty_split_is_named(tmp_path, files):
    assert "has no images under t" in refusal(ImageFolder(write_folder(tmp_path, files), 32))


def test_test_images_without_classes_are_named_where_val_does_not_stand_in(tmp_path):
    files = class_files(3, 0) | {"test/1.png": encoded(5), "val/1.png": encoded(6)}
    assert "1 images lie beside or below" in refusal(ImageFolder(write_folder(tmp_path, files), 32))


@pytest.mark.parametrize("layout", ["of ImageNet", "all three"])
def test_val_stands_in_for_a_test_set_without_labels(tmp_path, layout, caplog):
    files = class_files(3, 2)
    usual = decoded(ImageFolder(write_folder(tmp_path / "usual", files), 32))
    if layout == "of ImageNet":
        files = {name.replace("test/", "val/"): data for name, data in files.items()} | {
            "test/1.png": encoded(5)
        }
    else:  # validation images are drawn from train/
        files |= {"val/cat/1.png": encoded(7)}
    caplog.clear()
    images = decoded(ImageFolder(write_folder(tmp_path / "theirs", files), 32))
    for split in ("train", "test"):
        np.testing.assert_array_equal(images[split], usual[split])
    unused = [
        record.message for record in caplog.records if "its val/ is left out" in record.message
    ]
    assert len(unused) == (1 if layout == "all three" else 0)


@pytest.mark.parametrize("copies", [0, 2])
def test_training_images_among_the_test_images_are_counted_in_every_run(tmp_path, copies, caplog):
    files = class_files(3, 2) | {
        f"test/cat/copy_{i}.png": encoded(i) for i in range(copies)
    }  # train/cat/{i}.png
    source = ImageFolder(write_folder(tmp_path / "images", files), 32)
    for _ in range(2):  # decoded, then from the cache
        caplog.clear()
        ImageData(source, batch_size=2, cache_dir=tmp_path / "cache").prepare_data()
        counts = [
            record.message
            for record in caplog.records
            if "are training images, too" in record.message
        ]
        assert len(counts) == (copies > 0)
        assert all(f"image_folder: {copies} test images" in count for count in counts)


def test_one_class_is_refused(tmp_path):
    root = write_folder(tmp_path, class_files(classes=("cat",)))
    assert "has one class, cat; telling classes apart needs at least two" in refusal(
        ImageFolder(root, 32)
    )


def test_an_unsupported_file_type_is_named(tmp_path):
    root = write_folder(tmp_path, class_files() | {"train/cat/notes.txt": b"hello"})
    assert "train/cat/notes.txt is not an image; expected .jpg" in refusal(ImageFolder(root, 32))


@pytest.mark.parametrize("root", ["", "pets/"])
@pytest.mark.parametrize("file", ["train/cat/young/0.png", "test/0.png"])
def test_images_beside_or_below_the_folders_of_classes_are_not_left_out_without_a_word(
    tmp_path, root, file
):
    files = {f"{root}{name}": data for name, data in class_files().items()}
    astray = files | {f"{root}{file}": next(iter(files.values()))}
    assert f"beside or below the folders of classes, e.g. {root}{file}" in refusal(
        ImageFolder(write_folder(tmp_path / "astray", astray), 32)
    )
    elsewhere = files | {
        f"{root}cover.png": next(iter(files.values())),
        f"{root}train/cat/.old/0.png": b"",
    }
    ImageFolder(write_folder(tmp_path / "fine", elsewhere), 32).scan()


def test_two_data_sets_in_one_root_are_refused(tmp_path):
    files = {f"{part}/{name}": data for part in ("a", "b") for name, data in class_files().items()}
    assert "holds 2 data sets, in a, b" in refusal(ImageFolder(write_folder(tmp_path, files), 32))


def test_cifar10_refuses_images_of_another_size(tmp_path):
    # a JPEG of 64 x 64 could be decoded at half its size without anyone noticing
    root = write_zip(
        tmp_path / "set.zip", class_files() | {"test/cat/0.png": encoded(1, 64, 64, "JPEG")}
    )
    assert refusal(Cifar10(root)).endswith("test/cat/0.png has 64 x 64 pixels, expected 32 x 32.")


def cifar_batches(per_batch: int = 20) -> dict[str, bytes]:
    """The original distribution's files, with random pixels; written as Python 2 did: bytes keys, protocol 2."""
    rng = np.random.default_rng(0)

    def batch():
        return {
            b"data": rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8),
            b"labels": [*range(10)] * 2,
        }

    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {f"cifar-10-batches-py/{name}": pickle.dumps(batch(), protocol=2) for name in names}


@pytest.mark.parametrize("kind", WRITERS)
def test_cifar10_reads_the_original_batches(tmp_path, kind):
    files = cifar_batches()
    root = WRITERS[kind](tmp_path, files)
    source = Cifar10(root)
    assert source.scan().class_names == CLASSES
    images = decoded(source)
    assert {split: len(x) for split, x in images.items()} == {"train": 100, "test": 20}
    second = pickle.loads(files["cifar-10-batches-py/data_batch_2"], encoding="bytes")[b"data"]
    for row in (0, 19):
        red, green, blue = second[row].reshape(3, 32, 32)
        np.testing.assert_array_equal(images["train"][20 + row], np.dstack([red, green, blue]))
    if kind == "folder":
        assert Cifar10(root / "cifar-10-batches-py").scan().class_names == CLASSES


def test_a_missing_or_damaged_cifar10_batch_is_named(tmp_path):
    files = cifar_batches()
    name = "cifar-10-batches-py/data_batch_3"
    cut = {**files, name: files[name][:1000]}
    assert f"{name} is not an intact CIFAR-10 batch" in refusal(
        Cifar10(write_tar(tmp_path / "cut.tar", cut))
    )
    del files[name]
    assert "lacks data_batch_3" in refusal(Cifar10(write_tar(tmp_path / "lacks.tar", files)))


def test_code_in_a_cifar10_batch_is_not_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    files = cifar_batches() | {
        "cifar-10-batches-py/test_batch": pickle.dumps({"data": Evil(), "labels": []})
    }
    assert "it refers to pathlib" in refusal(Cifar10(write_folder(tmp_path / "set", files)))
    assert not (tmp_path / "ran").exists()
    pickle.loads(files["cifar-10-batches-py/test_batch"])
    assert (tmp_path / "ran").exists()  # it would have been


def test_a_download_that_fails_names_what_works_offline(tmp_path, monkeypatch):
    def unreachable(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr("torchvision.datasets.CIFAR10", unreachable)
    line = refusal(Cifar10(None, download_dir=tmp_path))
    assert (
        "cifar-10-python.tar.gz" in line
        and " root=<archive or folder you have> or data=digits" in line
    )
    (tmp_path / "empty").mkdir()
    assert "could not be fetched" in refusal(Cifar10(tmp_path / "empty"))
    assert "could not be fetched" in refusal(
        Cifar10(tmp_path / "empty")
    )  # the lock left there is no data


def test_a_download_happens_once(tmp_path, monkeypatch):
    calls = []

    def download(folder, download):
        calls.append(folder)
        write_folder(folder, cifar_batches())
        (folder / "cifar-10-python.tar.gz").touch()

    monkeypatch.setattr("torchvision.datasets.CIFAR10", download)
    for _ in range(2):
        assert len(Cifar10(None, download_dir=tmp_path).scan().labels["train"]) == 100
    assert calls == [tmp_path / "cifar10"]


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    theirs = load_digits()
    source = Digits()
    contents, images = source.scan(), decoded(source)
    assert {split: len(labels) for split, labels in contents.labels.items()} == {
        "train": 1437,
        "test": 360,
    }
    ours = np.concatenate([images["train"], images["test"]])
    assert (
        ours.max() == 255
        and (ours[..., 0] == ours[..., 1]).all()
        and (ours[..., 0] == ours[..., 2]).all()
    )

    def key(grey, labels):
        return sorted(
            (bytes(x.astype(np.uint8)), int(y)) for x, y in zip(grey, labels, strict=True)
        )

    back = np.rint(ours[..., 0] / 255 * 16)
    assert key(back, np.concatenate([*contents.labels.values()])) == key(
        theirs.images, theirs.target
    )
    share = np.bincount(contents.labels["test"]) / np.bincount(theirs.target)
    assert abs(share - 0.2).max() < 0.005  # one image of about 180


@pytest.mark.parametrize("count", [1, 17, 100, 299, 300])
def test_a_stratified_choice_keeps_class_shares_and_depends_on_the_seed_alone(count):
    labels = np.random.default_rng(0).choice(4, size=300, p=[0.5, 0.3, 0.15, 0.05])
    chosen = stratified(labels, count, seed=1)
    assert len(np.unique(chosen)) == count and (np.diff(chosen) > 0).all()
    assert (
        abs(np.bincount(labels[chosen], minlength=4) - np.bincount(labels) * count / 300).max() < 1
    )
    np.testing.assert_array_equal(chosen, stratified(labels.copy(), count, seed=1))
    if 1 < count < 299:
        assert not np.array_equal(chosen, stratified(labels, count, seed=2))


def archive() -> Path:
    """The JPEG copy of CIFAR-10, where the machine has it."""
    given = os.environ.get("MHPROBE_DATA")
    folder = Path(given) if given else Path(__file__).parents[4] / "shared" / "data"
    return folder / "cifar10-jpeg.tar.gz"


@pytest.mark.skipif(
    not archive().exists(), reason="needs cifar10-jpeg.tar.gz in MHPROBE_DATA or ../shared/data"
)
def test_the_real_cifar10_archive_decodes_whole(tmp_path):
    cache = open_cache(Cifar10(archive()), tmp_path, show=False)
    assert cache.class_names == CLASSES
    for split, per_class in (("train", 5000), ("test", 1000)):
        assert np.bincount(cache.splits[split].labels).tolist() == [per_class] * 10
        images = cache.splits[split].images
        assert images.shape == (10 * per_class, 3, 32, 32)
        # the published channel means of CIFAR-10's training images: 0.4914, 0.4822, 0.4465; JPEG
        # moves them little
        sample = images[::7].reshape(-1, 3, 1024).mean((0, 2)) / 255
        np.testing.assert_allclose(sample, [0.4914, 0.4822, 0.4465], atol=0.01)


def test_the_sources_import_no_heavy_library():
    import subprocess

    code = (
        "import sys, mhprobe.data.cifar10, mhprobe.data.digits, mhprobe.data.images\n"
        "print([m for m in ('lightning', 'sklearn', 'torchvision', 'PIL') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_picture_that_is_a_program_is_not_opened():
    """Pillow hands PostScript to Ghostscript, whatever the file's name says."""
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n{} loop\n"
    with pytest.raises(UserError, match=r"photo\.jpg is a PostScript file"):
        decode(program, 8, True, "photo.jpg")


@pytest.mark.parametrize("size", [(1, 60000), (60000, 1), (3, 301)])
def test_a_picture_far_longer_than_wide_is_refused(size):
    """Its short side would be scaled up to the network's size, and its long side with it."""
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "PNG")
    with pytest.raises(UserError, match="expected a shape of at most 100 to 1"):
        decode(file.getvalue(), 448, True, "thin.png")
    file = io.BytesIO()
    Image.new("RGB", (3, 300)).save(file, "PNG")  # the control
    assert decode(file.getvalue(), 32, True, "long.png").shape == (32, 32, 3)


def test_a_label_that_cifar10_has_not_is_named(tmp_path):
    """The pixels were given as what is wrong."""
    from mhprobe.data import cifar10

    rows = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [3, 11]}
    with pytest.raises(UserError, match=r"expected labels 0 to 9, got 11\. "):
        cifar10._load_batch(pickle.dumps(rows), "here")


def test_classes_of_weights_and_data_that_look_alike_are_the_same():
    from mhprobe.data.source import other_classes

    assert other_classes(["caf\u00e9", "ape"], ["cafe\u0301", "ape"]) is None
    assert other_classes(["cafe", "ape"], ["cafe\u0301", "ape"]) is not None  # negative control
