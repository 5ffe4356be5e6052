"""Orders of classes, the forms in which data sets come, and what those that are not read are called."""

from __future__ import annotations

import numpy as np
import pytest

from data_sets import class_files, encoded, write_folder, write_zip
from mhprobe.data.cifar10 import CLASSES, Cifar10
from mhprobe.data.images import ImageFolder
from mhprobe.errors import UserError

NUMBERS = tuple(str(number) for number in range(12))
TEXT = tuple(sorted(NUMBERS))


def of_numbers(root):
    return write_folder(root, class_files(2, 1, classes=NUMBERS, width=8, height=8))


def test_the_order_of_classes_is_the_users_and_labels_follow_it(tmp_path):
    root, names = of_numbers(tmp_path / "set"), tmp_path / "names.txt"
    names.write_text("\n".join(reversed(NUMBERS)) + "\n\n")
    for classes, expected in (
        (None, TEXT), ("text", TEXT), ("number", NUMBERS),
        ([*reversed(NUMBERS)], NUMBERS[::-1]), (str(names), NUMBERS[::-1]),
    ):  # fmt: skip
        contents = ImageFolder(root, 8, classes=classes).scan()
        assert contents.class_names == expected
        usual = ImageFolder(root, 8, classes="text").scan()
        for split in ("train", "test"):  # each image keeps the name of its class
            named = [expected[label] for label in contents.labels[split]]
            assert named == [TEXT[label] for label in usual.labels[split]]
    assert ImageFolder(root, 8, classes="number").key() != ImageFolder(root, 8).key()


def test_a_guessed_order_is_said_where_orders_differ_and_only_there(tmp_path):
    guess = ImageFolder(of_numbers(tmp_path / "set"), 8).scan().readings[0]
    assert guess.guess and guess.option == "classes=number"
    assert "timm's train.py has 2 in the place of 10" in guess.source
    assert not ImageFolder(tmp_path / "set", 8, classes="number").scan().readings[0].guess
    plain = ImageFolder(write_folder(tmp_path / "plain", class_files()), 8).scan().readings[0]
    assert not plain.guess and plain.taken == "2 folders (cat, dog)"


@pytest.mark.parametrize("classes", ["numbers", ["cat"], ["cat", "dog", "dog"], ["cat", "cow"]])
def test_an_order_of_other_classes_is_refused(tmp_path, classes):
    with pytest.raises(UserError, match="classes: expected"):
        ImageFolder(write_folder(tmp_path, class_files()), 8, classes=classes).scan()


def test_the_order_of_numbers_is_timms(tmp_path):
    timm_data = pytest.importorskip("timm.data")
    names = ("Class10", "class2", "b", "Ant", "3", "03x")
    root = write_folder(tmp_path, class_files(1, 1, classes=names, width=8, height=8))
    theirs = list(timm_data.create_dataset("", str(root / "train")).reader.class_to_idx)
    assert list(ImageFolder(root, 8, classes="number").scan().class_names) == theirs


def test_class_folders_without_a_split_are_read_where_a_share_is_given(tmp_path):
    files = {f"{name}/{i}.png": encoded(i, 8, 8) for name in ("cat", "dog") for i in range(10)}
    for root in (write_folder(tmp_path / "set", files), write_zip(tmp_path / "set.zip", files)):
        with pytest.raises(UserError, match=r"a folder for each class, and no train/ and test/.*"):
            ImageFolder(root, 8).scan()
        contents = ImageFolder(root, 8, test_fraction=0.2).scan()
        for split, count in (("train", 8), ("test", 2)):
            np.testing.assert_array_equal(np.bincount(contents.labels[split]), [count, count])
        assert len([*contents.images()]) == 20
    with pytest.raises(UserError, match=r"test_fraction: .* has train/ and test/ already"):
        ImageFolder(write_folder(tmp_path / "split", class_files()), 8, test_fraction=0.2).scan()


OTHERS = {
    "nested classes": ({"train/pet/cat/1.png": b"", "test/pet/cat/1.png": b""}, "is pet the class, or cat"),
    "splits below classes": ({"cat/train/1.png": b"", "dog/test/1.png": b""}, "splits lie below the classes"),
    "a table": ({"1.png": b"", "labels.csv": b"a,b"}, r"labels stand in a table \(labels.csv\)"),
    "a table beside splits": ({"train/1.png": b"", "test/2.png": b"", "train.csv": b""}, "in a table"),
    "parquet": ({"data/train-00000-of-00001.parquet": b""}, "parquet tables"),
    "arrow": ({"train/data-00000-of-00001.arrow": b"", "dataset_dict.json": b""}, "Hugging Face's datasets"),
    "CIFAR-100": ({"cifar-100-python/train": b"", "cifar-100-python/test": b""}, "holds CIFAR-100"),
    "the folder of CIFAR-100": ({"train": b"", "test": b"", "meta": b"", "file.txt~": b""}, "holds CIFAR-100"),
    "a table beside a folder": ({"images/1.png": b"", "labels.csv": b"a,b"}, r"in a table \(labels.csv\)"),
    "binary CIFAR-100": ({"train.bin": b"", "fine_label_names.txt": b""}, "holds CIFAR-100"),
    "CIFAR-10": ({"cifar-10-batches-py/data_batch_1": b""}, "python batches: give data=cifar10"),
    "binary CIFAR-10": ({"data_batch_1.bin": b""}, "binary batches: give data=cifar10"),
    "WebDataset": ({"000.jpg": b"", "000.cls": b"1"}, "a shard of WebDataset"),
    "shards": ({"train-000.tar": b""}, r"holds archives \(train-000.tar\)"),
    "MNIST": ({"train-images-idx3-ubyte.gz": b""}, "IDX files"),
    "MedMNIST": ({"pathmnist.npz": b""}, "NumPy arrays"),
    "COCO": ({"annotations/instances_val2017.json": b"", "val2017/1.jpg": b""}, "objects, as COCO's"),
    "VOC": ({"Annotations/1.xml": b"", "JPEGImages/1.jpg": b""}, "objects, as Pascal VOC's"),
    "TFRecords": ({"train.tfrecord-00000-of-00008": b""}, "TFRecords"),
    "HDF5": ({"camelyon.h5": b""}, "HDF5 files"),
    "loose images": ({"1.png": b"", "2.png": b""}, "lie in no folders of classes"),
    "splits without classes": ({"train/1.png": b"", "test/2.png": b""}, "in test, train lie in no"),
    "STL-10": ({"train_X.bin": b"", "train_y.bin": b""}, "holds STL-10"),
    "binary CIFAR-100 without names": ({"train.bin": b"", "test.bin": b""}, "holds CIFAR-100"),
    "splits with a year": ({"train2017/1.jpg": b"", "val2017/2.jpg": b""}, "val2017 lie in no folders of classes"),
    "a split of another name": (
        {"train/cat/1.png": b"", "train/dog/1.png": b"", "dev/cat/1.png": b"", "dev/dog/1.png": b""},
        "splits are called dev, train: call them train and test",
    ),
    "images and masks": ({"images/1.png": b"", "masks/1.png": b""}, r"\(images, masks\) are no classes"),
    "nothing": ({"notes.md": b""}, "Expected train/<class>"),
}  # fmt: skip


@pytest.mark.parametrize("form", OTHERS)
def test_a_data_set_of_another_form_is_called_what_it_is(tmp_path, form):
    files, says = OTHERS[form]
    with pytest.raises(UserError, match=says):
        ImageFolder(write_folder(tmp_path, files), 8).scan()
    if "data=cifar10" not in says:
        with pytest.raises(UserError, match=says):
            Cifar10(tmp_path).scan()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("labels.csv", "It is a table, which is not read"),
        ("train.parquet", "It belongs to parquet tables"),
        ("pathmnist.npz", "It belongs to NumPy arrays"),
        ("cat.png", "It is one image"),
        ("set.rar", r"got .*set\.rar\.$"),  # the control: nothing more is known
    ],
)
def test_a_file_in_the_place_of_a_data_set_is_called_what_it_is(tmp_path, name, says):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(UserError, match=says) as error:
        ImageFolder(tmp_path / name, 8).scan()
    assert "expected a folder or a .tar" in str(error.value) and "\n" not in str(error.value)


def binary_batches(root, images: int = 3):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, images, 3072), dtype=np.uint8)
    labels = rng.integers(0, 10, (6, images, 1), dtype=np.uint8)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    rows = np.concatenate([labels, pixels], axis=2)
    files = {
        f"cifar-10-batches-bin/{name}": of.tobytes() for name, of in zip(names, rows, strict=True)
    }
    return write_folder(root, files), pixels, labels[..., 0]


def test_cifar10_reads_its_binary_version(tmp_path):
    root, pixels, labels = binary_batches(tmp_path)
    contents = Cifar10(root).scan()
    assert contents.class_names == CLASSES
    np.testing.assert_array_equal(contents.labels["train"], labels[:5].ravel())
    np.testing.assert_array_equal(contents.labels["test"], labels[5])
    images = {(split, place): image for split, place, image in contents.images()}
    expected = pixels[5, 2].reshape(3, 32, 32).transpose(1, 2, 0)
    np.testing.assert_array_equal(images["test", 2], expected)


@pytest.mark.parametrize(
    ("data", "says"),
    [(bytes(3072), "3,073 bytes"), (b"", "3,073 bytes"), (b"\x0a" + bytes(3072), "labels 0 to 9")],
)
def test_a_damaged_binary_batch_is_named(tmp_path, data, says):
    root = binary_batches(tmp_path)[0]
    (root / "cifar-10-batches-bin" / "data_batch_3.bin").write_bytes(data)
    with pytest.raises(UserError, match=rf"data_batch_3\.bin.*{says}"):
        Cifar10(root).scan()


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train", "valid"),
        ("train", "validation"),
        ("Train", "Test"),
        ("training", "testing"),
        ("TRAIN", "VAL"),
    ],
)
def test_splits_of_other_names_are_read(tmp_path, train, test):
    usual = write_folder(tmp_path / "usual", class_files())
    files = {}
    for file in usual.rglob("*.png"):
        name = file.relative_to(usual).as_posix()
        split, rest = name.split("/", 1)
        files[f"{train if split == 'train' else test}/{rest}"] = file.read_bytes()
    expected, found = (
        ImageFolder(root, 8).scan() for root in (usual, write_folder(tmp_path / "set", files))
    )
    assert found.class_names == expected.class_names
    for split in ("train", "test"):
        np.testing.assert_array_equal(found.labels[split], expected.labels[split])
    said = any(f"those of {test}/" in str(reading) for reading in found.readings)
    assert said == (test.lower() not in ("test", "testing"))


@pytest.mark.parametrize("name", ["val", "valid", "Validation"])
def test_images_for_validation_beside_a_test_are_left_out_with_a_word(tmp_path, caplog, name):
    """Only val/ was named: valid/ was left out in silence."""
    files = class_files()
    files |= {f"{name}/cat/1.png": encoded(1, 8, 8), f"{name}/dog/1.png": encoded(2, 8, 8)}
    contents = ImageFolder(write_folder(tmp_path, files), 8).scan()
    assert f"its {name}/ is left out" in caplog.text
    assert any(reading.what == f"{name}/" for reading in contents.readings)


def test_classes_with_numbers_are_in_the_order_of_their_numbers(tmp_path):
    """A model's label2id is in any order; once its keys were taken as they came."""
    root = write_folder(tmp_path / "set", class_files())
    for classes in (
        {"dog": 0, "cat": 1},
        {"cat": 1, "dog": 0},
        {0: "dog", 1: "cat"},
        {1: "cat", 0: "dog"},
    ):
        assert ImageFolder(root, 8, classes=classes).scan().class_names == ("dog", "cat")
    for classes in (
        {"dog": 1, "cat": 2},
        {"dog": 0, "cat": 0},
        {"dog": "a", "cat": "b"},
        {"dog", "cat"},
    ):
        with pytest.raises(UserError, match="classes: expected"):
            ImageFolder(root, 8, classes=classes).scan()


def test_a_file_of_classes_may_begin_with_the_mark_of_its_bytes(tmp_path):
    """Notepad writes it, and the first class had an invisible letter more."""
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbfdog\r\ncat\r\n")
    root = write_folder(tmp_path / "set", class_files())
    contents = ImageFolder(root, 8, classes=str(tmp_path / "names.txt")).scan()
    assert contents.class_names == ("dog", "cat")
