"""The gRPC side of a provider, shared by all stand-ins."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import any_pb2, empty_pb2
from google.rpc import status_pb2
from pulumi.runtime.proto import (
    engine_pb2,
    engine_pb2_grpc,
    plugin_pb2,
    provider_pb2,
    provider_pb2_grpc,
)

from testbed.plugins.codec import Bag, decode_bag, encode_bag, keep_secret, plain
from testbed.plugins.differences import Difference, differences, lies_under
from testbed.plugins.lifetime import new_server, serve
from testbed.plugins.naming import DEFAULTS
from testbed.plugins.provider import (
    Checked,
    PartialFailureError,
    Proposal,
    Provider,
    ProviderError,
    Work,
)


class ProviderService(provider_pb2_grpc.ResourceProviderServicer):
    """Answers the engine's calls for one provider."""

    def __init__(self, provider: Provider, engine_address: str | None) -> None:
        self._provider = provider
        self._engine = _engine_at(engine_address) if engine_address else None

    def Handshake(self, request: Any, context: Any) -> Any:
        return provider_pb2.ProviderHandshakeResponse(
            accept_secrets=True,
            accept_resources=False,
            accept_outputs=False,
            supports_autonaming_configuration=True,
        )

    def Attach(self, request: Any, context: Any) -> Any:
        self._engine = _engine_at(request.address)
        return empty_pb2.Empty()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:
        return plugin_pb2.PluginInfo(version=self._provider.version)

    def GetSchema(self, request: Any, context: Any) -> Any:
        schema = {"name": self._provider.name, "version": self._provider.version}
        return provider_pb2.GetSchemaResponse(schema=json.dumps(schema))

    def GetMapping(self, request: Any, context: Any) -> Any:
        return provider_pb2.GetMappingResponse()

    def GetMappings(self, request: Any, context: Any) -> Any:
        return provider_pb2.GetMappingsResponse()

    def CheckConfig(self, request: Any, context: Any) -> Any:
        with _translated(context):
            inputs = decode_bag(request.news)
            settings = _settings(inputs)
            return _check_response(Checked(inputs, self._provider.check_settings(settings)))

    def DiffConfig(self, request: Any, context: Any) -> Any:
        with _translated(context):
            old = plain(decode_bag(request.old_inputs or request.olds))
            new = plain(decode_bag(request.news))
            return _diff_response(
                list(differences(old, new)),
                lambda path: self._provider.must_replace_settings(path, old, new),
                False,
            )

    def Configure(self, request: Any, context: Any) -> Any:
        with _translated(context):
            self._provider.configure(_settings(decode_bag(request.args)))
            return provider_pb2.ConfigureResponse(
                acceptSecrets=True,
                supportsPreview=True,
                acceptResources=False,
                acceptOutputs=False,
                supports_autonaming_configuration=True,
            )

    def Check(self, request: Any, context: Any) -> Any:
        with _translated(context):
            return _check_response(self._provider.check(_proposal(request)))

    def Diff(self, request: Any, context: Any) -> Any:
        with _translated(context):
            old, new = plain(decode_bag(request.old_inputs)), plain(decode_bag(request.news))
            state = plain(decode_bag(request.olds))
            old = self._provider.baseline(request.type, state, old, new)
            for key in new.get(DEFAULTS) or []:
                # An imported resource never had its defaults as inputs.
                if key not in old and key in new:
                    old[key] = new[key]
            unignored = [
                difference
                for difference in differences(old, new)
                if not lies_under(difference.path, request.ignoreChanges)
            ]
            return _diff_response(
                unignored,
                lambda path: self._provider.must_replace(request.type, path, old, new),
                self._provider.must_delete_first(request.type, old, new),
            )

    def Create(self, request: Any, context: Any) -> Any:
        inputs = decode_bag(request.properties)
        work = self._work(request)
        with _translated(context, inputs):
            if request.preview:
                outputs = self._provider.preview(work, {}, plain(inputs))
                return provider_pb2.CreateResponse(
                    properties=encode_bag(keep_secret(outputs, inputs))
                )
            created = self._provider.create(work, plain(inputs))
            return provider_pb2.CreateResponse(
                id=created.identity, properties=encode_bag(keep_secret(created.outputs, inputs))
            )

    def Read(self, request: Any, context: Any) -> Any:
        inputs, state = decode_bag(request.inputs), decode_bag(request.properties)
        with _translated(context, inputs):
            resource = self._provider.read(self._work(request), plain(state), plain(inputs))
            if resource is None:
                return provider_pb2.ReadResponse()
            return provider_pb2.ReadResponse(
                id=resource.identity,
                properties=encode_bag(keep_secret(resource.outputs, inputs, state)),
                inputs=encode_bag(keep_secret(resource.inputs, inputs)),
            )

    def Update(self, request: Any, context: Any) -> Any:
        old, new = decode_bag(request.old_inputs), decode_bag(request.news)
        state = decode_bag(request.olds)
        work = self._work(request)
        with _translated(context, new):
            if request.preview:
                outputs = self._provider.preview(work, plain(state), plain(new))
            else:
                outputs = self._provider.update(work, plain(state), plain(old), plain(new))
            return provider_pb2.UpdateResponse(properties=encode_bag(keep_secret(outputs, new)))

    def Delete(self, request: Any, context: Any) -> Any:
        with _translated(context):
            self._provider.delete(self._work(request), plain(decode_bag(request.properties)))
            return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:
        with _translated(context):
            answer = self._provider.invoke(request.tok, plain(decode_bag(request.args)))
            return provider_pb2.InvokeResponse(**{"return": encode_bag(answer)})

    def Cancel(self, request: Any, context: Any) -> Any:
        self._provider.cancelled.set()
        return empty_pb2.Empty()

    def _work(self, request: Any) -> Work:
        fields = {field.name for field, _ in request.ListFields()}
        return Work(
            type=request.type,
            identity=request.id if "id" in fields else "",
            timeout=request.timeout if "timeout" in fields else None,
            report=lambda text: self._log(
                severity=engine_pb2.INFO, message=text, urn=request.urn, ephemeral=True
            ),
            warn=lambda text: self._log(severity=engine_pb2.WARNING, message=text, urn=request.urn),
        )

    def _log(self, **request: Any) -> None:
        if self._engine is not None:
            self._engine.Log(engine_pb2.LogRequest(**request))


def _engine_at(address: str) -> Any:
    return engine_pb2_grpc.EngineStub(grpc.insecure_channel(address))


def _settings(inputs: Bag) -> Bag:
    """Return the provider's settings in plain values; nested ones arrive as JSON text."""
    return {key: _parse_nested(value) for key, value in plain(inputs).items()}


def _parse_nested(value: Any) -> Any:
    if not isinstance(value, str) or not (value[:1] in ("[", "{") or value in ("true", "false")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value  # text that only looks like JSON, such as a kubeconfig in YAML flow style


def _proposal(request: Any) -> Proposal:
    automatic = request.autonaming if request.HasField("autonaming") else None
    return Proposal(
        type=request.type,
        name=request.name or request.urn.rpartition("::")[2],
        old=decode_bag(request.olds),
        new=decode_bag(request.news),
        proposed_name=(automatic.proposed_name or None) if automatic is not None else None,
        random_seed=request.randomSeed,
    )


def _check_response(checked: Checked) -> Any:
    return provider_pb2.CheckResponse(
        inputs=encode_bag(checked.inputs),
        failures=[
            provider_pb2.CheckFailure(property=fault.property, reason=fault.reason)
            for fault in checked.faults
        ],
    )


def _diff_response(
    differences: list[Difference], must_replace: Callable[[str], bool], delete_first: bool
) -> Any:
    replaced = {difference.path for difference in differences if must_replace(difference.path)}
    some = (
        provider_pb2.DiffResponse.DIFF_SOME if differences else provider_pb2.DiffResponse.DIFF_NONE
    )
    return provider_pb2.DiffResponse(
        changes=some,
        replaces=sorted(replaced),
        diffs=sorted({difference.property for difference in differences}),
        detailedDiff={
            difference.path: _property_diff(difference, is_replaced=difference.path in replaced)
            for difference in differences
        },
        hasDetailedDiff=True,
        deleteBeforeReplace=bool(replaced) and delete_first,
    )


def _property_diff(difference: Difference, *, is_replaced: bool) -> Any:
    kind = f"{difference.kind}_REPLACE" if is_replaced else str(difference.kind)
    return provider_pb2.PropertyDiff(
        kind=provider_pb2.PropertyDiff.Kind.Value(kind), inputDiff=True
    )


@contextmanager
def _translated(context: Any, inputs: Bag | None = None) -> Iterator[None]:
    """Convert an exception into a gRPC error for the engine; `abort` raises its own."""
    try:
        yield
    except PartialFailureError as failure:
        detail = any_pb2.Any()
        known = failure.inputs if failure.inputs is not None else inputs or {}
        detail.Pack(_initialization_failure(failure, keep_secret(known, inputs or {})))
        code = grpc.StatusCode.UNKNOWN
        status = status_pb2.Status(code=code.value[0], message=str(failure), details=[detail])
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(code, str(failure))
    except ProviderError as error:
        context.abort(grpc.StatusCode.UNKNOWN, str(error))
    except Exception:
        # A bug of the stand-in itself; its fix needs the whole traceback.
        context.abort(grpc.StatusCode.UNKNOWN, traceback.format_exc())


def _initialization_failure(failure: PartialFailureError, inputs: Bag) -> Any:
    return provider_pb2.ErrorResourceInitFailed(
        id=failure.identity,
        properties=encode_bag(keep_secret(failure.outputs, inputs)),
        reasons=failure.reasons,
        inputs=encode_bag(inputs),
    )


def run(provider: Provider) -> None:
    """Serve the provider as the engine's plugin until the engine ends it."""
    address = sys.argv[1] if len(sys.argv) > 1 else None
    server = new_server()
    service = ProviderService(provider, address)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(service, server)
    serve(server)
