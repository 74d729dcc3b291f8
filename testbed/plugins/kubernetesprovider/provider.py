"""The Kubernetes provider: any kind that the API server serves, by server-side apply.

As in the real provider, the first request decides whether the cluster is reachable, for the whole
operation. Objects are created by a POST, and CRDs are replaced by a PUT.
"""

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
    NOT_FOUND,
    Api,
    ApiError,
    Kind,
    MissingKindError,
    UnreachableError,
    active_cluster,
    context_namespace,
    is_group_served_alike,
    read_kubeconfig,
)
from testbed.plugins.kubernetesprovider.fields import is_created_by_pulumi, taken_over
from testbed.plugins.kubernetesprovider.pruning import prune
from testbed.plugins.kubernetesprovider.readiness import (
    READ_AWAITED,
    SKIP_AWAIT,
    SKIP_AWAIT_OF_DELETION,
    WAIT_FOR,
    annotation,
    rule_reasons,
    unready_reasons,
)
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
PATCH_FIELD_MANAGER: Final = "pulumi.com/patchFieldManager"
PATCH_FORCE: Final = "pulumi.com/patchForce"
PROPAGATION: Final = "pulumi.com/deletionPropagationPolicy"
FLAGS: Final[Mapping[str, str]] = {
    "deleteUnreachable": "PULUMI_K8S_DELETE_UNREACHABLE",
    "enableConfigMapMutable": "PULUMI_K8S_ENABLE_CONFIGMAP_MUTABLE",
    "enablePatchForce": "PULUMI_K8S_ENABLE_PATCH_FORCE",
    "enableSecretMutable": "PULUMI_K8S_ENABLE_SECRET_MUTABLE",
    "upsertExistingObjects": "PULUMI_K8S_UPSERT_EXISTING_OBJECTS",
}
"""Optional behaviors → the environment variable that enables each, if its value is `true`."""
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
        self._unreachable = "no kubeconfig: set kubernetes:kubeconfig, or KUBECONFIG"
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
        try:
            kubeconfig = read_kubeconfig(given, settings.get("context"))
            namespace = settings.get("namespace") or context_namespace(given) or "default"
            if kubeconfig is not None:
                api = Api(kubeconfig, namespace)
                api.check()
                self._api = api
        except ProviderError as error:
            self._unreachable = f"unable to load schema information from the API server: {error}"

    @property
    def api(self) -> Api:
        """The API server. Raises `UnreachableError` if it was unreachable in `configure`."""
        if self._api is None:
            raise UnreachableError(
                f"configured Kubernetes cluster is unreachable: {self._unreachable}"
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

    def baseline(self, type_: str, state: Bag, old: Bag, new: Bag) -> Bag:
        if not isinstance(state.get("metadata"), dict):
            return old
        is_typed = _is_built_in(old.get("apiVersion") or state.get("apiVersion") or "")
        live: Bag = prune(state, old, is_typed=is_typed)
        return live

    def preview(self, work: Work, state: Bag, inputs: Bag) -> Bag:
        if has_unknown(inputs.get("metadata")) or not isinstance(inputs.get("metadata"), dict):
            return {"status": UNKNOWN, **inputs}
        thing = _manifest(inputs)
        is_tried = state or not _is_patch(work.type)
        if self._api is not None and is_tried and not has_unknown(inputs):
            served = self._api.kind_of(thing["apiVersion"], thing["kind"])
            if served is not None:
                forecast = self._try(self._api, thing, served, state)
                if forecast is not None:
                    return _outputs(forecast, inputs, _manager(state, inputs))
        known = state.get("metadata") or {"uid": UNKNOWN, "resourceVersion": UNKNOWN}
        return {
            **thing,
            "metadata": {**known, **thing["metadata"]},
            "status": state.get("status") or UNKNOWN,
        }

    def _try(self, api: Api, thing: Bag, served: Kind, state: Bag) -> Bag | None:
        """Return the result of a dry run on the server.

        Returns None if the server cannot tell. That is so if the namespace does not exist yet, or
        if the object still exists because it is about to be replaced.
        """
        path = api.path_of(thing, served)
        if state:
            live = self._find(path)
            return self._write(path, thing, live, _manager(state, thing), is_preview=True)
        try:
            answer = self._create(path, thing, _manager(state, thing), is_preview=True)
        except ApiError as error:
            if error.status == NOT_FOUND or error.reason == ALREADY_EXISTS:
                return None
            raise
        answer["metadata"] |= {"uid": UNKNOWN, "resourceVersion": UNKNOWN}
        answer["status"] = UNKNOWN
        return answer

    def create(self, work: Work, inputs: Bag) -> Created:
        thing = _manifest(inputs)
        manager = annotation(inputs, PATCH_FIELD_MANAGER) or (
            f"pulumi-kubernetes-{secrets.token_hex(4)}"
        )
        path = self._path(work, thing)
        if _is_patch(work.type):
            live = self.api.apply(path, thing, manager=manager, force=self._forces(thing))
        else:
            live = self._create_patiently(work, path, thing, manager)
        live = self._wait(work, path, live, inputs, manager)
        return Created(_identity(live), _outputs(live, inputs, manager))

    def _create_patiently(self, work: Work, path: str, thing: Bag, manager: str) -> Bag:
        """Create an object; retry while its namespace or its kind does not exist."""
        for _ in self._polls(DISCOVERY_SECONDS):
            try:
                return self._create(path, thing, manager)
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise
                work.report(f"creation failed: {error}")
                failure = error
        raise failure

    def _create(self, path: str, thing: Bag, manager: str, *, is_preview: bool = False) -> Bag:
        """Create an object, or adopt an existing one if the settings allow it; return the object.

        A preview does not tell about conflicts.
        """
        if self._is_set("upsertExistingObjects"):
            force = is_preview or self._forces(thing)
            return self.api.apply(path, thing, manager=manager, force=force, dry_run=is_preview)
        try:
            return self.api.create(path, thing, dry_run=is_preview)
        except ApiError as error:
            if error.reason != ALREADY_EXISTS or is_preview:
                raise
            advice = "Intentional upsert: set upsertExistingObjects on the provider"
            raise ApiError(error.status, f"{error}\n{advice}", error.reason) from error

    def update(self, work: Work, state: Bag, old: Bag, new: Bag) -> Bag:
        thing, former, manager = _manifest(new), _manager(state, old), _manager(state, new)
        served = self.api.kind_of(thing["apiVersion"], thing["kind"])
        if served is None:
            raise _missing_kind("update", thing)
        path = self.api.path_of(thing, served)
        live = self._find(path)
        if not _is_patch(work.type) and not _is_definition(thing):
            live = self._take_over_fields(path, live, manager)
        live = self._write(path, thing, live, manager)
        live = self._wait(work, path, live, new, manager)
        if former != manager:
            self._relinquish(path, thing, former)
        return _outputs(live, new, manager)

    def _find(self, path: str) -> Bag:
        """Return the live object. Raises `ApiError` if it has been deleted."""
        try:
            return self.api.request("GET", path)
        except ApiError as error:
            raise ApiError(error.status, f"update of resource failed: {error}") from error

    def _write(
        self, path: str, thing: Bag, live: Bag, manager: str, *, is_preview: bool = False
    ) -> Bag:
        """Update an object as a whole; return the result."""
        if _is_definition(thing):
            version = {"resourceVersion": live["metadata"]["resourceVersion"]}
            whole = {**thing, "metadata": {**thing["metadata"], **version}}
            return self.api.replace(path, whole, manager=manager, dry_run=is_preview)
        entries = live["metadata"].get("managedFields") or []
        force = self._forces(thing) or (is_preview and is_created_by_pulumi(entries))
        return self.api.apply(path, thing, manager=manager, force=force, dry_run=is_preview)

    def read(self, work: Work, state: Bag, inputs: Bag) -> ReadResult | None:
        if self._api is None:
            self._refuse_unless_forgotten(work)
            return None
        return self._read(work, state, inputs)

    def _refuse_unless_forgotten(self, work: Work) -> None:
        """Raise `UnreachableError`, unless the settings remove objects with their cluster."""
        work.warn(f"configured Kubernetes cluster is unreachable: {self._unreachable}")
        if not self._is_set("deleteUnreachable"):
            raise UnreachableError(
                "configured Kubernetes cluster is unreachable. If the cluster was deleted, you can "
                "remove this resource from Pulumi state by rerunning the operation with the "
                'PULUMI_K8S_DELETE_UNREACHABLE environment variable set to "true"'
            )
        work.warn(
            "configured Kubernetes cluster is unreachable and the `deleteUnreachable` option is "
            "enabled. Deleting the unreachable resource from Pulumi state"
        )

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
        outputs = _outputs(live, inputs, _manager(state, inputs))
        if inputs:
            is_typed = _is_built_in(thing["apiVersion"])
            found = prune({**live, **_text(inputs)}, inputs, is_typed=is_typed)
            if live["kind"] in READ_AWAITED and annotation(inputs, SKIP_AWAIT) != "true":
                reasons = rule_reasons(live, self.api.get)
                if reasons:
                    raise PartialFailureError(work.identity, outputs, reasons, found)
            return ReadResult(work.identity, outputs, found)
        imported = {
            key: value
            for key, value in outputs.items()
            if key != "status" and not key.startswith("__")
        }
        return ReadResult(work.identity, outputs, imported)

    def delete(self, work: Work, state: Bag) -> None:
        if self._api is None:
            self._refuse_unless_forgotten(work)
            return
        served = self.api.kind_of(state["apiVersion"], state["kind"])
        if served is None:
            return  # its CRD is gone, and with it every object
        path = self.api.path_of(state, served)
        if _is_patch(work.type):
            if self.api.get(path) is not None:
                self._relinquish(path, state, _manager(state, state))
            return
        policy = annotation(state, PROPAGATION) or "foreground"
        live = self.api.get(path)
        if live is None:
            return
        try:
            # By name alone: an object that another tool has created again is deleted, too.
            options = {"propagationPolicy": policy.capitalize()}
            self.api.request("DELETE", path, body=options)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return
        is_skipped = annotation(state, SKIP_AWAIT) == "true"
        if not is_skipped or state["kind"] not in SKIP_AWAIT_OF_DELETION:
            self._wait_until_gone(work, path, live["metadata"]["uid"])

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
        given = self._settings.get(setting)
        return bool(given) if given is not None else os.environ.get(FLAGS[setting]) == "true"

    def _forces(self, thing: Bag) -> bool:
        return annotation(thing, PATCH_FORCE) == "true" or self._is_set("enablePatchForce")

    def _take_over_fields(self, path: str, live: Bag, manager: str) -> Bag:
        """Transfer the fields of the create and of kubectl to our manager; return the object.

        Later applies can remove these fields.
        """
        for _ in self._polls(DISCOVERY_SECONDS):
            entries = taken_over(live["metadata"].get("managedFields") or [], manager)
            if entries is None:
                break
            version = live["metadata"]["resourceVersion"]
            try:
                return self.api.own_fields(path, entries, version=version)
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
                live = self._find(path)  # its controller has written the status meanwhile
        return live

    def _relinquish(self, path: str, thing: Bag, manager: str) -> None:
        """Remove a manager's ownership, and the fields that it alone owns."""
        bare = {key: thing[key] for key in ("apiVersion", "kind")}
        named = {**bare, "metadata": {"name": thing["metadata"]["name"]}}
        self.api.apply(path, named, manager=manager, force=True)

    def _path(self, work: Work, thing: Bag) -> str:
        """Return the object's path; wait until the server serves its kind."""
        for _ in self._polls(DISCOVERY_SECONDS):
            served = self.api.kind_of(thing["apiVersion"], thing["kind"])
            if served is not None:
                return self.api.path_of(thing, served)
            work.report(f"waiting for kind {thing['kind']} in {thing['apiVersion']}")
        raise _missing_kind("creation", thing)

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
        warned: set[str] = set()
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
            for said in self._warnings_about(live):
                if said not in warned:
                    work.report(f"warning: {said}")
                warned.add(said)
        outputs = _outputs(live, inputs, manager)
        late = [f"'{live['metadata']['name']}' timed out waiting to be Ready", *reasons]
        if annotation(live, WAIT_FOR):
            late = ["timed out waiting for the condition"]
        raise PartialFailureError(_identity(live), outputs, late)

    def _warnings_about(self, live: Bag) -> list[str]:
        """Return the Warning events of an object, which the real provider shows while it waits."""
        selected = {"involvedObject.uid": live["metadata"]["uid"], "type": "Warning"}
        selector = ",".join(f"{field}={value}" for field, value in selected.items())
        events = self.api.request("GET", "/api/v1/events", query={"fieldSelector": selector})
        return [f"{each['reason']}: {each['message']}" for each in events["items"]]

    def _wait_until_gone(self, work: Work, path: str, uid: str) -> None:
        reason = ""
        for _ in self._polls(work.timeout or DEFAULT_SECONDS):
            live = self.api.get(path)
            if live is None or live["metadata"]["uid"] != uid:
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


def _missing_kind(operation: str, thing: Bag) -> MissingKindError:
    return MissingKindError(
        f"{operation} of {thing['kind']} {thing['metadata']['name']} failed because the Kubernetes "
        f"API server reported that the apiVersion {thing['apiVersion']} for this resource does "
        "not exist. Verify that any required CRDs have been created"
    )


def _is_definition(thing: Bag) -> bool:
    group = thing["apiVersion"].rpartition("/")[0]
    return (group, thing["kind"]) == ("apiextensions.k8s.io", "CustomResourceDefinition")


def _is_built_in(api_version: str) -> bool:
    """Return whether the real provider knows the types of an API version, as of Kubernetes' own."""
    group = api_version.rpartition("/")[0]
    is_kubernetes = "." not in group or group.endswith(".k8s.io")
    return is_kubernetes and not group.endswith((".x-k8s.io", "apiextensions.k8s.io"))


def _is_patch(type_: str) -> bool:
    """Return whether the type patches an object that this stack does not manage."""
    return type_.endswith("Patch")


def _manager(state: Bag, inputs: Bag) -> str:
    """Return the field manager that the inputs name, or else the one of the state."""
    named = annotation(inputs, PATCH_FIELD_MANAGER)
    return named or str(state.get(FIELD_MANAGER) or "pulumi-kubernetes")


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
