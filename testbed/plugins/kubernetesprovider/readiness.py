"""The reasons why an object is not ready, in words for the user; none if it is ready."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

WAIT_FOR: Final = "pulumi.com/waitFor"
SKIP_AWAIT: Final = "pulumi.com/skipAwait"
SKIP_AWAIT_OF_DELETION: Final = frozenset(
    {"DaemonSet", "Deployment", "Job", "Namespace", "Pod", "ReplicationController", "StatefulSet"}
)
"""Kinds whose deletion is not awaited with `skipAwait`; the deletion of others always is."""
READ_AWAITED: Final = frozenset(
    {"DaemonSet", "Deployment", "Ingress", "Job", "Pod", "Service", "StatefulSet"}
)
"""Kinds of which a refresh reports that they are not ready."""
REVISION: Final = "deployment.kubernetes.io/revision"

Look = Callable[[str], Bag | None]
"""Reads another object by its path, for kinds whose readiness depends on it."""


def annotation(thing: Mapping[str, Any], name: str) -> str | None:
    """Return an annotation of the object, or None."""
    annotated: str | None = ((thing.get("metadata") or {}).get("annotations") or {}).get(name)
    return annotated


def unready_reasons(thing: Bag, look: Look) -> list[str]:
    """Return the reasons why the object is not ready; empty if it is ready.

    `look` reads another object by its path. Raises `ProviderError` for an invalid `waitFor`.
    """
    wanted = annotation(thing, WAIT_FOR)
    if wanted:
        return [
            reason for expression in _expressions(wanted) if (reason := _unmet(thing, expression))
        ]
    return rule_reasons(thing, look)


def rule_reasons(thing: Bag, look: Look) -> list[str]:
    """Return why the object is not ready by the rule of its kind, whatever it is to wait for."""
    rule = RULES.get(f"{thing['apiVersion'].rpartition('/')[0]}/{thing['kind']}")
    return rule(thing, look) if rule else []


def _expressions(annotation_: str) -> list[str]:
    return json.loads(annotation_) if annotation_.startswith("[") else [annotation_]


def _unmet(thing: Bag, expression: str) -> str | None:
    form, _, rest = expression.partition("=")
    status = thing.get("status") or {}
    if form == "condition":
        name, _, wanted = rest.partition("=")
        # A condition may have its own observedGeneration, which kubectl wait respects too.
        is_old = _is_older({**status, **_condition(thing, name)}, thing)
        is_met = _has_condition(thing, name, wanted or "True")
    elif form == "jsonpath":
        path, _, value = rest.strip().removeprefix("{").partition("}")
        actual = _at(thing, path)
        is_old = _is_older(status, thing)
        is_met = actual is not None and (not value or str(actual) == value.removeprefix("="))
    else:
        raise ProviderError(f'expected a "jsonpath=" or "condition=" prefix, got {expression!r}')
    return None if is_met and not is_old else f"waiting for {expression}"


def _is_older(observation: Mapping[str, Any], thing: Bag) -> bool:
    """Return whether an observation is of an earlier generation; False if it does not say."""
    seen = observation.get("observedGeneration")
    return seen is not None and bool(seen < thing["metadata"].get("generation", 0))


def _at(thing: Any, path: str) -> Any:
    for key in path.strip(".").split("."):
        thing = thing.get(key) if isinstance(thing, Mapping) else None
    return thing


def _condition(thing: Bag, name: str) -> Bag:
    for condition in (thing.get("status") or {}).get("conditions") or []:
        if condition["type"].lower() == name.lower():
            held: Bag = condition
            return held
    return {}


def _has_condition(thing: Bag, name: str, status: str = "True") -> bool:
    return str(_condition(thing, name).get("status", "")).lower() == status.lower()


def _is_unseen(thing: Bag) -> bool:
    seen = (thing.get("status") or {}).get("observedGeneration", 0)
    return bool(seen < thing["metadata"].get("generation", 0))


def _deployment(thing: Bag, look: Look) -> list[str]:
    """Apply the real provider's rule: the ReplicaSet of the current revision has all its pods.

    See `checkAndLogStatus` in pulumi-kubernetes, `provider/pkg/await/deployment.go`.
    """
    if _is_unseen(thing):
        return ["its controller has not seen this generation"]
    is_first = annotation(thing, REVISION) == "1"
    wanted, ready = _pods_of_revision(thing, look)
    rollout = _condition(thing, "Progressing")
    is_rolled_out = _has_condition(thing, "Progressing") and (
        rollout.get("reason") == "NewReplicaSetAvailable"
    )
    reasons = [
        f"[{each.get('reason')}] {each['message']}"
        for each in (rollout, _condition(thing, "Available"))
        if each.get("status") != "True" and each.get("message")
    ]
    too_few = "Minimum number of Pods to consider the application live was not attained"
    if not _has_condition(thing, "Available"):
        return [*reasons, "Minimum number of live Pods was not attained"]
    if not is_first and not is_rolled_out:
        return [*reasons, too_few]
    if ready >= wanted:
        return []
    failed = "Attempted to roll forward to new ReplicaSet, but minimum number of Pods did not"
    return [*reasons, too_few if is_first else f"{failed} become live"]


def _pods_of_revision(thing: Bag, look: Look) -> tuple[int, int]:
    """Return how many pods the current ReplicaSet wants, and how many are ready."""
    metadata = thing["metadata"]
    answer = look(f"/apis/apps/v1/namespaces/{metadata['namespace']}/replicasets") or {}
    for each in answer.get("items") or []:
        owners = {owner["uid"] for owner in each["metadata"].get("ownerReferences") or ()}
        is_current = annotation(each, REVISION) == annotation(thing, REVISION)
        if metadata["uid"] in owners and is_current:
            ready = (each.get("status") or {}).get("readyReplicas", 0)
            return each["spec"].get("replicas", 1), ready
    return 1, 0


def _replicas(thing: Bag, look: Look) -> list[str]:
    del look
    if _is_unseen(thing):
        return ["its controller has not seen this generation"]
    status, wanted = thing.get("status") or {}, thing["spec"].get("replicas", 1)
    updated, ready = status.get("updatedReplicas", 0), status.get("readyReplicas", 0)
    reasons = []
    if updated < wanted:
        reasons.append(f"{updated} of {wanted} replicas updated")
    if status.get("replicas", 0) > max(updated, wanted):
        reasons.append("old replicas are still there")
    if ready < wanted:
        reasons.append(f"{ready} of {wanted} replicas ready")
    failure = _condition(thing, "ReplicaFailure") or _condition(thing, "Progressing")
    if reasons and failure.get("message"):
        reasons.append(failure["message"])
    return reasons


def _daemons(thing: Bag, look: Look) -> list[str]:
    del look
    if _is_unseen(thing):
        return ["its controller has not seen this generation"]
    status = thing.get("status") or {}
    wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    updated = status.get("updatedNumberScheduled", 0)
    if ready >= wanted and updated >= wanted:
        return []
    return [f"{ready} of {wanted} pods ready, {updated} updated"]


def _job(thing: Bag, look: Look) -> list[str]:
    del look
    if _has_condition(thing, "Complete"):
        return []
    message = _condition(thing, "Failed").get("message")
    return [f"the job failed: {message}" if message else "the job has not completed"]


def _pod(thing: Bag, look: Look) -> list[str]:
    del look
    status = thing.get("status") or {}
    if _has_condition(thing, "Ready") or status.get("phase") == "Succeeded":
        return []
    reason = _condition(thing, "PodScheduled").get("message") or status.get("message")
    return [reason or f"the pod is {status.get('phase', 'Pending')}"]


def _service(thing: Bag, look: Look) -> list[str]:
    spec = thing["spec"]
    if spec.get("type") == "LoadBalancer":
        ingress = ((thing.get("status") or {}).get("loadBalancer") or {}).get("ingress")
        return [] if ingress else ["the load balancer has no address"]
    if spec.get("type") == "ExternalName" or spec.get("clusterIP") == "None":
        return []
    if not spec.get("selector"):
        return []
    metadata = thing["metadata"]
    slices = look(
        f"/apis/discovery.k8s.io/v1/namespaces/{metadata['namespace']}/endpointslices"
        f"?labelSelector=kubernetes.io/service-name%3D{metadata['name']}"
    )
    endpoints = [
        endpoint
        for piece in (slices or {}).get("items") or []
        for endpoint in piece["endpoints"] or []
    ]
    if any(endpoint.get("conditions", {}).get("ready") is not False for endpoint in endpoints):
        return []
    return ["no ready pod matches the service's selector"]


RULES: Final[Mapping[str, Callable[[Bag, Look], list[str]]]] = {
    "/Pod": _pod,
    "/Service": _service,
    "apps/DaemonSet": _daemons,
    "apps/Deployment": _deployment,
    "apps/StatefulSet": _replicas,
    "batch/Job": _job,
}
"""Group and kind → readiness rule. Other kinds are ready once they exist."""
