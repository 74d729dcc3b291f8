"""Logs: one JSON object per line, with Karpenter's field names; sentences for users of a command.

`about` sets the fields of a reconciliation (`controller`, `namespace`, `name`, `reconcileID`) for
all lines within it. Other fields come from `extra=`. `name` is left out of a line that has it in
the field of its kind, such as `NodeClaim`. `Pods` names the pods that a line is about: the lines
with a pod's name are its story. Values of fields with a secret's name, such as
`token`, are replaced by `REDACTED`.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TextIO

import msgspec
from cachetools import TTLCache

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "error": logging.ERROR,
}

# Libraries that log every request at level info.
QUIET = ("aiohttp.access", "asyncio", "botocore", "boto3", "urllib3", "kopf")

SILENT = "kopf._cogs.clients"
"""Logs each failed attempt of a request that Kopf repeats as an error. The controller's own
requests report the state of the API server, and the process ends with the error of a request that
Kopf gives up."""

STREAMS = ("stdout", "stderr")

SECRET_WORDS = ("token", "secret", "password", "authorization", "credential", "private")

_ALWAYS_THERE = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVEL_NAMES = {"WARNING": "WARN", "CRITICAL": "ERROR"}

_fields: ContextVar[Mapping[str, str]] = ContextVar("fields", default={})  # noqa: B039 - frozen


@contextlib.contextmanager
def about(controller: str, key: str = "") -> Iterator[None]:
    """Add a reconciler's name and an object's key to all lines logged within the block."""
    namespace, _, name = key.rpartition("/")
    fields = {"controller": controller, "reconcileID": _reconcile_id()}
    fields |= {"namespace": namespace} if namespace else {}
    fields |= {"name": name} if name else {}
    token = _fields.set(fields)
    try:
        yield
    finally:
        _fields.reset(token)


def _reconcile_id() -> str:
    """Return a random UUID, without the system call of `uuid4`.

    A system call releases Python's global interpreter lock. If another thread then takes it, the
    event loop waits.
    """
    return str(uuid.UUID(int=random.getrandbits(128), version=4))


def current_controller() -> str:
    """Return the name of the running reconciler; empty outside of reconciliations."""
    return _fields.get().get("controller", "")


REPEATED = 600.0
"""Seconds after which an unchanged value counts as changed, so that it is logged again."""

MOST_REMEMBERED = 10_000
"""How many keys a `ChangeMonitor` remembers."""


class ChangeMonitor:
    """Detects whether a value differs from the last one with the same key, as in Karpenter.

    Used to log a line once per change, and every `REPEATED` seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember values; `clock` returns seconds."""
        self._seen: TTLCache[str, object] = TTLCache(MOST_REMEMBERED, REPEATED, clock)

    def has_changed(self, key: str, value: object = True) -> bool:
        """Remember the value; returns whether it differs from the previous one."""
        if key in self._seen and self._seen[key] == value:
            return False
        self._seen[key] = value
        return True


class _Unrepeated(logging.Filter):
    """Drops records whose message was logged within `REPEATED` seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._changes = ChangeMonitor()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        return self._changes.has_changed(record.getMessage())


_UNREPEATED = _Unrepeated()


class Lines(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without a line break."""
        fields, extra = dict(_fields.get()), _extra(record)
        if fields.get("name") in (value for key, value in extra.items() if key[0].isupper()):
            del fields["name"]  # the field of its kind, such as NodeClaim, has it
        line: dict[str, Any] = {
            "level": _LEVEL_NAMES.get(record.levelname, record.levelname),
            "time": _timestamp(record.created),
            "logger": record.name,
            "message": record.getMessage(),
            **fields,
            **extra,
        }
        if record.exc_info:
            line["error"] = str(record.exc_info[1])
            line["stacktrace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class Sentences(logging.Formatter):
    """Formats a record as one line for the user of a command."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the level, the message and the fields, without a line break."""
        details = [f"{name}: {value}" for name, value in _extra(record).items()]
        if record.exc_info:
            details.append(str(record.exc_info[1]))
        added = f" ({'; '.join(details)})" if details else ""
        return f"{record.levelname.lower()}: {record.getMessage()}{added}"


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record that come from `extra=`."""
    return {
        name: "REDACTED" if _is_secret(name) else value
        for name, value in vars(record).items()
        if name not in _ALWAYS_THERE
    }


class _Reporting(logging.Handler):
    """Writes to `failure_streams` when a line could not be written."""

    failure_streams: Sequence[TextIO] = ()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Write the error and the lost line."""
        for stream in self.failure_streams:
            # If this fails, too, nothing else can report it.
            with contextlib.suppress(OSError, ValueError):
                stream.write(f"a log line was lost: {record.name}: {record.msg!r}\n")
                traceback.print_exc(file=stream)
                stream.flush()


class _StreamHandler(_Reporting, logging.StreamHandler[TextIO]):
    pass


class _FileHandler(_Reporting, logging.FileHandler):
    pass


def configure(
    level: str,
    output_paths: Sequence[str] = ("stdout",),
    error_output_paths: Sequence[str] = ("stderr",),
) -> None:
    """Write the logs of the process as JSON lines to the configured outputs.

    Args:
        level: `debug`, `info` or `error`.
        output_paths: each `stdout`, `stderr` or a file.
        error_output_paths: the same, for errors when a line cannot be written.

    Raises:
        OSError: a file cannot be opened.

    """
    failure_streams = [_stream(path) for path in error_output_paths]
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    for path in output_paths:
        handler = _handler(path)
        handler.failure_streams = failure_streams
        handler.setFormatter(Lines())
        root.addHandler(handler)
    root.setLevel(LEVELS[level])
    for name in QUIET:
        logging.getLogger(name).setLevel(max(LEVELS[level], logging.WARNING))
    logging.getLogger(SILENT).setLevel(logging.CRITICAL)
    # It logs each connection that cannot be accepted without a file descriptor, with a traceback.
    logging.getLogger("asyncio").addFilter(_UNREPEATED)


def write_sentences() -> None:
    """Write warnings and errors to stderr as `Sentences`, unless a log handler is configured."""
    assert logging.lastResort is not None
    logging.lastResort.setFormatter(Sentences())


def _handler(path: str) -> _Reporting:
    return _StreamHandler(_stream(path)) if path in STREAMS else _FileHandler(path)


def _stream(path: str) -> TextIO:
    if path in STREAMS:
        stream: TextIO = getattr(sys, path)
        return stream
    return Path(path).open("a")


def _timestamp(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created * 1000) % 1000:03d}Z"


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in SECRET_WORDS)
