"""Reports errors of dynamic providers to the engine without prefix and traceback.

gRPC's server puts "Exception calling application: " before the text of an exception, and writes
a traceback, unless the handler aborts the call itself. `pulumi.dynamic` does not pass the call to
a provider, so this module finds it in the stack frames.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import grpc

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")

PACKAGE = __name__.partition(".")[0]
"""The package whose exceptions are written for users."""


def in_words(method: Callable[Parameters, Answer]) -> Callable[Parameters, Answer]:
    """Return a wrapped method: of this package's exceptions, the engine shows only the message.

    Other exceptions are bugs and keep their traceback. Outside of a call of the engine, such as in
    a test, every exception is raised unchanged.
    """

    @wraps(method)
    def answer(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Answer:
        try:
            return method(*args, **kwargs)
        except Exception as exc:
            call = _call()
            if call is None or not is_for_users(exc):
                raise
            call.abort(grpc.StatusCode.UNKNOWN, str(exc))
            raise

    return answer


def is_for_users(error: Exception) -> bool:
    """Whether the message of an exception is written for users: it is one of this package."""
    return type(error).__module__.partition(".")[0] == PACKAGE


def _call() -> Any | None:
    """Return the gRPC context of the current call on this thread, None outside of a call."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if isinstance(call := frame.f_locals.get("context"), grpc.ServicerContext):
            return call
        frame = frame.f_back
    return None
