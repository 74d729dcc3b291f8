"""The Kubernetes provider: any kind that the API server serves, by server-side apply."""

from __future__ import annotations

import copy
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from testbed.plugins.codec import UNKNOWN, Bag, Secret, has_unknown, plain
from testbed.plugins.differences import lies_under
from testbed.plugins.kubernetesprovider.api import (
    ALREADY_EXISTS,
    CONFLICT,
    CREATOR,
    NOT_FOUND,
    Api,
    ApiError,
    Kind,
    UnreachableError,
    active_cluster,
    context_namespace,
    is_group_served_alike,
    read_kubeconfig,
)
from testbed.plugins.kubernetesprovider.fields import taken_over
from testbed.plugins.kubernetesprovider.readiness import SKIP_AWAIT, annotation, unready_reasons
from testbed.plugins.kubernetesprovider.replacement import must_replace
from testbed.plugins.naming import unique_name
from testbed.plugins.provider import (
    Checked,
    Created,
    Fault,
    PartialFailureError,
    Proposal,
    Provider,
    ProviderError,
    ReadResult,
    Work,
)

AUTONAMED: Final = "pulumi.com/autonamed"
PATCH_FORCE: Final = "pulumi.com/patchForce"
PROPAGATION: Final = "pulumi.com/deletionPropagationPolicy"
FLAGS: Final[Mapping[str, str]] = {
    "deleteUnreachable": "PULUMI_K8S_DELETE_UNREACHABLE",
    "enableConfigMapMutable": "PULUMI_K8S_ENABLE_CONFIGMAP_MUTABLE",
    "enablePatchForce": "PULUMI_K8S_ENABLE_PATCH_FORCE",
    "enableSecretMutable": "PULUMI_K8S_ENABLE_SECRET_MUTABLE",
    "upsertExistingObjects": "PULUMI_K8S_UPSERT_EXISTING_OBJECTS",
}
"""Optional behaviors → the environment variable that enables each."""
ACTIVE_CLUSTER: Final = ("kubeconfig", "context", "cluster")
"""The settings that together identify the cluster."""
FIELD_MANAGER: Final = "__fieldManager"
NAME_LIMIT: Final = 63
DEFAULT_SECONDS: Final = 600.0
DISCOVERY_SECONDS: Final = 60.0
FIRST_POLL_SECONDS: Final = 0.05
LAST_POLL_SECONDS: Final = 0.25


class KubernetesProvider(Provider):
    """The provider of one Kubernetes cluster, which its kubeconfig identifies."""

    name = "kubernetes"
    version = "4.34.2"

    def __init__(self) -> None:
        super().__init__()
        self._api: Api | None = None
        self._settings: Bag = {}

    def must_replace_settings(self, path: str, old: Bag, new: Bag) -> bool:
        """Return whether a changed setting means another cluster, as the real DiffConfig does.

        If both settings have a cluster identifier, it decides. Otherwise the clusters of the
        active contexts are compared. An unknown setting may mean another cluster. Raises
        `ProviderError` if the new or the old kubeconfig cannot be read.
        """
        if old.get("clusterIdentifier") and new.get("clusterIdentifier"):
            return path == "clusterIdentifier"
        if not lies_under(path, ACTIVE_CLUSTER):
            return False
        if any(new.get(key) is UNKNOWN for key in ACTIVE_CLUSTER):
            return True
        before, after = active_cluster(old), active_cluster(new)
        return before is not None and after is not None and before != after

    def configure(self, settings: Bag) -> None:
        self._settings = settings
        given = settings.get("kubeconfig")
        kubeconfig = read_kubeconfig(given, settings.get("context"))
        namespace = settings.get("namespace") or context_namespace(given) or "default"
        self._api = Api(kubeconfig, namespace) if kubeconfig else None

    @property
    def api(self) -> Api:
        """The API server. Raises `UnreachableError` if no cluster is configured."""
        if self._api is None:
            raise UnreachableError(
                "there is no cluster: set kubernetes:kubeconfig, the kubeconfig of the "
                "kubernetes.Provider, or KUBECONFIG"
            )
        return self._api

    def check(self, proposal: Proposal) -> Checked:
        inputs = dict(proposal.new)
        if inputs.get("metadata") is UNKNOWN:
            return Checked(inputs)
        api_version, kind = plain(inputs.get("apiVersion")), plain(inputs.get("kind"))
        if not isinstance(api_version, str) or not isinstance(kind, str):
            return Checked(inputs, [Fault("apiVersion", "apiVersion and kind must be known")])
        metadata = dict(plain(inputs.get("metadata")) or {})
        old_metadata = plain(proposal.old.get("metadata")) or {}
        self._name(proposal, metadata, old_metadata)
        if metadata.get("namespace") is None and self._api is not None:
            served = self._api.kind_of(api_version, kind)
            if served is None and old_metadata.get("namespace"):
                metadata["namespace"] = old_metadata["namespace"]
            elif served is not None and served.is_namespaced:
                metadata["namespace"] = self._api.namespace
        inputs["metadata"] = metadata
        if kind == "Secret":
            for key in ("data", "stringData"):
                if key in inputs and not isinstance(inputs[key], Secret):
                    inputs[key] = Secret(inputs[key])
        return Checked(inputs)

    @staticmethod
    def _name(proposal: Proposal, metadata: Bag, old: Bag) -> None:
        if metadata.get("name") is not None or metadata.get("generateName"):
            return
        if annotation({"metadata": old}, AUTONAMED) == "true":
            metadata["name"] = old["name"]
        else:
            metadata["name"] = unique_name(proposal, digits=8, limit=NAME_LIMIT)
        metadata["annotations"] = {**(metadata.get("annotations") or {}), AUTONAMED: "true"}

    def must_replace(self, type_: str, path: str, old: Bag, new: Bag) -> bool:
        if path == "apiVersion":
            return not is_group_served_alike(old["apiVersion"], new["apiVersion"])
        if path in ("kind", "metadata.name", "metadata.generateName"):
            return True
        if path == "metadata.namespace":
            # Set later for a kind that was unknown before its CRD existed.
            places = [
                manifest["metadata"].get("namespace") or self.api.namespace
                for manifest in (old, new)
            ]
            return places[0] != places[1]
        if _is_patch(type_):
            return False  # a patch changes all other fields in place
        group = new["apiVersion"].rpartition("/")[0]
        return self._is_content(new, path) or must_replace(group, new["kind"], path)

    def _is_content(self, thing: Bag, path: str) -> bool:
        """Return whether a change at the path replaces a ConfigMap or Secret: its content.

        Such an object is replaced because a running pod does not see a changed value in its
        environment variables.
        """
        is_fixed = thing.get("immutable") is True
        if thing["kind"] == "ConfigMap" and (
            is_fixed or not self._is_set("enableConfigMapMutable")
        ):
            return lies_under(path, ("data", "binaryData"))
        if thing["kind"] == "Secret" and (is_fixed or not self._is_set("enableSecretMutable")):
            return lies_under(path, ("data", "stringData"))
        return False

    def must_delete_first(self, type_: str, old: Bag, new: Bag) -> bool:
        before, after = old.get("metadata") or {}, new.get("metadata") or {}
        return all(before.get(key) == after.get(key) for key in ("name", "namespace"))

    def preview(self, work: Work, state: Bag, inputs: Bag) -> Bag:
        if has_unknown(inputs.get("metadata")) or not isinstance(inputs.get("metadata"), dict):
            return {"status": UNKNOWN, **inputs}
        thing = _manifest(inputs)
        if self._api is not None and not has_unknown(inputs):
            served = self._api.kind_of(thing["apiVersion"], thing["kind"])
            if served is not None:
                forecast = self._try(self._api, work.type, thing, served, state)
                if forecast is not None:
                    return _outputs(forecast, inputs, _manager(state))
        known = state.get("metadata") or {"uid": UNKNOWN, "resourceVersion": UNKNOWN}
        return {
            **thing,
            "metadata": {**known, **thing["metadata"]},
            "status": state.get("status") or UNKNOWN,
        }

    def _try(self, api: Api, type_: str, thing: Bag, served: Kind, state: Bag) -> Bag | None:
        """Return the result of a dry run on the server.

        Returns None if the server cannot tell. That is so if the namespace does not exist yet, or
        if the object still exists because it is about to be replaced.
        """
        path = api.path_of(thing, served)
        try:
            if not state and not self._may_exist(type_):
                answer = api.create(path, thing, dry_run=True)
            else:
                answer = api.apply(
                    path,
                    thing,
                    manager=_manager(state),
                    force=not state or self._forces(thing) or _has_unshared_fields(api.get(path)),
                    dry_run=True,
                )
        except ApiError as error:
            if error.status == NOT_FOUND or error.reason == ALREADY_EXISTS:
                return None
            raise
        if not state:
            answer["metadata"] |= {"uid": UNKNOWN, "resourceVersion": UNKNOWN}
            answer["status"] = UNKNOWN
        return answer

    def create(self, work: Work, inputs: Bag) -> Created:
        thing = _manifest(inputs)
        manager = f"pulumi-kubernetes-{secrets.token_hex(4)}"
        path = self._path(work, thing)
        if self._may_exist(work.type):
            live = self.api.apply(path, thing, manager=manager, force=self._forces(thing))
        else:
            live = self.api.create(path, thing)
        live = self._wait(work, path, live, inputs, manager)
        return Created(_identity(live), _outputs(live, inputs, manager))

    def update(self, work: Work, state: Bag, old: Bag, new: Bag) -> Bag:
        thing, manager = _manifest(new), _manager(state)
        path = self._path(work, thing)
        if not _is_patch(work.type):
            self._take_over_fields(path, manager)
        live = self.api.apply(path, thing, manager=manager, force=self._forces(thing))
        live = self._wait(work, path, live, new, manager)
        return _outputs(live, new, manager)

    def read(self, work: Work, state: Bag, inputs: Bag) -> ReadResult | None:
        try:
            return self._read(work, state, inputs)
        except UnreachableError:
            if self._is_set("deleteUnreachable"):
                return None  # an object is gone with its cluster
            raise

    def _read(self, work: Work, state: Bag, inputs: Bag) -> ReadResult | None:
        namespace, _, name = work.identity.rpartition("/")
        known = inputs or state
        _, group_version, kind = work.type.split(":")
        thing: Bag = {
            "apiVersion": known.get("apiVersion") or group_version.removeprefix("core/"),
            "kind": known.get("kind") or kind,
            "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
        }
        served = self.api.kind_of(thing["apiVersion"], thing["kind"])
        live = self.api.get(self.api.path_of(thing, served)) if served else None
        if live is None:
            return None
        outputs = _outputs(live, inputs, _manager(state))
        if inputs:
            return ReadResult(work.identity, outputs, _live_part(inputs, {**live, **_text(inputs)}))
        imported = {
            key: value
            for key, value in outputs.items()
            if key != "status" and not key.startswith("__")
        }
        return ReadResult(work.identity, outputs, imported)

    def delete(self, work: Work, state: Bag) -> None:
        try:
            self._delete(work, state)
        except UnreachableError as error:
            if not self._is_set("deleteUnreachable"):
                raise
            work.report(f"gone with its cluster: {error}")

    def _delete(self, work: Work, state: Bag) -> None:
        served = self.api.kind_of(state["apiVersion"], state["kind"])
        if served is None:
            return  # its CRD is gone, and with it every object
        path = self.api.path_of(state, served)
        if _is_patch(work.type):
            self._remove_own_fields(path, state)
            return
        uid = state["metadata"].get("uid")
        policy = annotation(state, PROPAGATION) or "foreground"
        options = {
            "propagationPolicy": policy.capitalize(),
            **({"preconditions": {"uid": uid}} if uid else {}),
        }
        try:
            self.api.request("DELETE", path, body=options)
        except ApiError as error:
            # A conflict means that another object has taken the name, so this one is gone.
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            return
        if annotation(state, SKIP_AWAIT) != "true":
            self._wait_until_gone(work, path, uid)

    def invoke(self, function: str, arguments: Mapping[str, Any]) -> Bag:
        if function != "kubernetes:yaml:decode":
            raise ProviderError(f"the kubernetes stand-in has no function {function}")
        documents = yaml.safe_load_all(arguments["text"])
        namespace = arguments.get("defaultNamespace")
        manifests = [document for document in documents if document]
        for document in manifests if namespace else ():
            document.setdefault("metadata", {}).setdefault("namespace", namespace)
        return {"result": manifests}

    def _is_set(self, setting: str) -> bool:
        from_environment = os.environ.get(FLAGS[setting], "").lower() in ("1", "t", "true")
        return from_environment or bool(self._settings.get(setting))

    def _forces(self, thing: Bag) -> bool:
        return annotation(thing, PATCH_FORCE) == "true" or self._is_set("enablePatchForce")

    def _may_exist(self, type_: str) -> bool:
        """Return whether a create takes over an existing object."""
        return _is_patch(type_) or self._is_set("upsertExistingObjects")

    def _take_over_fields(self, path: str, manager: str) -> None:
        """Transfer the create's fields to our manager, so that later applies can remove them."""
        for _ in self._polls(DISCOVERY_SECONDS):
            live = self.api.get(path)
            if live is None:
                return
            entries = taken_over(live["metadata"].get("managedFields") or [], manager)
            if entries is None:
                return
            try:
                self.api.own_fields(path, entries, version=live["metadata"]["resourceVersion"])
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
                continue  # its controller has written the status meanwhile
            return

    def _remove_own_fields(self, path: str, state: Bag) -> None:
        """Remove our fields from an object of other owners."""
        bare = {
            "apiVersion": state["apiVersion"],
            "kind": state["kind"],
            "metadata": {"name": state["metadata"]["name"]},
        }
        if self.api.get(path) is not None:
            self.api.apply(path, bare, manager=_manager(state), force=True)

    def _path(self, work: Work, thing: Bag) -> str:
        """Return the object's path; wait until the server serves its kind."""
        for _ in self._polls(DISCOVERY_SECONDS):
            served = self.api.kind_of(thing["apiVersion"], thing["kind"])
            if served is not None:
                return self.api.path_of(thing, served)
            work.report(f"waiting for kind {thing['kind']} in {thing['apiVersion']}")
        raise ProviderError(
            f"the cluster has no kind {thing['kind']} in {thing['apiVersion']}: "
            "create its CustomResourceDefinition first"
        )

    def _polls(self, seconds: float) -> Iterator[None]:
        """Yield at growing intervals until the time is up or the user interrupts."""
        end, pause = time.monotonic() + seconds, FIRST_POLL_SECONDS
        while not self.cancelled.is_set():
            yield
            left = end - time.monotonic()
            if left <= 0:
                return
            self.cancelled.wait(min(pause, left))
            pause = min(pause * 1.5, LAST_POLL_SECONDS)

    def _wait(self, work: Work, path: str, live: Bag, inputs: Bag, manager: str) -> Bag:
        """Wait until the object is ready; return it in that state.

        Raises `PartialFailureError` with the reasons if the object is not ready in time.
        """
        if annotation(inputs, SKIP_AWAIT) == "true" or _is_patch(work.type):
            return live
        reasons: list[str] = []
        for _ in self._polls(work.timeout or DEFAULT_SECONDS):
            read = self.api.get(path)
            if read is None:
                raise ProviderError(
                    f"{live['kind']} {_identity(live)} was deleted during the update"
                )
            live, before = read, reasons
            reasons = unready_reasons(live, self.api.get)
            if not reasons:
                if before:
                    work.report("ready")
                return live
            if reasons != before:
                work.report("; ".join(reasons))
        outputs = _outputs(live, inputs, manager)
        raise PartialFailureError(_identity(live), outputs, reasons)

    def _wait_until_gone(self, work: Work, path: str, uid: str | None) -> None:
        reason = ""
        for _ in self._polls(work.timeout or DEFAULT_SECONDS):
            live = self.api.get(path)
            if live is None or (uid and live["metadata"]["uid"] != uid):
                if reason:
                    work.report("gone")
                return
            before, reason = reason, _still_there(live)
            if reason != before:
                work.report(reason)
        raise ProviderError(f"{work.identity} {reason}")


def _still_there(live: Bag) -> str:
    finalizers = live["metadata"].get("finalizers") or ["none"]
    return f"is still there; finalizers: {', '.join(finalizers)}"


def _has_unshared_fields(live: Bag | None) -> bool:
    """Return whether the next update takes over fields before it applies, so has no conflict."""
    entries = ((live or {}).get("metadata") or {}).get("managedFields") or []
    return any((entry["manager"], entry["operation"]) == (CREATOR, "Update") for entry in entries)


def _is_patch(type_: str) -> bool:
    """Return whether the type patches an object that this stack does not manage."""
    return type_.endswith("Patch")


def _manager(state: Bag) -> str:
    return str(state.get(FIELD_MANAGER) or "pulumi-kubernetes")


def _manifest(inputs: Bag) -> Bag:
    return {key: copy.deepcopy(value) for key, value in inputs.items() if not key.startswith("__")}


def _identity(thing: Mapping[str, Any]) -> str:
    metadata = thing["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _text(inputs: Bag) -> Bag:
    """Return the inputs that the server accepts but never returns."""
    return {"stringData": inputs["stringData"]} if "stringData" in inputs else {}


def _outputs(live: Bag, inputs: Bag, manager: str) -> Bag:
    metadata = {key: value for key, value in live["metadata"].items() if key != "managedFields"}
    outputs = {**live, **_text(inputs), "metadata": metadata, FIELD_MANAGER: manager}
    if live["kind"] == "Secret" and live.get("data"):
        outputs["data"] = Secret(live["data"])  # this includes what was given as stringData
    return outputs


def _live_part(wanted: Any, live: Any) -> Any:
    """Return the live values of what the program set, and of nothing else."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        # The server drops empty values, so their absence is no drift.
        return {
            key: _live_part(value, live.get(key, value))
            for key, value in wanted.items()
            if key in live or value in ({}, [], None)
        }
    if isinstance(wanted, list) and isinstance(live, list) and len(wanted) == len(live):
        return [_live_part(part, other) for part, other in zip(wanted, live, strict=True)]
    return live
