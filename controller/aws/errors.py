"""AWS errors, translated from those of botocore.

* CloudProviderError
  x AwsError             any other error of AWS; carries the error code
  x ThrottledError       AWS throttles the controller; the state of the resource is unknown
  x UnreachableError     no response, or no credentials; the state of the resource is unknown
  x RequestError         an invalid request that was never sent: a bug of the controller
  x NodeClaimNotFoundError, InsufficientCapacityError, CreateError:
                         see `controller.cloudprovider.errors`

Error codes are grouped in sets by their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)

from controller.cloudprovider.errors import (
    CloudProviderError,
    CreateError,
    InsufficientCapacityError,
    ThrottledError,
)

INSUFFICIENT_CAPACITY = frozenset(
    {
        "InsufficientInstanceCapacity",
        "MaxSpotInstanceCountExceeded",
        "SpotMaxPriceTooLow",
        "VcpuLimitExceeded",
        "UnfulfillableCapacity",
        "Unsupported",
        "InsufficientFreeAddressesInSubnet",
        "MaxFleetCountExceeded",
        "ReservationCapacityExceeded",
        "InvalidCapacityReservationState.Unavailable",
    }
)
"""Codes after which another offering, or the same one later, may be launched.

They include SpotMaxPriceTooLow: the spot price exceeds the on-demand price, EC2's maximum for spot.
"""

VCPU_QUOTA = frozenset({"MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"})
"""Codes of an exhausted vCPU quota of a group of instance families; see `quotas`."""

FLEET_QUOTA = "MaxFleetCountExceeded"
"""Code of an exhausted quota of fleets, which prevents every launch."""

SPREAD_LIMIT = "limit of instances in this spread placement group"
"""Part of EC2's message, under various codes, if a spread group has 7 instances in a zone."""

NO_ADDRESSES = "InsufficientFreeAddressesInSubnet"

NOT_FOUND = frozenset(
    {
        "InvalidInstanceID.NotFound",
        "InvalidLaunchTemplateName.NotFoundException",
        "InvalidLaunchTemplateId.NotFound",
        "InvalidPlacementGroup.Unknown",
        "InvalidPlacementGroupId.NotFound",
        "InvalidCapacityReservationId.NotFound",
        "InvalidSubnetID.NotFound",
        "InvalidGroup.NotFound",
        "InvalidGroupId.NotFound",
        "InvalidAMIID.NotFound",
        "NoSuchEntity",
        "ParameterNotFound",
        "ParameterVersionNotFound",
        "AWS.SimpleQueueService.NonExistentQueue",
        "QueueDoesNotExist",
        "ResourceNotFoundException",
    }
)
LAUNCH_TEMPLATE_NOT_FOUND = frozenset(
    {"InvalidLaunchTemplateName.NotFoundException", "InvalidLaunchTemplateId.NotFound"}
)
ALREADY_EXISTS = frozenset(
    {"InvalidLaunchTemplateName.AlreadyExistsException", "EntityAlreadyExists"}
)
THROTTLED = frozenset(
    {
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "RequestThrottled",
        "RequestThrottledException",
        "EC2ThrottledException",
        "SlowDown",
        "PriorRequestNotComplete",
    }
)
UNAUTHORIZED = frozenset(
    {
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "UnauthorizedAccess",
        "AWS.SimpleQueueService.AccessDenied",
    }
)
_INVALID_PARAMETER = re.compile(
    r"InvalidParameter\w*|Invalid\w+\.Malformed|InvalidInput|Validation(Error|Exception)"
)
"""Codes of a parameter whose format or value AWS does not accept."""

_UNAUTHENTICATED = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
"""Codes of requests that AWS could not authenticate or that have expired."""

_NOT_VALIDATED = "not able to validate the provided access credentials"
"""EC2's message in that case; its code `AuthFailure` has other meanings, too."""

SPOT_ROLE_MISSING = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
PROFILE_INVALID = "InstanceProfileNameInvalid"
TOKEN_REUSED = "IdempotentParameterMismatch"  # noqa: S105 - the name of an error
NO_CREDENTIALS = "NoCredentials"
_ASSUME_ROLE = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity"})
"""The STS operations that botocore calls before the first request and to renew credentials."""

DRY_RUN_PASSED = "DryRunOperation"


class AwsError(CloudProviderError):
    """AWS returned an error; `code` is AWS's code, and `operation` the operation of boto3."""

    def __init__(self, message: str, *, code: str, operation: str = "", status: int = 0) -> None:
        super().__init__(message, reason=launch_reason(code, message))
        self.code = code
        self.operation = operation
        self.status = status

    @property
    def is_not_found(self) -> bool:
        """Whether the resource that the request named does not exist."""
        return self.code in NOT_FOUND

    @property
    def is_unauthorized(self) -> bool:
        """Whether the controller lacks a permission."""
        return self.code in UNAUTHORIZED

    @property
    def is_invalid_parameter(self) -> bool:
        """Whether AWS does not accept the format or value of a parameter."""
        return _INVALID_PARAMETER.fullmatch(self.code) is not None

    @property
    def is_server_fault(self) -> bool:
        """Whether AWS itself failed, so that a retry may succeed."""
        return self.status >= 500 or self.code in {"InternalError", "InternalFailure"}


class UnreachableError(CloudProviderError):
    """AWS did not respond or rejected the credentials: the state of the resource is unknown."""

    reason = "CloudUnreachable"


class RequestError(CloudProviderError):
    """The request is invalid and was never sent: a retry cannot succeed."""

    reason = "InvalidRequest"


@contextmanager
def translated(operation: str = "") -> Iterator[None]:
    """Translate botocore's errors to those of this module within the context.

    `operation` is the operation of boto3, which messages name. The original error is chained.
    """
    try:
        yield
    except ClientError as exc:
        raise _from_client(exc, operation) from exc
    except (NoCredentialsError, PartialCredentialsError) as exc:
        raise UnreachableError(
            f"{operation}: {exc}",
            reason=NO_CREDENTIALS,
            remedy="give the controller's service account an EKS Pod Identity association or an "
            "eks.amazonaws.com/role-arn annotation",
        ) from exc
    except ParamValidationError as exc:
        raise RequestError(
            f"{operation}: the controller wrote an invalid request to AWS, which is a bug; please "
            f"report it: {exc}"
        ) from exc
    except (BotoCoreError, HTTPClientError) as exc:
        raise UnreachableError(f"{operation}: {exc}") from exc


_ENCODED = re.compile(r"\s*Encoded authorization failure message: \S+")


def _from_client(exc: ClientError, operation: str) -> CloudProviderError:
    error = exc.response.get("Error", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    name = operation or str(exc.operation_name)
    status = int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    # The encoded message is long, cannot be read, and differs on every call.
    text = f"{name}: {_ENCODED.sub('', message)} ({code})"
    if code in THROTTLED:
        return ThrottledError(text)
    if exc.operation_name in _ASSUME_ROLE:
        # The call to STS failed, not the operation itself.
        return UnreachableError(
            text,
            reason=NO_CREDENTIALS,
            remedy="the trust policy of the controller's role must allow its service account to "
            f"call {exc.operation_name}",
        )
    if code in _UNAUTHENTICATED or _NOT_VALIDATED in message:
        return UnreachableError(
            text,
            reason=NO_CREDENTIALS,
            remedy="the controller's credentials have expired or are invalid, or the clock of its "
            "node is wrong",
        )
    return AwsError(text, code=code, operation=name, status=status)


_REASONS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (reason, re.compile(pattern, re.IGNORECASE | re.DOTALL))
    for reason, pattern in (
        ("SpotSLRCreationFailed", r"ServiceLinkedRoleCreationNotPermitted"),
        ("UnauthorizedByPermissionBoundary", r"explicit deny in a permissions boundary"),
        ("UnauthorizedByServiceControlPolicy", r"service control policy"),
        ("UnauthorizedNoIdentityPolicy", r"no identity-based policy allows"),
        ("AMIAuthorizationFailure", r"not authorized for images?|AuthFailure.*ami-"),
        ("SecurityGroupSubnetVPCMismatch", r"belong to different networks"),
        (PROFILE_INVALID, r"Invalid IAM Instance Profile name"),
        ("LaunchTemplateNotFound", r"InvalidLaunchTemplate(?:Name|Id)\.NotFound"),
        ("UserDataSizeLimitExceeded", r"User data is limited to"),
        ("InvalidAMIID", r"InvalidAMIID\.Malformed"),
        ("AMINotFound", r"InvalidAMIID\.NotFound|image id .* does not exist"),
        ("RequestLimitExceeded", r"RequestLimitExceeded|Throttling"),
        ("InternalError", r"InternalError|InternalFailure|ServerInternal"),
        ("FreeTierIneligible", r"not eligible for Free Tier"),
        ("FleetQuotaExceeded", r"MaxFleetCountExceeded"),
        ("AccountPendingVerification", r"PendingVerification"),
        ("SpotQuotaExceeded", r"MaxSpotInstanceCountExceeded"),
        ("VCPULimitExceeded", r"VcpuLimitExceeded"),
        ("InsufficientFreeAddressesInSubnet", r"InsufficientFreeAddressesInSubnet"),
        ("Unauthorized", r"UnauthorizedOperation|AccessDenied|AuthFailure|not authorized"),
    )
)


UNKNOWN_REASON = "LaunchFailed"

REASONS_OF_OFFERINGS = frozenset({UNKNOWN_REASON, "FreeTierIneligible"})
"""The reasons of launch failures that another instance type or zone may not have."""


def launch_reason(code: str, message: str) -> str:
    """Return the CamelCase reason of a launch failure, from AWS's code and message."""
    text = f"{code} {message}"
    return next((reason for reason, form in _REASONS if form.search(text)), UNKNOWN_REASON)


@dataclass(frozen=True, slots=True)
class FleetError:
    """An item of `Errors` in a CreateFleet response: an offering that EC2 refused, and why."""

    code: str
    message: str
    instance_type: str = ""
    zone: str = ""
    subnet_id: str = ""

    @property
    def is_insufficient_capacity(self) -> bool:
        """Whether another offering, or the same one later, may be launched."""
        return self.code in INSUFFICIENT_CAPACITY or self.is_full_group

    @property
    def is_about_offering(self) -> bool:
        """Whether EC2 refused this instance type here, and may launch another one.

        EC2 names an instance type with every error, also if a permission or the AMI is the cause.
        Codes whose cause is unknown, such as `UnsupportedOperation`, are about the instance type.
        """
        return bool(self.instance_type) and (
            launch_reason(self.code, self.message) in REASONS_OF_OFFERINGS
        )

    @property
    def is_full_group(self) -> bool:
        """Whether a spread placement group has no more capacity in the zone."""
        return SPREAD_LIMIT in self.message


def launch_failure(errors: Iterable[FleetError]) -> CloudProviderError:
    """Return the exception to raise if CreateFleet launched no instance."""
    every = list(errors)
    lines = sorted({f"{e.code}: {e.message}" for e in every})
    text = "; ".join(lines) or "EC2 launched no instance and returned no error"
    if every and all(e.is_insufficient_capacity for e in every):
        quota = next((e for e in every if e.code in {*VCPU_QUOTA, FLEET_QUOTA}), None)
        return InsufficientCapacityError(
            f"with fleet error(s), {text}",
            reason=launch_reason(quota.code, quota.message) if quota else None,
            remedy="request a higher quota in Service Quotas" if quota else "",
        )
    decisive = next((e for e in every if not e.is_insufficient_capacity), None)
    reason = launch_reason(decisive.code, decisive.message) if decisive else UNKNOWN_REASON
    return CreateError(f"creating instance, with fleet error(s), {text}", reason=reason)
