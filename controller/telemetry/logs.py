"""Logs: one JSON object per line, with the fields that dashboards for Karpenter know.

Fields of a reconcile (`controller`, `namespace`, `name`, `reconcileID`) are set once, by
`about`, for everything logged within. Anything else comes by `extra=`. Values whose
field's name says that they are secret are never written.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TextIO

import msgspec

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "error": logging.ERROR,
}

# Libraries that tell the story of every request at levels meant for people.
QUIET = ("aiohttp.access", "asyncio", "botocore", "boto3", "urllib3", "kopf")

SECRET_WORDS = ("token", "secret", "password", "authorization", "credential", "private")

_ALWAYS_THERE = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVEL_NAMES = {"WARNING": "WARN", "CRITICAL": "ERROR"}

_fields: ContextVar[Mapping[str, str]] = ContextVar("fields", default={})  # noqa: B039 - frozen


@contextlib.contextmanager
def about(controller: str, key: str = "") -> Iterator[None]:
    """Say what everything logged within is about: a reconciler's name, and an object's key."""
    namespace, _, name = key.rpartition("/")
    fields = {"controller": controller, "reconcileID": str(uuid.uuid4())}
    fields |= {"namespace": namespace} if namespace else {}
    fields |= {"name": name} if name else {}
    token = _fields.set(fields)
    try:
        yield
    finally:
        _fields.reset(token)


def current_controller() -> str:
    """Return the name of the reconciler at work; empty outside of any."""
    return _fields.get().get("controller", "")


class Lines(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, Any] = {
            "level": _LEVEL_NAMES.get(record.levelname, record.levelname),
            "time": _written(record.created),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields.get(),
        }
        for name, value in vars(record).items():
            if name not in _ALWAYS_THERE:
                line[name] = "REDACTED" if _is_secret(name) else value
        if record.exc_info:
            line["error"] = str(record.exc_info[1])
            line["stacktrace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def configure(level: str, output_paths: Sequence[str] = ("stdout",)) -> None:
    """Send the logs of the whole process where the settings say, as JSON lines.

    `level` is `debug`, `info` or `error`; a path is `stdout`, `stderr` or a file.
    """
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for path in output_paths:
        handler = _handler(path)
        handler.setFormatter(Lines())
        root.addHandler(handler)
    root.setLevel(LEVELS[level])
    for name in QUIET:
        logging.getLogger(name).setLevel(max(LEVELS[level], logging.WARNING))


def _handler(path: str) -> logging.Handler:
    streams: Mapping[str, TextIO] = {"stdout": sys.stdout, "stderr": sys.stderr}
    return logging.StreamHandler(streams[path]) if path in streams else logging.FileHandler(path)


def _written(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created * 1000) % 1000:03d}Z"


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in SECRET_WORDS)
