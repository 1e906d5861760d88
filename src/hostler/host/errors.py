"""Set-up errors as they are written into a turn's result, and back."""

from __future__ import annotations

import re

from ..types import errors
from ..types.errors import HarnessError
from ..types.result import Result

_CLASSES = {
    cls: re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, HarnessError)
}
_BY_CODE = {code: cls for cls, code in _CLASSES.items()}


def error_code(error: HarnessError) -> str:
    """``SessionLost`` is ``session_lost``; a subclass that is not public takes its base's code."""
    for cls in type(error).__mro__:
        if cls in _CLASSES:
            return _CLASSES[cls]
    return "harness_error"


def raise_for_setup(result: Result) -> None:
    """Raise the set-up error that ended this turn, if one did. An answer that does not fit ``output=`` is none: the turn
    has run, and its events are to be seen."""
    if result.error is None or result.error.code == _CLASSES[errors.OutputInvalid]:
        return
    if (cls := _BY_CODE.get(result.error.code)) is not None:
        raise cls(result.error.message)
