"""The EKS Pod Identity webhook, which adds AWS credentials to a pod once, at its creation.

The webhook sees a new Pod Identity association only after some seconds. A pod that is created
earlier never gets credentials. The webhook's name, its rule and its changes to a pod are those
of amazon-eks-pod-identity-webhook (`pkg/handler/handler.go`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from testbed.kube.client import KubeClient, KubernetesError, NotFoundError, Object
from testbed.kube.kubeconfig import Kubeconfig

CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NAME: Final = "pod-identity-webhook"
AGENT: Final = "http://169.254.170.23"
"""Address of the Pod Identity agent on every EKS node."""

ROLE_ANNOTATION: Final = "eks.amazonaws.com/role-arn"
SKIP_LABEL: Final = "eks.amazonaws.com/skip-pod-identity-webhook"
LIFETIME_SECONDS: Final = 86400
SYSTEM_PODS: Final = "/api/v1/namespaces/kube-system/pods"
POLL_SECONDS: Final = 0.05

HasPodIdentity = Callable[[str, str], Awaitable[bool]]
"""(namespace, name) → whether the service account has an association that is visible."""


@dataclass(frozen=True)
class Identity:
    """What the pods of a service account get: variables, and a token in a volume."""

    volume: str
    mounted_at: str
    file: str
    audience: str
    token_variable: str
    variables: Mapping[str, str]


def by_agent(region: str) -> Identity:
    """Return the identity that EKS Pod Identity provides."""
    return Identity(
        volume="eks-pod-identity-token",
        mounted_at="/var/run/secrets/pods.eks.amazonaws.com/serviceaccount",
        file="eks-pod-identity-token",
        audience="pods.eks.amazonaws.com",
        token_variable="AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
        variables={
            **_regional(region),
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{AGENT}/v1/credentials",
        },
    )


def by_web_identity(region: str, role_arn: str) -> Identity:
    """Return the identity that IAM roles for service accounts (IRSA) provide."""
    return Identity(
        volume="aws-iam-token",
        mounted_at="/var/run/secrets/eks.amazonaws.com/serviceaccount",
        file="token",
        audience="sts.amazonaws.com",
        token_variable="AWS_WEB_IDENTITY_TOKEN_FILE",
        variables={**_regional(region), "AWS_ROLE_ARN": role_arn},
    )


def _regional(region: str) -> dict[str, str]:
    return {
        "AWS_STS_REGIONAL_ENDPOINTS": "regional",
        "AWS_DEFAULT_REGION": region,
        "AWS_REGION": region,
    }


@dataclass(frozen=True, kw_only=True)
class Webhook:
    """Answers the API server's admission requests for new pods."""

    kube: KubeClient
    region: str
    has_pod_identity: HasPodIdentity
    _is_asked: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve the webhook and register it with the API server while the block runs."""
        application = web.Application()
        application.router.add_post("/mutate", self._answer)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(
                runner, "127.0.0.1", 0, ssl_context=_serving_tls(self.kube.kubeconfig)
            )
            await site.start()
            port = runner.addresses[0][1]
            await self._unregister()
            await self.kube.create(CONFIGURATIONS, self._configuration(port))
            try:
                await self._until_asked()
                yield
            finally:
                await self._unregister()
        finally:
            await runner.cleanup()

    async def _unregister(self) -> None:
        try:
            await self.kube.delete(f"{CONFIGURATIONS}/{NAME}")
        except NotFoundError:
            return

    async def _until_asked(self) -> None:
        """Wait until the API server calls the webhook; it applies a configuration with a delay."""
        probe = {
            "metadata": {"generateName": "probe-"},
            "spec": {"containers": [{"name": "probe", "image": "none"}]},
        }
        while not self._is_asked.is_set():
            # The namespace's default service account may not exist yet.
            with suppress(KubernetesError):
                await self.kube.create(f"{SYSTEM_PODS}?dryRun=All", probe)
            await asyncio.sleep(POLL_SECONDS)

    def _configuration(self, port: int) -> Object:
        authority = base64.b64encode(self.kube.kubeconfig.certificate_authority).decode()
        url = f"https://127.0.0.1:{port}/mutate"
        return {
            "metadata": {"name": NAME},
            "webhooks": [
                {
                    "name": "iam-for-pods.amazonaws.com",
                    "admissionReviewVersions": ["v1"],
                    "clientConfig": {"url": url, "caBundle": authority},
                    "failurePolicy": "Ignore",
                    "objectSelector": {
                        "matchExpressions": [{"key": SKIP_LABEL, "operator": "DoesNotExist"}]
                    },
                    # EKS calls its webhook for these pods too. Here they are the load of a
                    # benchmark, and the admission calls would dominate what it measures.
                    "matchConditions": [
                        {
                            "name": "not-of-a-benchmark",
                            "expression": 'request.namespace == "kube-system" || '
                            'object.spec.serviceAccountName != "default"',
                        }
                    ],
                    "rules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["pods"],
                        }
                    ],
                    "sideEffects": "None",
                }
            ],
        }

    async def _answer(self, request: web.Request) -> web.Response:
        review = await request.json()
        asked = review["request"]
        self._is_asked.set()
        identity = await self._identity(asked["namespace"], asked["object"])
        answer: Object = {"uid": asked["uid"], "allowed": True}
        if identity is not None:
            patch = json.dumps(_changes(asked["object"]["spec"], identity))
            answer |= {
                "patchType": "JSONPatch",
                "patch": base64.b64encode(patch.encode()).decode(),
            }
        kind = {"apiVersion": review["apiVersion"], "kind": review["kind"]}
        return web.json_response({**kind, "response": answer})

    async def _identity(self, namespace: str, pod: Object) -> Identity | None:
        name = pod["spec"].get("serviceAccountName") or "default"
        if await self.has_pod_identity(namespace, name):
            return by_agent(self.region)
        try:
            account = await self.kube.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
        except KubernetesError:
            return None
        role = (account["metadata"].get("annotations") or {}).get(ROLE_ANNOTATION)
        return by_web_identity(self.region, role) if role else None


def _changes(spec: Object, identity: Identity) -> list[Object]:
    """Return the JSON patch that adds the identity to a pod's spec; empty if it has it already."""
    volumes = spec.get("volumes") or []
    if any(volume["name"] == identity.volume for volume in volumes):
        return []
    token = {
        "audience": identity.audience,
        "expirationSeconds": LIFETIME_SECONDS,
        "path": identity.file,
    }
    volume = {
        "name": identity.volume,
        "projected": {"sources": [{"serviceAccountToken": token}]},
    }
    kinds = [kind for kind in ("initContainers", "containers") if spec.get(kind)]
    return [
        {"op": "add", "path": "/spec/volumes", "value": [volume, *volumes]},
        *(
            {
                "op": "add",
                "path": f"/spec/{kind}",
                "value": [_with_identity(container, identity) for container in spec[kind]],
            }
            for kind in kinds
        ),
    ]


def _with_identity(container: Object, identity: Identity) -> Object:
    given = container.get("env") or []
    named = {variable["name"] for variable in given}
    variables = {
        **identity.variables,
        identity.token_variable: f"{identity.mounted_at}/{identity.file}",
    }
    mount = {"name": identity.volume, "mountPath": identity.mounted_at, "readOnly": True}
    more = [
        {"name": name, "value": value} for name, value in variables.items() if name not in named
    ]
    return {
        **container,
        "env": [*given, *more],
        "volumeMounts": [*(container.get("volumeMounts") or []), mount],
    }


def _serving_tls(kubeconfig: Kubeconfig) -> ssl.SSLContext:
    """Return a server TLS context with the administrator's certificate, also valid on loopback."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with tempfile.NamedTemporaryFile(suffix=".pem") as pem:
        pem.write((kubeconfig.client_certificate or b"") + b"\n" + (kubeconfig.client_key or b""))
        pem.flush()
        context.load_cert_chain(pem.name)
    return context
