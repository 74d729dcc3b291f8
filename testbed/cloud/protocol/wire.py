"""Wire protocols: parse a request into a `Call`, write a result or an error as a response.

Shapes come from botocore's service models, which the callers use as well. This module writes
EC2's XML itself, because EC2's listings are long and moto's writer is slow. The other
protocols use moto's writers.
"""

from __future__ import annotations

import io
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from botocore.parsers import create_parser

from testbed.cloud.protocol import backends, ec2form
from testbed.cloud.protocol.errors import AwsError, dry_run_succeeded, missing_parameter

SERVICE_OF_SIGNING_NAME = {"tagging": "resourcegroupstaggingapi"}
"""Service name in a signature → name of its service model, where they differ."""

MODELLED = frozenset(
    {
        "arc-zonal-shift",
        "ec2",
        "ecr",
        "eks",
        "events",
        "iam",
        "pricing",
        "resourcegroupstaggingapi",
        "sqs",
        "ssm",
        "sts",
    }
)
"""Services whose requests are parsed by their model, and so can be authorized by resource."""

CREDENTIAL = re.compile(r"Credential=([^/]+)/\d+/([^/]+)/([^/]+)/")


@dataclass(slots=True)
class Call:
    """One request to an AWS API.

    `parameters` has the structure of the operation's input in botocore's model. It is empty
    for services that are not in `MODELLED`.
    """

    service: str
    operation: str
    region: str
    parameters: dict[str, Any]
    access_key: str | None
    session_token: str | None
    protocol: str = ""
    principal: str = "anonymous"
    largest_page: int | None = None
    """Largest page size of a listing, whatever the caller asks for; None is no limit."""
    request_id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def get(self, name: str, default: Any = None) -> Any:
        """Return a parameter, or the default if it is absent."""
        value = self.parameters.get(name)
        return default if value is None else value

    def require(self, name: str) -> Any:
        """Return a required parameter. Raises AwsError (MissingParameter) if absent or empty."""
        value = self.parameters.get(name)
        if value is None or value == "":
            raise missing_parameter(name)
        return value

    def subset(self, *names: str) -> dict[str, Any]:
        """Return those of the named parameters that the call has."""
        return {name: self.get(name) for name in names if self.get(name) is not None}

    def stop_if_dry_run(self) -> None:
        """Raise AwsError (DryRunOperation) for a dry run; called after an operation's checks."""
        if self.parameters.get("DryRun"):
            raise dry_run_succeeded()


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response."""

    status: int
    body: bytes
    content_type: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Xml:
    """A result that is XML already, for listings assembled from cached fragments."""

    text: str


@lru_cache(maxsize=64)
def model(service: str) -> Any:
    """Return botocore's service model of a service, with moto's shapes."""
    return backends.get_service_model(service)


def read_call(environ: Mapping[str, Any], body: bytes) -> Call:
    """Parse a request: service, operation, region, credentials and parameters."""
    authorization = environ.get("HTTP_AUTHORIZATION", "")
    match = CREDENTIAL.search(authorization)
    access_key, region, signing_name = match.groups() if match else (None, "", "")
    service = SERVICE_OF_SIGNING_NAME.get(signing_name, signing_name)
    form: dict[str, list[str]] = {}
    if environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded"):
        form = parse_qs(body.decode(), keep_blank_values=True)
    if not service and form.get("Action", [""])[0] == "AssumeRoleWithWebIdentity":
        service = "sts"
    operation, parameters, protocol = _read_operation(service, environ, body, form)
    return Call(
        service=service,
        operation=operation,
        region=region,
        parameters=parameters,
        access_key=access_key,
        session_token=environ.get("HTTP_X_AMZ_SECURITY_TOKEN"),
        protocol=protocol,
    )


def _read_operation(
    service: str, environ: Mapping[str, Any], body: bytes, form: Mapping[str, list[str]]
) -> tuple[str, dict[str, Any], str]:
    named = form.get("Action", [""])[0] or environ.get("HTTP_X_AMZ_TARGET", "").split(".")[-1]
    fallback = named or f"{environ.get('REQUEST_METHOD')} {environ.get('PATH_INFO')}"
    if service not in MODELLED:
        return fallback, {}, ""
    if service == "ec2":
        service_model = model(service)
        if named not in service_model.operation_names:
            return fallback, {}, ""
        shape = service_model.operation_model(named).input_shape
        return named, ec2form.read(shape, form) if shape is not None else {}, "ec2"
    request = backends.Request({**environ, "wsgi.input": io.BytesIO(body)})
    try:
        operation, uri_parameters = backends.get_service_router(service).match(request)
    except backends.NotFound:
        return fallback, {}, ""
    protocol = backends.determine_request_protocol(operation.service_model, request.content_type)
    parsed = backends.PROTOCOL_PARSERS[protocol](operation).parse(
        {
            "method": request.method,
            "values": request.values,
            "headers": request.headers,
            "body": body,
            "url_path": request.path,
            "url_params": uri_parameters,
        }
    )
    return str(operation.name), {**(parsed or {}), **uri_parameters}, protocol


def write_result(call: Call, result: Mapping[str, Any] | Xml | None) -> Response:
    """Return the response for a result, in the protocol of the service."""
    operation = model(call.service).operation_model(call.operation)
    if call.service == "ec2":
        text = result.text if isinstance(result, Xml) else _ec2_members(operation, result or {})
        name = f"{call.operation}Response"
        body = (
            f'<{name} xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
            f"<requestId>{call.request_id}</requestId>{text}</{name}>"
        )
        return Response(200, body.encode(), "text/xml;charset=UTF-8")
    assert not isinstance(result, Xml)
    service_model = operation.service_model
    serializer = backends.get_serializer_class(service_model.service_name, call.protocol)
    written = serializer(operation_model=operation).serialize(dict(result or {}))
    headers = dict(written["headers"])
    content_type = headers.pop("Content-Type", "application/json")
    text = written["body"]
    return Response(
        written["status_code"],
        text.encode() if isinstance(text, str) else text,
        content_type,
        (*headers.items(), ("x-amzn-RequestId", call.request_id)),
    )


def read_result(call: Call, response: Response) -> dict[str, Any]:
    """Parse a response of moto as a client would."""
    operation = model(call.service).operation_model(call.operation)
    read: dict[str, Any] = create_parser(operation.service_model.resolved_protocol).parse(
        {"body": response.body, "headers": dict(response.headers), "status_code": response.status},
        operation.output_shape,
    )
    read.pop("ResponseMetadata", None)
    return read


def write_error(call: Call, error: AwsError) -> Response:
    """Return the response for an error, in the protocol of the service."""
    code, message = escape(error.code), escape(error.message)
    if call.service == "ec2":
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            f"<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error>"
            f"</Errors><RequestID>{call.request_id}</RequestID></Response>"
        )
        return Response(error.status, body.encode(), "text/xml;charset=UTF-8")
    fault = "Sender" if error.status < 500 else "Receiver"
    if _uses_query_protocol(call.service):
        body = (
            f"<ErrorResponse><Error><Type>{fault}</Type><Code>{code}</Code>"
            f"<Message>{message}</Message></Error>"
            f"<RequestId>{call.request_id}</RequestId></ErrorResponse>"
        )
        return Response(error.status, body.encode(), "text/xml")
    content = {"__type": error.code, "message": error.message, "Message": error.message}
    return Response(
        error.status,
        json.dumps(content).encode(),
        "application/x-amz-json-1.1",
        (
            ("x-amzn-ErrorType", error.code),
            ("x-amzn-query-error", f"{error.code};{fault}"),
            ("x-amzn-RequestId", call.request_id),
        ),
    )


def _uses_query_protocol(service: str) -> bool:
    if service in MODELLED:
        return str(model(service).protocol) in ("query", "rest-xml")
    return service in ("s3", "autoscaling", "cloudformation", "elasticloadbalancing", "monitoring")


def ec2_items(operation: str, member: str, values: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return each value of a listing as its own `<item>`, for caching and later assembly.

    `member` is the listing's name in the operation's output.
    """
    shape = model("ec2").operation_model(operation).output_shape.members[member]
    return [_element("item", shape.member, value) for value in values]


def ec2_list(operation: str, member: str, items: Iterable[str], *, next_token: str | None) -> Xml:
    """Return the answer with the listing `member`, assembled from items of `ec2_items`."""
    shape = model("ec2").operation_model(operation).output_shape.members[member]
    name = shape.serialization.get("name", member)
    token = f"<nextToken>{next_token}</nextToken>" if next_token else ""
    return Xml(f"<{name}>{''.join(items)}</{name}>{token}")


def _ec2_members(operation: Any, result: Mapping[str, Any]) -> str:
    shape = operation.output_shape
    return _members(shape, result) if shape is not None else "<return>true</return>"


def _members(shape: Any, value: Mapping[str, Any]) -> str:
    parts = []
    for key, member in shape.members.items():
        inner = value.get(key)
        if inner is not None:
            parts.append(_element(member.serialization.get("name", key), member, inner))
    return "".join(parts)


def _element(name: str, shape: Any, value: Any) -> str:
    kind = shape.type_name
    if kind == "structure":
        return f"<{name}>{_members(shape, value)}</{name}>"
    if kind == "list":
        inner_name = shape.member.serialization.get("name", "item")
        inner = "".join(_element(inner_name, shape.member, each) for each in value)
        return f"<{name}>{inner}</{name}>"
    return f"<{name}>{_scalar(kind, value)}</{name}>"


def _scalar(kind: str, value: Any) -> str:
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "timestamp":
        return iso(value)
    return escape(str(value))


def iso(when: datetime) -> str:
    """Format a time as EC2 does: UTC, milliseconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"
