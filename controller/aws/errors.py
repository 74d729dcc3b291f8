"""What AWS answers instead of doing as asked, in our words.

* CloudProviderError
  x AwsError             anything else AWS refuses; carries AWS's own code
  x ThrottledError       slow down; nothing may be concluded
  x UnreachableError     nobody answered; nothing may be concluded
  x RequestError         we wrote what AWS's own rules forbid: a fault of ours, never sent
  x NodeClaimNotFoundError, InsufficientCapacityError, CreateError: see the port

Codes are kept as sets, each with the question it answers.
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
    }
)
"""Another offering, or the same one later, may do. So it is where spot costs more than on-demand:
that is the most EC2 takes for it.
"""

VCPU_QUOTA = frozenset({"MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"})
"""The account may have no more vCPUs of this kind of machine; see `quotas`."""

FLEET_QUOTA = "MaxFleetCountExceeded"
"""The account may have no more fleets, and so no more launches of whatever kind."""

SPREAD_LIMIT = "limit of instances in this spread placement group"
"""What EC2 says, under various codes, when a group has its seven machines in a zone."""

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
_NOT_TAKEN = re.compile(
    r"InvalidParameter\w*|Invalid\w+\.Malformed|InvalidInput|Validation(Error|Exception)"
)
"""Something that was named has a form or a value that AWS does not take."""

_NOT_RECOGNIZED = frozenset(
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
"""AWS does not know who asks, or thinks that it was long ago. It has not looked at the question."""

_NOT_VALIDATED = "not able to validate the provided access credentials"
"""What EC2 says then under `AuthFailure`, a code that means other things, too."""

SPOT_ROLE_MISSING = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
PROFILE_INVALID = "InstanceProfileNameInvalid"
TOKEN_REUSED = "IdempotentParameterMismatch"  # noqa: S105 - the name of an error
NO_CREDENTIALS = "NoCredentials"
_TO_BECOME_THE_ROLE = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity"})
"""What botocore asks of STS before the first call, and when credentials have grown old."""

DRY_RUN_PASSED = "DryRunOperation"


class AwsError(CloudProviderError):
    """AWS refused; `code` is its own word for it, `operation` what was asked."""

    def __init__(self, message: str, *, code: str, operation: str = "", status: int = 0) -> None:
        super().__init__(message, reason=launch_reason(code, message))
        self.code = code
        self.operation = operation
        self.status = status

    @property
    def is_not_found(self) -> bool:
        """Whether what was named does not exist."""
        return self.code in NOT_FOUND

    @property
    def is_unauthorized(self) -> bool:
        """Whether a permission is missing."""
        return self.code in UNAUTHORIZED

    @property
    def is_not_taken(self) -> bool:
        """Whether a value that was sent is none of those that AWS takes."""
        return _NOT_TAKEN.fullmatch(self.code) is not None

    @property
    def is_server_fault(self) -> bool:
        """Whether AWS itself failed, so that asking again may help."""
        return self.status >= 500 or self.code in {"InternalError", "InternalFailure"}


class UnreachableError(CloudProviderError):
    """AWS could not be reached or has no credentials for us; nothing may be concluded."""

    reason = "CloudUnreachable"


class RequestError(CloudProviderError):
    """The request breaks AWS's own rules and was never sent: trying again cannot help."""

    reason = "InvalidRequest"


@contextmanager
def translated(operation: str = "") -> Iterator[None]:
    """Raise our errors in place of botocore's, with theirs chained."""
    try:
        yield
    except ClientError as exc:
        raise _from_client(exc, operation) from exc
    except (NoCredentialsError, PartialCredentialsError) as exc:
        raise UnreachableError(
            f"{operation}: {exc}; give the controller's service account an EKS Pod Identity "
            "association or an eks.amazonaws.com/role-arn annotation",
            reason=NO_CREDENTIALS,
        ) from exc
    except ParamValidationError as exc:
        raise RequestError(
            f"{operation}: the controller wrote a request that AWS does not take, which is a fault "
            f"of its own; please report it: {exc}"
        ) from exc
    except (BotoCoreError, HTTPClientError) as exc:
        raise UnreachableError(f"{operation}: {exc}") from exc


_ENCODED = re.compile(r"\s*Encoded authorization failure message: \S+")


def _from_client(exc: ClientError, operation: str) -> CloudProviderError:
    error = exc.response.get("Error", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    asked = operation or str(exc.operation_name)
    status = int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    # Hundreds of characters that no person can read, and others every time.
    text = f"{asked}: {_ENCODED.sub('', message)} ({code})"
    if code in THROTTLED:
        return ThrottledError(text)
    if exc.operation_name in _TO_BECOME_THE_ROLE:
        # Of what was to be asked then this says nothing.
        return UnreachableError(
            f"{text}; the trust policy of the controller's role must let its service account "
            f"call {exc.operation_name}",
            reason=NO_CREDENTIALS,
        )
    if code in _NOT_RECOGNIZED or _NOT_VALIDATED in message:
        return UnreachableError(
            f"{text}; the controller's credentials are not valid any more, or the clock of its "
            "node is wrong",
            reason=NO_CREDENTIALS,
        )
    return AwsError(text, code=code, operation=asked, status=status)


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


def launch_reason(code: str, message: str) -> str:
    """Return the CamelCase reason a launch failed for, from AWS's code and text."""
    text = f"{code} {message}"
    return next((reason for reason, form in _REASONS if form.search(text)), "LaunchFailed")


@dataclass(frozen=True, slots=True)
class FleetError:
    """One line of `Errors` of a fleet: an offering that was refused, and why."""

    code: str
    message: str
    instance_type: str = ""
    zone: str = ""
    subnet_id: str = ""

    @property
    def is_insufficient_capacity(self) -> bool:
        """Whether another offering may do."""
        return self.code in INSUFFICIENT_CAPACITY or self.is_full_group

    @property
    def is_full_group(self) -> bool:
        """Whether a spread placement group takes no more machines in the zone."""
        return SPREAD_LIMIT in self.message


def launch_failure(errors: Iterable[FleetError]) -> CloudProviderError:
    """Return what to raise when a fleet brought no instance."""
    every = list(errors)
    lines = sorted({f"{e.code}: {e.message}" for e in every})
    text = "; ".join(lines) or "EC2 launched nothing and gave no reason"
    if every and all(e.is_insufficient_capacity for e in every):
        quota = next((e for e in every if e.code in {*VCPU_QUOTA, FLEET_QUOTA}), None)
        return InsufficientCapacityError(
            f"with fleet error(s), {text}",
            reason=launch_reason(quota.code, quota.message) if quota else None,
        )
    decisive = next((e for e in every if not e.is_insufficient_capacity), None)
    reason = launch_reason(decisive.code, decisive.message) if decisive else "LaunchFailed"
    return CreateError(f"creating instance, with fleet error(s), {text}", reason=reason)
