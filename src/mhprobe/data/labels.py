"""Labels of other forms than one class per image: what they are, and what would make classes of them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Form(NamedTuple):
    """A form of labels.

    called: its name, for a sentence. then: the method call that makes (B,) int64 classes of it; ""
    where nothing does.
    """

    called: str
    then: str


SEVERAL = "several classes per image (multi-hot)"
_COUNTED = (
    *(torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


def are_class_numbers(labels: Tensor) -> bool:
    """Return True for whole numbers and bool of any width, which may be classes."""
    return labels.dtype in _COUNTED


def may_be_classes(part: Tensor, images: int) -> bool:
    """Return True for a class of each image in any form: whole numbers (B,), (B, 1), or rows of 0 and 1 (B, C)."""
    if len(part.shape) not in (1, 2) or len(part) != images or part.is_complex():
        return False
    if part.dim() == 1 or part.shape[1] == 1:
        flat = part.reshape(-1)
        form = _of_numbers(flat)
        return form is None or (bool(form.then) and not _shares(flat))
    form = _of_rows(part)
    return form.then == ".argmax(1)" or (form.called == SEVERAL and bool(part.any()))


def _shares(numbers: Tensor) -> bool:
    """True for floating-point numbers that are all 0 or all 1, e.g. weights of images."""
    return numbers.is_floating_point() and len(numbers.unique()) < 2


def said_of(labels: Tensor, classes: int) -> str:
    """Return a sentence on (B,) classes that are no class of a model, and what would do."""
    if bool((labels < 0).any()):
        return (
            "A number below 0 usually marks an image without a class: leave these images out, or give "
            "None for all labels."
        )
    if int(labels.min()) >= 1 and int(labels.max()) == classes:
        return "Are the classes counted from 1? Then give labels - 1."
    return "Is it the right data set for this head?"


def form_of(labels: Tensor) -> Form | None:
    """Return the form of labels (B, ...); None for one class per image as (B,) int64."""
    if labels.dim() == 1:
        return _of_numbers(labels)
    if labels.dim() == 2 and labels.shape[1] == 1:
        rest = _of_numbers(labels.squeeze(1))
        if rest and not rest.then:
            return Form(f"a column of {rest.called}", "")
        return Form("a column", f".squeeze(1){rest.then if rest else ''}")
    if labels.dim() == 2 and labels.numel() and not labels.is_complex():
        return _of_rows(labels)
    if labels.dim() > 2 and are_class_numbers(labels):
        return Form("a class per pixel", "")
    return Form("none of a class, one-hot, multi-hot or soft", "")


def _of_numbers(labels: Tensor) -> Form | None:
    """The form of (B,) labels."""
    if labels.dtype == torch.int64:
        return None
    if are_class_numbers(labels):
        return Form(f"classes as {str(labels.dtype).removeprefix('torch.')}", ".long()")
    whole = labels.is_floating_point() and bool((labels == labels.round()).all())
    if whole and bool((labels >= 0).all()):
        return Form("classes as floating-point numbers", ".long()")
    return Form("numbers that are no classes", "")


def _of_rows(labels: Tensor) -> Form:
    """The form of (B, C) labels, of C > 1 classes."""
    rows = labels.double()
    if bool(((rows == 0) | (rows == 1)).all()):
        single = bool((rows.sum(1) == 1).all())
        return Form("one-hot", ".argmax(1)") if single else Form(SEVERAL, "")
    sums = torch.ones(len(rows), dtype=rows.dtype, device=rows.device)
    if bool((rows >= 0).all()) and torch.allclose(rows.sum(1), sums, atol=1e-2, rtol=0):
        return Form("soft, a share per class", ".argmax(1)")
    return Form("none of a class, one-hot, multi-hot or soft", "")
