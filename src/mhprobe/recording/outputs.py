"""The output of a model as one tensor: its logits, or, where it classifies nothing, its features.

Shapes: B images, C classes or features, T tokens.
"""

from typing import Any

from torch import Tensor

from mhprobe.errors import UserError

# of Hugging Face's outputs, what is closest to logits first
_NAMED = ("logits", "pooler_output", "image_embeds", "text_embeds")


def logits_of(output: Any) -> Tensor:
    """(B, C) what a model gave back: the tensor itself; of a dict or a Hugging Face output its logits or features.

    Of several outputs the first is meant; of tokens (B, T, C) their mean. UserError where there is no such tensor.
    """
    found = _found(output)
    if not isinstance(found, Tensor) or found.dim() not in (2, 3):
        got = tuple(found.shape) if isinstance(found, Tensor) else type(output).__name__
        raise UserError(
            f"the model gives back {got}, expected logits or features (B, C), or something with them in it (a tuple's "
            f"first, a dict's or an output's {', '.join(_NAMED)}). Wrap it in a module that gives back one tensor."
        )
    return found.mean(1) if found.dim() == 3 else found


def broken(outputs: Tensor) -> Tensor:
    """(B,) bool: images with a NaN or an infinity in one of their (..., B, C) outputs."""
    bad_MB = ~outputs.isfinite().all(-1)
    return bad_MB.flatten(0, -2).any(0) if bad_MB.dim() > 1 else bad_MB


def refuse_broken(broken_N: Tensor, what: str) -> None:
    """UserError if there are such images: the largest of their outputs is class 0, or none. what: gives the outputs."""
    if bool(broken_N.any()):
        raise UserError(
            f"{what} is NaN or infinite for {int(broken_N.sum())} of {len(broken_N)} images, the first is image "
            f"{int(broken_N.int().argmax())}: no score could be given. Check the weights, the precision and the "
            f"normalisation of the images."
        )


def _found(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output
    for name in (*_NAMED, "last_hidden_state"):
        value = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    return output[0] if isinstance(output, tuple | list) and output else None
