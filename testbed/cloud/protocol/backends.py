"""The only module that imports moto: its application, backends and protocol code.

A new version of moto can therefore only break this module. moto keeps its state per process,
so a process runs one test cloud.
"""

import os
from collections.abc import Callable, Sequence
from copy import copy
from functools import cache
from types import SimpleNamespace
from typing import Any

# moto reads these on import, or when it first creates a backend. Its default images are
# 1,299 AMIs that no EKS node uses; the test cloud seeds its own instead.
os.environ.setdefault("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
os.environ.setdefault("MOTO_DISABLE_GLOBAL_CORS", "true")

import moto.backend_index
import moto.backends
from botocore.model import OperationNotFoundError
from moto.core.base_backend import BackendDict
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.request import Request, determine_request_protocol
from moto.core.routing import NotFound, get_service_router
from moto.core.serialize import get_serializer_class
from moto.core.utils import get_service_model
from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import (
    INSTANCE_TYPE_OFFERINGS,
    INSTANCE_TYPES,
    InstanceType,
)
from moto.events.models import Rule, events_backends
from moto.iam.models import IAMBackend, iam_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.settings import load_iam_aws_managed_policies
from moto.sqs.models import sqs_backends
from moto.ssm.models import Parameter, ssm_backends

__all__ = [
    "ACCOUNT",
    "INSTANCE_TYPES",
    "INSTANCE_TYPE_FILTERS",
    "INSTANCE_TYPE_OFFERINGS",
    "PROTOCOL_PARSERS",
    "NotFound",
    "OperationNotFoundError",
    "Request",
    "application",
    "determine_request_protocol",
    "ec2",
    "events",
    "guard_deliveries",
    "get_serializer_class",
    "get_service_model",
    "get_service_router",
    "iam",
    "knows",
    "profile_named",
    "put_ssm_parameter",
    "reset",
    "role_at",
    "role_named",
    "sqs",
    "ssm",
    "warm",
]

ACCOUNT = "123456789012"
PARTITION = "aws"

# moto lists its folder for every request, to find out whether the host names one of its modules.
_MODULES = tuple(moto.backends.list_of_moto_modules())
moto.backends.list_of_moto_modules = lambda: _MODULES

INSTANCE_TYPE_FILTERS: dict[str, list[str]] = InstanceType._filter_attributes
"""Filter name of DescribeInstanceTypes → path of the filtered value."""


def application() -> Any:
    """Return moto's WSGI application, which selects the service by the signature's scope."""
    return DomainDispatcherApplication(create_backend_app)


def reset() -> None:
    """Discard all of moto's state in this process.

    moto's own reset first builds every backend again, which takes about 0.5 s.
    """
    for backends in BackendDict._instances:
        backends.clear()
    BackendDict._instances.clear()


@cache
def _managed_policies(region: str, account: str) -> Sequence[Any]:
    return list(_load_managed_policies(SimpleNamespace(region_name=region, account_id=account)))


_load_managed_policies = IAMBackend._init_aws_policies


def _init_aws_policies(backend: IAMBackend) -> list[Any]:
    """Return a copy of each policy, because a policy counts the roles that it is attached to.

    The first request with an unknown access key creates a backend for each of six partitions.
    Reading 1,400 policies takes about 0.15 s, and only the test cloud's partition needs them.
    """
    if not load_iam_aws_managed_policies() or backend.region_name != PARTITION:
        return []
    return [copy(policy) for policy in _managed_policies(backend.region_name, backend.account_id)]


IAMBackend._init_aws_policies = _init_aws_policies


def ec2(region: str) -> Any:
    """Return moto's EC2 backend of a region: VPCs, subnets, security groups and all EC2 tags."""
    return ec2_backends[ACCOUNT][region]


def iam() -> Any:
    """Return moto's IAM backend of the account."""
    return iam_backends[ACCOUNT][PARTITION]


def role_named(name: str) -> Any | None:
    """Return a role by name, or None if it does not exist."""
    return next((role for role in list(iam().roles.values()) if role.name == name), None)


def role_at(arn: str) -> Any | None:
    """Return a role by ARN, or None if it does not exist."""
    return next((role for role in list(iam().roles.values()) if role.arn == arn), None)


def profile_named(name: str) -> Any | None:
    """Return an instance profile by name, or None if it does not exist."""
    profiles = list(iam().instance_profiles.values())
    return next((profile for profile in profiles if profile.name == name), None)


def sqs(region: str) -> Any:
    """Return moto's SQS backend of a region."""
    return sqs_backends[ACCOUNT][region]


def ssm(region: str) -> Any:
    """Return moto's SSM backend of a region, which holds Parameter Store."""
    return ssm_backends[ACCOUNT][region]


def events(region: str) -> Any:
    """Return moto's EventBridge backend of a region."""
    return events_backends[ACCOUNT][region]


def knows(service: str, region: str) -> bool:
    """Return whether moto implements a service."""
    host = f"http://{service}.{region}.amazonaws.com"
    return any(pattern.match(host) for _, pattern in moto.backend_index.backend_url_patterns)


def _with_account(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event with its account, which moto omits; a transformed event stays unchanged."""
    if "detail-type" not in event:
        return event
    return {**event, "account": ACCOUNT}


Guard = Callable[[str, str], bool]
"""(queue name, ARN of the rule) → whether EventBridge may deliver the event."""

_send_to_queue = Rule._send_to_sqs_queue


def guard_deliveries(guard: Guard | None) -> None:
    """Deliver events to queues only if a guard allows it; None restores moto's behavior.

    moto itself delivers without checking the queue's policy.
    """

    def send(rule: Any, resource_id: str, event: dict[str, Any], group_id: Any = None) -> None:
        if guard is None or guard(resource_id, rule.arn):
            _send_to_queue(rule, resource_id, _with_account(event), group_id)

    Rule._send_to_sqs_queue = _send_to_queue if guard is None else send


def warm(region: str) -> None:
    """Create moto's backends now, so that the first call does not wait about 1 s for them."""
    for backend in (ec2, sqs, ssm, events):
        backend(region)
    iam()


def put_ssm_parameter(region: str, *, name: str, value: str, now: float) -> None:
    """Set an SSM parameter under `/aws/`, which the API does not allow.

    `now` is the parameter's modification time, in seconds since 1970.
    """
    ssm(region)._parameters[name] = [
        Parameter(
            account_id=ACCOUNT,
            name=name,
            value=value,
            parameter_type="String",
            description=None,
            allowed_pattern=None,
            keyid=None,
            last_modified_date=now,
            version=1,
            data_type="text",
        )
    ]
