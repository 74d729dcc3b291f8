"""The AWS provider: defaults, names, tags and replacement, the same for every resource type."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from botocore.exceptions import ClientError

from testbed.plugins.awsprovider import (
    ec2,
    ecr,
    eks,
    eksclusters,
    events,
    iam,
    identity,
    networks,
    sdktypes,
    sqs,
    ssm,
)
from testbed.plugins.awsprovider.resourcetype import Function, Resource, canonical
from testbed.plugins.awsprovider.session import Session, translated, unless_gone
from testbed.plugins.codec import UNKNOWN, Bag, Secret, has_unknown, plain
from testbed.plugins.naming import DEFAULTS, is_default, name_automatically, set_default
from testbed.plugins.paths import get_at, with_value, without
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

RESOURCES: Final[Mapping[str, type[Resource]]] = {
    kind.token: kind
    for module in (ec2, ecr, eks, eksclusters, events, iam, networks, sqs)
    for kind in module.RESOURCES
}
FUNCTIONS: Final[Mapping[str, Function]] = {
    token: function
    for module in (ec2, eks, iam, identity, networks, sqs, ssm)
    for token, function in module.FUNCTIONS.items()
}

PROPAGATION_SECONDS: Final = 120.0
"""How long a creation is retried while EKS does not see a new role, as in the real provider.

Source: `propagationTimeout` in terraform-provider-aws, `internal/service/{eks,iam}`.
"""
SETTLING_POLL_SECONDS: Final = 0.1

SETTINGS: Final = frozenset(
    {
        "accessKey", "allowedAccountIds", "defaultTags", "endpoints", "forbiddenAccountIds",
        "ignoreTags", "maxRetries", "profile", "region", "retryMode", "s3UsePathStyle", "secretKey",
        "skipCredentialsValidation", "skipMetadataApiCheck", "skipRegionValidation",
        "skipRequestingAccountId", "token", "version",
    }
)  # fmt: skip
"""The settings that the stand-in applies, or that make no difference to it."""


class AwsProvider(Provider):
    """The AWS provider, as far as Joiner's Pulumi program needs it."""

    name = "aws"
    version = "7.51.1"

    def __init__(self) -> None:
        super().__init__()
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The session of the current settings. Raises `ProviderError` before `configure`."""
        if self._session is None:
            raise ProviderError("the aws provider has not been configured yet")
        return self._session

    def check_settings(self, settings: Bag) -> list[Fault]:
        return [
            Fault(key, f"the aws stand-in has no setting {key}")
            for key, value in settings.items()
            if key not in SETTINGS and not key.startswith("__") and value not in (None, "", [], {})
        ]

    def configure(self, settings: Bag) -> None:
        self._session = Session(settings)
        self._session.validate()

    def check(self, proposal: Proposal) -> Checked:
        kind = _kind(proposal.type)
        inputs = {key: value for key, value in proposal.new.items() if key != DEFAULTS}
        inputs[DEFAULTS] = []
        if kind.automatic_name and not inputs.get("namePrefix"):
            name_automatically(proposal, inputs, kind.automatic_name, limit=kind.name_limit)
        for key, value in kind.defaults.items():
            set_default(inputs, key, value)
        if kind.is_regional:
            set_default(inputs, "region", self.session.region)
        if kind.is_taggable and self.session.default_tags and inputs.get("tags") is not UNKNOWN:
            inputs["tags"] = _join_tags(self.session.default_tags, inputs.get("tags"))
        form = sdktypes.forms(RESOURCES)[proposal.type]
        wrong = [*_exclusion_faults(kind, proposal.new), *sdktypes.faults(form, plain(inputs))]
        return Checked(inputs, wrong or _canonicalize(inputs, kind.documents))

    def must_replace(self, type_: str, path: str, old: Bag, new: Bag) -> bool:
        return _kind(type_).replaces(path, old, new)

    def baseline(self, type_: str, state: Bag, old: Bag, new: Bag) -> Bag:
        kept = old
        for path in _kind(type_).sticky:
            if get_at(new, path) is None:
                kept = without(kept, path)
        return kept

    def must_delete_first(self, type_: str, old: Bag, new: Bag) -> bool:
        # Two resources cannot have the same explicit name at once.
        name = _kind(type_).automatic_name
        return (
            name is not None
            and name in new
            and old.get(name) == new[name]
            and not is_default(new, name)
        )

    def preview(self, work: Work, state: Bag, inputs: Bag) -> Bag:
        kind = _kind(work.type)
        outputs = {**dict.fromkeys(kind.computed, UNKNOWN), **_public(state), **_public(inputs)}
        outputs |= dict.fromkeys(kind.advancing, UNKNOWN)
        for name, members in kind.blocks.items():
            if isinstance(outputs.get(name), dict):
                known = state.get(name) or dict.fromkeys(members, UNKNOWN)
                outputs[name] = {**known, **outputs[name]}
        return _with_all_tags(kind, outputs)

    def create(self, work: Work, inputs: Bag) -> Created:
        resource = self._resource(work.type, inputs)
        with translated():
            identity = self._patiently(resource, inputs)
        try:
            resource.complete(identity, inputs)
            return Created(identity, self._outputs(resource, identity, inputs))
        except (ClientError, ProviderError) as error:
            outputs = _with_all_tags(type(resource), _public(inputs))
            raise PartialFailureError(identity, outputs, [str(error)]) from error

    def read(self, work: Work, state: Bag, inputs: Bag) -> ReadResult | None:
        resource = self._resource(work.type, inputs or state)
        live = self._live(resource, work.identity, {**inputs, **state})
        if live is None:
            return None
        outputs = _with_all_tags(type(resource), {**_public(state), **live})
        return ReadResult(work.identity, outputs, _live_inputs(type(resource), inputs, live))

    def update(self, work: Work, state: Bag, old: Bag, new: Bag) -> Bag:
        resource = self._resource(work.type, new)
        whole = new
        for path in resource.sticky:
            if get_at(new, path) is None:
                whole = with_value(whole, path, get_at(state, path))
        with translated():
            resource.update(work.identity, old, whole)
        return self._outputs(resource, work.identity, {**_public(state), **_public(new)})

    def delete(self, work: Work, state: Bag) -> None:
        with translated():
            unless_gone(lambda: self._resource(work.type, state).delete(work.identity, state))

    def invoke(self, function: str, arguments: Mapping[str, Any]) -> Bag:
        if function not in FUNCTIONS:
            raise ProviderError(f"the aws stand-in has no function {function}")
        with translated():
            return FUNCTIONS[function](self.session, arguments)

    def _patiently(self, resource: Resource, inputs: Bag) -> str:
        """Create a resource; retry while EKS does not see a role that is new in IAM."""
        end = time.monotonic() + PROPAGATION_SECONDS
        while True:
            try:
                return resource.create(inputs)
            except ClientError as error:
                if not _is_retried(resource, error) or time.monotonic() > end:
                    raise
            self.cancelled.wait(SETTLING_POLL_SECONDS)

    def _resource(self, type_: str, properties: Bag) -> Resource:
        return _kind(type_)(self.session, properties.get("region"))

    def _live(self, resource: Resource, identity: str, state: Bag) -> Bag | None:
        with translated():
            live = unless_gone(lambda: resource.read(identity, state))
        if live is not None and live.get("tags"):
            live["tags"] = {
                key: value for key, value in live["tags"].items() if self.session.keeps_tag(key)
            }
        return live

    def _outputs(self, resource: Resource, identity: str, known: Bag) -> Bag:
        live = self._live(resource, identity, known)
        end = time.monotonic() + resource.settling_seconds
        while live is None and time.monotonic() < end:
            self.cancelled.wait(SETTLING_POLL_SECONDS)
            live = self._live(resource, identity, known)
        if live is None:
            raise ProviderError(f"reading {resource.token} ({identity}): empty result")
        return _with_all_tags(type(resource), {**_public(known), **live})


def _is_retried(resource: Resource, error: ClientError) -> bool:
    said = error.response["Error"]
    return said["Code"] == "InvalidParameterException" and any(
        each in said["Message"] for each in resource.retried
    )


def _kind(type_: str) -> type[Resource]:
    if type_ not in RESOURCES:
        raise ProviderError(f"the aws stand-in has no resource type {type_}")
    return RESOURCES[type_]


def _exclusion_faults(kind: type[Resource], given: Bag) -> list[Fault]:
    """Return a fault for each pair of mutually exclusive inputs that are both given."""
    name = kind.automatic_name
    pairs = (*kind.exclusive, *(((name, f"{name}Prefix"),) if name else ()))
    return [
        Fault(one, f"conflicts with {other}")
        for one, other in pairs
        if given.get(one) is not None and given.get(other) is not None
    ]


def _public(properties: Bag) -> Bag:
    return {key: value for key, value in properties.items() if not key.startswith("__")}


def _with_all_tags(kind: type[Resource], outputs: Bag) -> Bag:
    return {**outputs, "tagsAll": outputs.get("tags") or {}} if kind.is_taggable else outputs


def _join_tags(defaults: Mapping[str, str], tags: Any) -> Any:
    if isinstance(tags, Secret):
        return Secret(_join_tags(defaults, tags.value))
    return {**defaults, **(tags or {})}


def _canonicalize(inputs: Bag, documents: tuple[str, ...]) -> list[Fault]:
    """Bring the JSON documents in the inputs into canonical form, in place; return the faults."""
    faults = []
    for key in documents:
        try:
            inputs[key] = _canonical_document(inputs.get(key))
        except ValueError as error:
            faults.append(Fault(key, f"is not valid JSON: {error}"))
    return faults


def _canonical_document(document: Any) -> Any:
    if isinstance(document, Secret):
        return Secret(_canonical_document(document.value))
    if document is None or has_unknown(document):
        return document
    return canonical(document if isinstance(document, str) else json.dumps(document))


def _as_asked(kind: type[Resource], key: str, asked: Any, live: Any) -> Any:
    """Return the live value in the order of the input, and limited to its members."""
    if key in kind.blocks and isinstance(asked, dict) and isinstance(live, dict):
        return {name: live.get(name, value) for name, value in asked.items()}
    if isinstance(asked, list) and isinstance(live, list):
        # AWS returns sets in any order.
        is_alike = sorted(map(str, asked)) == sorted(map(str, live))
        return asked if is_alike else live
    return live


def _live_inputs(kind: type[Resource], inputs: Bag, live: Bag) -> Bag:
    """Return the inputs that describe the resource as it is.

    Their difference from the program's inputs is the drift.
    """
    if inputs:
        return {
            key: _as_asked(kind, key, value, live.get(key, value))
            for key, value in inputs.items()
            if live.get(key, value) is not None
        }
    imported = {
        key: value
        for key, value in live.items()
        if key not in kind.computed
        and value not in (None, "", [], {})
        and kind.defaults.get(key) != value
    }
    return {**imported, DEFAULTS: []}
