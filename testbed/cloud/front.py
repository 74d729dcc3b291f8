"""The WSGI application of the region: authenticate, check, inject faults, dispatch."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable
from typing import Any

from testbed.cloud import console, queues
from testbed.cloud.behavior import consistency, limits, listings, refusals
from testbed.cloud.ec2 import networks
from testbed.cloud.iam import authorization, identity
from testbed.cloud.operations import OPERATIONS
from testbed.cloud.protocol import backends, validation
from testbed.cloud.protocol.errors import AwsError, not_implemented
from testbed.cloud.protocol.wire import Call, Response, read_call, write_error, write_result
from testbed.cloud.state.world import World

log = logging.getLogger(__name__)

StartResponse = Callable[..., Any]


WITHOUT_REGION = frozenset({"iam", "pricing", "sts"})
"""Services that clients call in a region other than the cluster's."""


class Front:
    """The WSGI application that serves the region.

    It answers the control API, the Pod Identity agent and every AWS API. An AWS call passes these
    steps: authentication, parameter validation, limits, eventual consistency, authorization,
    injected faults, and the operation itself, here or in moto.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._moto = backends.application()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        body = _read(environ)
        path = environ["PATH_INFO"]
        if path.startswith("/testbed/"):
            response = console.answer(self._world, environ, body)
        elif path == "/v1/credentials":
            response = identity.answer_pod_identity(self._world, environ)
        else:
            response = self._aws(environ, body)
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            *response.headers,
        ]
        start_response(f"{response.status} Answered", headers)
        return [response.body]

    def _aws(self, environ: dict[str, Any], body: bytes) -> Response:
        call = read_call(environ, body)
        try:
            return self._answer(call, environ, body)
        except AwsError as error:
            if error.code == "NotImplementedInTestCloud":
                self._world.call_log.record_unimplemented(f"{call.service}:{call.operation}")
                log.error("%s", error.message)
            return write_error(call, error)
        except Exception as error:
            # A bug of the test cloud must reach the caller as an AWS error. Otherwise the test
            # would exercise the caller's handling of a broken connection.
            log.exception("%s:%s failed in the test cloud", call.service, call.operation)
            return write_error(
                call, AwsError("InternalError", f"{type(error).__name__}: {error}", status=500)
            )

    def _answer(self, call: Call, environ: dict[str, Any], body: bytes) -> Response:
        world = self._world
        caller = identity.caller(world, call)
        call.principal, call.largest_page = caller.arn, world.largest_page
        world.call_log.record_call(call.principal, f"{call.service}:{call.operation}")
        validation.check(call)
        limits.check(world, call)
        consistency.check(world, call)
        authorization.authorize(world, caller, call)
        fault = world.faults.take(call)
        if fault is None:
            return self._perform(call, environ, body)
        if not fault.after:
            world.faults.happen(fault)
            return self._perform(call, environ, body)
        response = self._perform(call, environ, body)
        world.faults.happen(fault)
        return response

    def _perform(self, call: Call, environ: dict[str, Any], body: bytes) -> Response:
        if call.region != self._world.region and call.service not in WITHOUT_REGION:
            raise AwsError(
                "RegionNotInTestCloud",
                f"The testbed's cloud is {self._world.region}; {call.service}:{call.operation} "
                f"was meant for {call.region}.",
            )
        own = OPERATIONS.get((call.service, call.operation))
        if own is None:
            return self._ask_moto(call, environ, body)
        with self._world.lock:
            result = own(self._world, call)
        return write_result(call, result)

    def _ask_moto(self, call: Call, environ: dict[str, Any], body: bytes) -> Response:
        refusals.check(self._world, call)
        paging = listings.concern(self._world, call)
        if paging is not None:
            return listings.answer(
                self._world, call, paging, body, lambda asked: self._of_moto(call, environ, asked)
            )
        return self._of_moto(call, environ, body)

    def _of_moto(self, call: Call, environ: dict[str, Any], body: bytes) -> Response:
        answered: dict[str, Any] = {}
        environ = {**environ, "CONTENT_LENGTH": str(len(body))}

        def start_response(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            answered["status"] = int(status.split()[0])
            answered["headers"] = headers

        with queues.keeping_policy(self._world, call):
            try:
                parts = self._moto({**environ, "wsgi.input": io.BytesIO(body)}, start_response)
                content = b"".join(parts)
            except NotImplementedError as error:
                raise not_implemented(call.service, call.operation) from error
        headers = dict(answered["headers"])
        content_type = headers.pop("Content-Type", "text/xml")
        headers.pop("Content-Length", None)
        if answered["status"] >= 400 and content_type.startswith("text/html"):
            if b"<ErrorResponse" not in content and b"<Errors>" not in content:
                raise not_implemented(call.service, call.operation)
            content_type = "text/xml"
        response = Response(answered["status"], content, content_type, tuple(headers.items()))
        if response.status < 400:
            networks.forget_tags(self._world, call)
            consistency.made_by(self._world, call, response)
        return response


def _read(environ: dict[str, Any]) -> bytes:
    length = environ.get("CONTENT_LENGTH")
    if length:
        return bytes(environ["wsgi.input"].read(int(length)))
    if environ.get("HTTP_TRANSFER_ENCODING") == "chunked":
        return bytes(environ["wsgi.input"].read())
    return b""
