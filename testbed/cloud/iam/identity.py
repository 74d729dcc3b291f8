"""Authentication: the caller is the testbed's admin or a role session.

Sessions come from the Pod Identity agent, AssumeRoleWithWebIdentity or AssumeRole, as on
EKS. All three check the role's trust policy first, unless the admin calls AssumeRole.
"""

from __future__ import annotations

import json
import logging
import secrets
import string
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from testbed.cloud.ec2 import networks
from testbed.cloud.eks import podidentity
from testbed.cloud.iam import policies
from testbed.cloud.operations import operation
from testbed.cloud.protocol import backends
from testbed.cloud.protocol.errors import AwsError
from testbed.cloud.protocol.wire import Call, Response
from testbed.cloud.state.inventory import Session
from testbed.cloud.state.tokens import TokenRefusedError, claims_of
from testbed.cloud.state.world import World, now

log = logging.getLogger(__name__)

ADMIN_KEY = "testing"
ADMIN_ARN = f"arn:aws:iam::{backends.ACCOUNT}:user/testbed-admin"
POD_IDENTITY_AUDIENCE = "pods.eks.amazonaws.com"
WEB_IDENTITY_AUDIENCE = "sts.amazonaws.com"
POD_IDENTITY_LIFETIME = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Caller:
    """The principal of a call.

    `session` is None for the admin, and for a call that a web identity token authenticates.
    """

    arn: str
    session: Session | None = None


UNSIGNED = frozenset({("sts", "AssumeRoleWithWebIdentity")})
"""Operations without a signature: a token in the request authenticates the caller."""


def caller(world: World, call: Call) -> Caller:
    """Return the caller of a call.

    Raises the service's error for unknown or expired credentials.
    """
    if (call.service, call.operation) in UNSIGNED:
        return Caller("web-identity")
    if call.access_key == ADMIN_KEY:
        return Caller(ADMIN_ARN)
    session = world.sessions.get(call.access_key or "")
    if session is None or session.token != call.session_token:
        if call.service == "ec2":
            raise AwsError(
                "AuthFailure",
                "AWS was not able to validate the provided access credentials",
                status=401,
            )
        code = "InvalidClientTokenId" if call.access_key else "MissingAuthenticationToken"
        if call.service not in ("iam", "sts", "sqs"):
            code = "UnrecognizedClientException"
        raise AwsError(code, "The security token included in the request is invalid.", status=403)
    if session.expires < now():
        code = "RequestExpired" if call.service == "ec2" else "ExpiredToken"
        raise AwsError(code, "The security token included in the request is expired", status=403)
    return Caller(session.arn, session)


def role(arn: str) -> Any:
    """Return a role by ARN. Raises AwsError (AccessDenied) if it does not exist, as STS does."""
    known = backends.role_at(arn)
    if known is None:
        message = f"Not authorized to assume the role {arn}: it does not exist"
        raise AwsError("AccessDenied", message, status=403)
    return known


def open_session(
    world: World,
    assumed: Any,
    *,
    name: str,
    lifetime: timedelta,
    tags: Mapping[str, str] | None = None,
) -> Session:
    """Create and return temporary credentials of a role, and remove expired sessions."""
    alphabet = string.ascii_uppercase + string.digits
    session = Session(
        access_key="ASIA" + "".join(secrets.choice(alphabet) for _ in range(16)),
        secret_key=secrets.token_urlsafe(30),
        token=secrets.token_urlsafe(96),
        role_arn=assumed.arn,
        role_name=assumed.name,
        name=name,
        expires=now() + lifetime,
        tags=dict(tags or {}),
    )
    with world.lock:
        stale = [key for key, each in world.sessions.items() if each.expires < now()]
        for key in stale:
            del world.sessions[key]
        world.sessions[session.access_key] = session
    return session


# ---------------------------------------------------------------- EKS Pod Identity


def answer_pod_identity(world: World, environ: Mapping[str, Any]) -> Response:
    """Answer `GET /v1/credentials` as the Pod Identity agent on a node does."""
    try:
        session = _pod_identity_session(world, environ.get("HTTP_AUTHORIZATION", ""))
    except (AwsError, TokenRefusedError) as error:
        log.warning("pod identity refused credentials: %s", error)
        status = getattr(error, "status", 403)
        content = {"code": getattr(error, "code", "AccessDeniedException"), "message": str(error)}
        return Response(status, json.dumps(content).encode(), "application/json")
    content = {
        "AccessKeyId": session.access_key,
        "SecretAccessKey": session.secret_key,
        "Token": session.token,
        "AccountId": backends.ACCOUNT,
        "Expiration": session.expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return Response(200, json.dumps(content).encode(), "application/json")


def _pod_identity_session(world: World, token: str) -> Session:
    account = world.token_reviewer.review(token, audience=POD_IDENTITY_AUDIENCE)
    association = podidentity.association_of(
        world,
        cluster_name=world.cluster.name,
        namespace=account.namespace,
        service_account=account.name,
    )
    if association is None:
        raise AwsError(
            "ResourceNotFoundException",
            f"Service account {account.namespace}/{account.name} has no pod identity association",
            status=404,
        )
    described = world.clusters.described[world.cluster.name]
    subnets = described["resourcesVpcConfig"]["subnetIds"]
    if not any(networks.reaches_out(world, s, services=[networks.CREDENTIALS]) for s in subnets):
        raise AwsError(
            "RequestTimeout",
            f"the agent does not reach {networks.CREDENTIALS}: no route, no endpoint",
            status=500,
        )
    assumed = role(association["roleArn"])
    tags = {
        "eks-cluster-arn": described["arn"],
        "eks-cluster-name": world.cluster.name,
        "kubernetes-namespace": account.namespace,
        "kubernetes-service-account": account.name,
        "kubernetes-pod-name": account.pod,
    }
    principal = {"Service": "pods.eks.amazonaws.com"}
    context = {
        **{f"aws:RequestTag/{key}": [value] for key, value in tags.items()},
        "aws:SourceArn": [tags["eks-cluster-arn"]],
        "aws:SourceAccount": [backends.ACCOUNT],
    }
    for action in ("sts:AssumeRole", "sts:TagSession"):
        _require_trust(assumed, action, principal, context)
    name = f"eks-{world.cluster.name}-{account.pod or account.name}"[:64]
    return open_session(world, assumed, name=name, lifetime=POD_IDENTITY_LIFETIME, tags=tags)


def _require_trust(
    assumed: Any, action: str, principal: Mapping[str, str], context: Mapping[str, list[str]]
) -> None:
    document = policies.parse(assumed.assume_role_policy_document)
    if not policies.trusts(document, action=action, principal=principal, context=context):
        who = next(iter(principal.values()))
        raise AwsError(
            "AccessDenied",
            f"{who} is not authorized to perform: {action} on resource: {assumed.arn} because the "
            "role's trust policy does not allow it",
            status=403,
        )


# ---------------------------------------------------------------- STS


def _credentials(world: World, call: Call, assumed: Any) -> dict[str, Any]:
    lifetime = timedelta(seconds=int(call.get("DurationSeconds", 3600)))
    session = open_session(world, assumed, name=call.require("RoleSessionName"), lifetime=lifetime)
    return {
        "Credentials": {
            "AccessKeyId": session.access_key,
            "SecretAccessKey": session.secret_key,
            "SessionToken": session.token,
            "Expiration": session.expires,
        },
        "AssumedRoleUser": {
            "AssumedRoleId": f"{assumed.id}:{session.name}",
            "Arn": session.arn,
        },
        "PackedPolicySize": 6,
    }


@operation("sts", "AssumeRoleWithWebIdentity")
def assume_role_with_web_identity(world: World, call: Call) -> Mapping[str, Any]:
    """Return credentials for a service account token (IRSA)."""
    assumed = role(call.require("RoleArn"))
    token = call.require("WebIdentityToken")
    try:
        account = world.token_reviewer.review(token, audience=WEB_IDENTITY_AUDIENCE)
    except TokenRefusedError as error:
        raise AwsError("InvalidIdentityToken", str(error)) from error
    host = account.issuer.removeprefix("https://").removeprefix("http://")
    provider = f"arn:aws:iam::{backends.ACCOUNT}:oidc-provider/{host}"
    known = {each.arn for each in list(backends.iam().open_id_providers.values())}
    if provider not in known:
        raise AwsError(
            "InvalidIdentityToken",
            f"No OpenIDConnect provider found in your account for {account.issuer}",
        )
    audiences = claims_of(token).get("aud", [])
    context = {
        f"{host}:sub": [account.subject],
        f"{host}:aud": [audiences] if isinstance(audiences, str) else list(audiences),
    }
    _require_trust(assumed, "sts:AssumeRoleWithWebIdentity", {"Federated": provider}, context)
    return {
        **_credentials(world, call, assumed),
        "SubjectFromWebIdentityToken": account.subject,
        "Provider": provider,
        "Audience": WEB_IDENTITY_AUDIENCE,
    }


@operation("sts", "AssumeRole")
def assume_role(world: World, call: Call) -> Mapping[str, Any]:
    """Return credentials of another role; the admin may assume every role."""
    assumed = role(call.require("RoleArn"))
    session = world.sessions.get(call.access_key or "")
    if session is not None:
        _require_trust(assumed, "sts:AssumeRole", {"AWS": session.role_arn}, {})
    return _credentials(world, call, assumed)


@operation("sts", "GetCallerIdentity")
def get_caller_identity(world: World, call: Call) -> Mapping[str, Any]:
    """Return the caller's identity."""
    session = world.sessions.get(call.access_key or "")
    if session is None:
        return {"UserId": "AIDATESTBED", "Account": backends.ACCOUNT, "Arn": ADMIN_ARN}
    return {
        "UserId": f"{role(session.role_arn).id}:{session.name}",
        "Account": backends.ACCOUNT,
        "Arn": session.arn,
    }
