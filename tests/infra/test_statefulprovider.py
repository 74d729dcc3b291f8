"""What Joiner's own Pulumi resources do on update, replacement and deletion."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from pulumi.dynamic import CreateResult, DiffResult, ResourceProvider

from infra.lifecycle.providerregistry import PROVIDERS, RegisteredProvider, provider
from infra.lifecycle.statefulprovider import (
    ClusterRecreatedError,
    StackMovedError,
    StatefulProvider,
)

HERE = {"cluster_name": "joiner", "region": "us-west-2", "installation": "organization/joiner/dev"}


class Recording(StatefulProvider):
    """Records what it was asked to delete."""

    identity = ("cluster_name", "role_arn")

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[dict[str, Any]] = []

    def end(self, props: dict[str, Any]) -> None:
        self.ended.append(props)


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"cluster_name": "other"}, "joiner:clusterName changes from joiner to other"),
        ({"region": "eu-west-1"}, "joiner:region changes from us-west-2 to eu-west-1"),
        ({"installation": "x"}, "joiner:installation changes from organization/joiner/dev to x"),
    ],
)
def test_the_cluster_of_a_stack_cannot_change(changed: dict[str, str], setting: str) -> None:
    with pytest.raises(StackMovedError, match=setting):
        StatefulProvider().diff("id", HERE, HERE | changed)


def test_a_recreated_cluster_is_distinguished_from_the_former() -> None:
    former = HERE | {"cluster_made_at": "2026-01-01T00:00:00+00:00"}
    recreated = HERE | {"cluster_made_at": "2026-02-01T00:00:00+00:00"}

    with pytest.raises(ClusterRecreatedError) as refused:
        StatefulProvider().diff("id", former, recreated)

    times = "created at 2026-01-01T00:00:00+00:00, and the current one was created at 2026-02-01"
    assert times in str(refused.value)
    assert "PULUMI_K8S_DELETE_UNREACHABLE=true pulumi destroy" in str(refused.value)
    assert not StatefulProvider().diff("id", former, former).changes
    assert StatefulProvider().diff("id", HERE, former).changes, "it is remembered from then on"
    StatefulProvider().diff("id", former, HERE)


def test_a_value_missing_from_an_older_state_is_not_a_change() -> None:
    before = {key: value for key, value in HERE.items() if key != "installation"}

    answer = StatefulProvider().diff("id", before, HERE)

    assert (answer.changes, answer.replaces) == (True, [])


def test_other_changes_update_without_deletion() -> None:
    provider = Recording()

    kept = provider.diff("id", HERE | {"kubeconfig": "a"}, HERE | {"kubeconfig": "b"})
    replaced = provider.diff("id", HERE | {"role_arn": "a"}, HERE | {"role_arn": "b"})

    assert (kept.changes, kept.replaces) == (True, [])
    assert (replaced.replaces, replaced.delete_before_replace) == (["role_arn"], False)
    assert not provider.diff("id", HERE, HERE | {"__provider": "code"}).changes


def test_a_recreated_object_is_replaced_without_cleanup() -> None:
    provider = Recording()
    props = HERE | {"role_arn": "made-again"}

    made = provider.create(props)
    provider.delete(made.id, props)

    assert provider.ended == []


def test_a_replaced_or_destroyed_object_is_cleaned_up() -> None:
    provider = Recording()
    provider.create(HERE | {"role_arn": "new"})

    provider.delete("joiner-old-Recording", HERE | {"role_arn": "old"})

    assert provider.ended == [HERE | {"role_arn": "old"}]


class Refusing(StatefulProvider):
    """A resource whose deletion fails, with an error of this package or of the program."""

    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        raise StackMovedError(olds, news)

    def end(self, props: dict[str, Any]) -> None:
        if "fault" in props:
            raise KeyError("cluster_name")
        raise RefusedError("the queue stays")


class RefusedError(Exception):
    """Returns the reason of a refusal."""


RefusedError.__module__ = "infra.somewhere"


def diff(_request: bytes, context: grpc.ServicerContext) -> None:
    """Call the provider as `pulumi.dynamic` does, whose argument is called `context` too."""
    Refusing().diff("id", HERE, HERE | {"region": "eu-west-1"})


def delete(request: bytes, context: grpc.ServicerContext) -> None:
    """The same; a request with text asks for a fault."""
    Refusing().delete("id", HERE | ({"fault": "yes"} if request else {}))


class Building(RegisteredProvider, ResourceProvider):
    """A provider without properties for its deletion, as that of the image."""

    kind = "image"

    def create(self, props: dict[str, Any]) -> CreateResult:
        raise RefusedError("pip cannot download")


def create(_request: bytes, context: grpc.ServicerContext) -> None:
    """The same."""
    Building().create({})


@pytest.fixture
def host() -> Iterator[grpc.Channel]:
    """A channel to a host of the provider."""
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    methods = {"Diff": diff, "Delete": delete, "Create": create}
    handlers = {name: grpc.unary_unary_rpc_method_handler(each) for name, each in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("provider", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(None)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("Create", "pip cannot download"),
        ("Delete", "the queue stays"),
        ("Diff", "this stack cannot be moved: joiner:region changes"),
    ],
)
def test_a_refusal_reaches_the_engine_with_its_message(
    host: grpc.Channel, caplog: pytest.LogCaptureFixture, method: str, words: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        host.unary_unary(f"/provider/{method}")(b"")

    assert refused.value.details().startswith(words)
    assert caplog.records == []


def test_a_fault_of_the_program_keeps_its_traceback(
    host: grpc.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(grpc.RpcError, match="Exception calling application: 'cluster_name'"):
        host.unary_unary("/provider/Delete")(b"fault")

    assert any(record.exc_info for record in caplog.records)


def test_outside_the_engine_errors_are_raised_unchanged() -> None:
    with pytest.raises(RefusedError, match="the queue stays"):
        Refusing().delete("id", HERE)


def test_an_unknown_provider_kind_leaves_the_state_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_later = provider("of-a-later-version")

    again = pickle.loads(pickle.dumps(of_later))

    assert not again.diff("joiner-x", HERE, HERE | {"more": "b"}).changes
    assert again.read("joiner-x", HERE).outs == HERE
    again.delete("joiner-x", HERE)
    said = capsys.readouterr().out
    assert said.startswith("warning: ")
    assert "of-a-later-version" in said
    assert "joiner-x" in said


def test_every_provider_kind_of_a_state_has_a_class() -> None:
    assert {kind: type(provider(kind)).kind for kind in PROVIDERS} == {k: k for k in PROVIDERS}
