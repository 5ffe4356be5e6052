"""What a part of the configuration with a ``_target_`` describes, with a wrong key or value named in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from mhprobe.errors import UserError
from mhprobe.run.moved import TARGETS

WRONG = (TypeError, ImportError, ValueError, ArithmeticError)  # what constructors say to a key or value they don't know


def construct(part: Any, where: str, **extra: Any) -> Any:
    """hydra's instantiate. where: the part's key, for the error's line."""
    try:
        return instantiate(part, _convert_="all", **extra)  # plain lists: timm does not take OmegaConf's
    except InstantiationException as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, UserError):
            cause = cause.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        for before, now in TARGETS.items():
            if before in str(error):
                raise UserError(f"{where}._target_: {before} is now {now}.") from error
        if isinstance(cause, WRONG):
            raise UserError(f"{where}: {_said(cause)}") from error
        raise


def explained(make: Callable[..., Any], where: str) -> Callable[..., Any]:
    """A partial that was constructed, with a wrong key or value named in one line when it is called."""

    def made(*args: Any, **kwargs: Any) -> Any:
        try:
            return make(*args, **kwargs)
        except UserError:
            raise
        except WRONG as error:
            raise UserError(f"{where}: {_said(error)}") from error

    return made


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
