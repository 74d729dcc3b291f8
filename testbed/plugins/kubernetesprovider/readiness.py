"""The reasons why an object is not ready, in words for the user; none if it is ready."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from testbed.plugins.codec import Bag
from testbed.plugins.provider import ProviderError

WAIT_FOR: Final = "pulumi.com/waitFor"
SKIP_AWAIT: Final = "pulumi.com/skipAwait"

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
    kind = f"{thing['apiVersion'].rpartition('/')[0]}/{thing['kind']}"
    if kind == "/Service":
        return _service(thing, look)
    rule = RULES.get(kind)
    return rule(thing) if rule else []


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


def _definition(thing: Bag) -> list[str]:
    established = _has_condition(thing, "Established") and _has_condition(thing, "NamesAccepted")
    return [] if established else ["the definition is not established"]


def _replicas(thing: Bag) -> list[str]:
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


def _daemons(thing: Bag) -> list[str]:
    if _is_unseen(thing):
        return ["its controller has not seen this generation"]
    status = thing.get("status") or {}
    wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    updated = status.get("updatedNumberScheduled", 0)
    if ready >= wanted and updated >= wanted:
        return []
    return [f"{ready} of {wanted} pods ready, {updated} updated"]


def _job(thing: Bag) -> list[str]:
    if _has_condition(thing, "Complete"):
        return []
    message = _condition(thing, "Failed").get("message")
    return [f"the job failed: {message}" if message else "the job has not completed"]


def _pod(thing: Bag) -> list[str]:
    status = thing.get("status") or {}
    if _has_condition(thing, "Ready") or status.get("phase") == "Succeeded":
        return []
    reason = _condition(thing, "PodScheduled").get("message") or status.get("message")
    return [reason or f"the pod is {status.get('phase', 'Pending')}"]


def _namespace(thing: Bag) -> list[str]:
    phase = (thing.get("status") or {}).get("phase")
    return [] if phase == "Active" else [f"the namespace is {phase or 'new'}"]


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


RULES: Final[Mapping[str, Callable[[Bag], list[str]]]] = {
    "/Namespace": _namespace,
    "/Pod": _pod,
    "apiextensions.k8s.io/CustomResourceDefinition": _definition,
    "apps/DaemonSet": _daemons,
    "apps/Deployment": _replicas,
    "apps/StatefulSet": _replicas,
    "batch/Job": _job,
}
"""Group and kind → readiness rule. Other kinds are ready once they exist."""
