"""Credentials that the API server refuses are reported, and end the process after a while."""

from __future__ import annotations

import asyncio
import logging

import pytest

from controller.apiserver.errors import ForbiddenError, UnauthorizedError
from controller.kube.errors import refusal
from controller.manager.authentication import (
    REFUSED_FOR,
    Authentication,
    CredentialsRefusedError,
)
from controller.manager.loops import report_failure
from controller.telemetry.logs import ChangeMonitor

pytestmark = pytest.mark.virtual_clock


async def test_refused_credentials_are_one_error_and_make_the_replica_not_ready(
    caplog: pytest.LogCaptureFixture,
) -> None:
    authentication = Authentication()

    for status in (200, 401, 0, 401, 401):
        authentication.observe(status)

    (problem,) = authentication.problems
    assert "401 Unauthorized" in problem
    (error,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
    assert "ServiceAccount was deleted and created again" in error


async def test_a_missing_right_is_no_problem_of_the_credentials() -> None:
    authentication = Authentication()
    authentication.observe(403)

    assert authentication.problems == ()


async def test_credentials_that_are_accepted_again_make_the_replica_ready() -> None:
    authentication = Authentication()
    watching = asyncio.create_task(authentication.watch())
    for _ in range(3):
        authentication.observe(401)
        await asyncio.sleep(REFUSED_FOR.total_seconds() / 2)
        authentication.observe(200)

    assert authentication.problems == ()
    assert not watching.done()
    watching.cancel()


async def test_credentials_that_stay_refused_end_the_process_with_the_remedy() -> None:
    authentication = Authentication()
    authentication.observe(401)

    with pytest.raises(CredentialsRefusedError, match="kubectl rollout restart"):
        await asyncio.wait_for(authentication.watch(), 2 * REFUSED_FOR.total_seconds())


def test_refused_credentials_are_no_missing_right() -> None:
    assert isinstance(refusal(401, b"Unauthorized"), UnauthorizedError)
    assert isinstance(refusal(403, b"Forbidden"), ForbiddenError)


def test_reconcilers_do_not_report_refused_credentials_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    report_failure(UnauthorizedError("Unauthorized", status=401), 20, ChangeMonitor())

    assert caplog.records == []
