"""A log line is one JSON object with the fields that dashboards use."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.telemetry import logs


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield tmp_path / "log"
    for handler in list(root.handlers):
        root.removeHandler(handler)
        if handler not in handlers:
            handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_log_line_has_message_time_logger_and_object(file: Path) -> None:
    logs.configure("info", [str(file)])
    with logs.about("nodeclaim.lifecycle", "default-1"):
        logging.getLogger("controller.x").info(
            "launched %s", "it", extra={"NodeClaim": "default-1"}
        )
    (line,) = lines(file)
    assert line["level"] == "INFO"
    assert line["logger"] == "controller.x"
    assert line["message"] == "launched it"
    assert line["NodeClaim"] == "default-1"
    assert line["controller"] == "nodeclaim.lifecycle"
    assert "name" not in line, "NodeClaim has it"
    assert line["reconcileID"]
    assert line["time"].endswith("Z")


def test_a_log_line_about_another_object_names_both(file: Path) -> None:
    logs.configure("info", [str(file)])
    with logs.about("node.termination", "web/node-1"):
        logging.getLogger("x").info("moved", extra={"Node": "node-2"})
    (line,) = lines(file)
    assert (line["namespace"], line["name"], line["Node"]) == ("web", "node-1", "node-2")


def test_a_log_line_outside_a_reconciliation_has_no_object(file: Path) -> None:
    logs.configure("info", [str(file)])
    with logs.about("provisioner"):
        pass
    logging.getLogger("x").info("hello")
    assert "controller" not in lines(file)[0]


def test_levels_below_the_setting_are_left_out(file: Path) -> None:
    logs.configure("error", [str(file)])
    logging.getLogger("x").info("hello")
    logging.getLogger("x").error("oh")
    assert [line["message"] for line in lines(file)] == ["oh"]


def test_requests_that_kopf_repeats_are_no_errors_but_its_failures_are(file: Path) -> None:
    logs.configure("info", [str(file)])
    logging.getLogger("kopf._cogs.clients.watching").error("Request attempt #1/9 failed")
    logging.getLogger("kopf._core.reactor.orchestration").error("Watcher has failed")
    assert [line["message"] for line in lines(file)] == ["Watcher has failed"]


def test_asyncio_reports_missing_file_descriptors_once(file: Path) -> None:
    logs.configure("info", [str(file)])
    for _ in range(100):
        logging.getLogger("asyncio").error("socket.accept() out of system resource")
    assert len(lines(file)) == 1


def test_an_exception_is_logged_with_its_stack(file: Path) -> None:
    logs.configure("info", [str(file)])
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("x").exception("failed")
    (line,) = lines(file)
    assert line["error"] == "wrong"
    assert "ValueError" in line["stacktrace"]


def test_secrets_are_not_written(file: Path) -> None:
    logs.configure("info", [str(file)])
    logging.getLogger("x").info("signing in", extra={"sessionToken": "abc", "AccessSecret": "def"})
    text = file.read_text()
    assert "abc" not in text
    assert "def" not in text


def test_a_value_json_does_not_know_is_written_as_text(file: Path) -> None:
    logs.configure("info", [str(file)])
    logging.getLogger("x").info("hello", extra={"where": Path("/somewhere")})
    assert lines(file)[0]["where"] == "/somewhere"


def test_a_logging_failure_is_reported_to_the_configured_output(file: Path, tmp_path: Path) -> None:
    complaints = tmp_path / "complaints"
    logs.configure("info", [str(file)], [str(complaints)])
    logging.getLogger("x").info("%d of %d", 1)
    logging.getLogger("x").info("the next")

    output = complaints.read_text()
    assert "a log line was lost: x: '%d of %d'" in output
    assert "TypeError" in output
    assert [line["message"] for line in lines(file)] == ["the next"]


def test_an_unchanged_message_is_logged_again_after_ten_minutes() -> None:
    now = 0.0
    changes = logs.ChangeMonitor(clock=lambda: now)

    assert [changes.has_changed("a", "x"), changes.has_changed("b", "x")] == [True, True]
    assert not changes.has_changed("a", "x")
    assert changes.has_changed("a", "y")
    now = 601.0
    assert changes.has_changed("a", "y")


def test_a_command_warns_in_a_sentence_with_its_fields_and_without_secrets() -> None:
    fields = {
        "spot": "AccessDenied",
        "api-token": "abc",
        "msg": "failed to update %s",
        "args": ("prices",),
    }
    record = logging.makeLogRecord({"levelname": "WARNING", "levelno": logging.WARNING, **fields})

    assert logs.Sentences().format(record) == (
        "warning: failed to update prices (spot: AccessDenied; api-token: REDACTED)"
    )


def test_a_command_reports_the_error_of_a_failure() -> None:
    error = ValueError("the file is empty")
    fields = {"msg": "cannot read", "exc_info": (ValueError, error, None)}
    record = logging.makeLogRecord({"levelname": "ERROR", "levelno": logging.ERROR, **fields})

    assert logs.Sentences().format(record) == "error: cannot read (the file is empty)"
