"""The process of the package: creates components, and runs the providers of their resources.

Python resources with a provider of their own usually run in the virtual environment of the program.
A program in another language has none, and the one of a Python program lacks Joiner. So this
process, which runs in the environment of the package, answers for them (`registeredresource`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import grpc
import pulumi
from google.protobuf import empty_pb2
from pulumi.provider import ConstructResult, Provider
from pulumi.provider.server import ProviderServicer
from pulumi.runtime import proto, rpc
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc, provider_pb2_grpc

from infra.joiner import Joiner
from infra.lifecycle.enginecall import is_for_users
from infra.lifecycle.providerregistry import provider
from infra.lifecycle.registeredresource import PROVIDER, PackageReference, package
from infra.lifecycle.waiting import output
from infra.plugin.arguments import joiner_args
from infra.plugin.schema import COMPONENT, NAME, outputs, schema
from infra.release import version

MESSAGE_LIMIT_BYTES = 400 * 1024 * 1024
"""Pulumi's own limit: the state of a large stack passes in one message."""


WORKERS = 64
PROVIDERS = ThreadPoolExecutor(WORKERS)
"""Runs the providers. The SDK's own threads wait for them, so the two need threads of their own."""


class Package(Provider):
    """Creates the component for programs in any language."""

    own_provider: str = ""
    """The engine's reference to this process, known once the engine has configured it."""

    def __init__(self) -> None:
        super().__init__(version(), json.dumps(schema(version())))

    def construct(
        self,
        name: str,
        resource_type: str,
        inputs: pulumi.Inputs,
        options: pulumi.ResourceOptions | None = None,
    ) -> ConstructResult:
        """Create the component, and return its URN and outputs.

        Raises:
            RunError: an argument or a setting cannot be used, or a resource of another owner has
                one of the names.

        """
        if resource_type != COMPONENT:
            raise pulumi.RunError(f"{resource_type} is unknown: allowed is {COMPONENT}")
        package.set(PackageReference(NAME, self.own_provider))
        made = Joiner(name, joiner_args(inputs), options)
        state = {key: getattr(made, attribute) for key, attribute in outputs().items()}
        return ConstructResult(made.urn, state)


class PackageServicer(ProviderServicer):
    """Answers the engine's calls for the component, and for resources with providers of Joiner."""

    def __init__(self, provider: Package, args: list[str], engine: str) -> None:
        super().__init__(provider, args, engine)
        self._package = provider
        self._engine = engine_pb2_grpc.EngineStub(grpc.insecure_channel(engine))

    async def Configure(self, request: Any, context: Any) -> Any:
        self._package.own_provider = f"{request.urn}::{request.id}"
        return await super().Configure(request, context)

    async def Construct(self, request: Any, context: Any) -> Any:
        try:
            return await super().Construct(request, context)
        except pulumi.RunError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))

    async def Check(self, request: Any, context: Any) -> Any:
        olds, news = _read(request.olds), _read(request.news)
        checked = await self._answer(request, context, _provider(news).check, olds, news)
        failures = [
            proto.CheckFailure(property=one.property, reason=one.reason) for one in checked.failures
        ]
        inputs = await _serialize(checked.inputs, news, request.news)
        return proto.CheckResponse(inputs=inputs, failures=failures)

    async def Diff(self, request: Any, context: Any) -> Any:
        olds, news = _read(request.olds), _read(request.news)
        found = await self._answer(request, context, _provider(news).diff, request.id, olds, news)
        changes = {
            None: proto.DiffResponse.DIFF_UNKNOWN,
            True: proto.DiffResponse.DIFF_SOME,
            False: proto.DiffResponse.DIFF_NONE,
        }
        return proto.DiffResponse(
            changes=changes[found.changes],
            replaces=found.replaces or [],
            deleteBeforeReplace=bool(found.delete_before_replace),
        )

    async def Create(self, request: Any, context: Any) -> Any:
        props = _read(request.properties)
        made = await self._answer(request, context, _provider(props).create, props)
        outs = await _serialize(made.outs or {}, props, request.properties)
        return proto.CreateResponse(id=made.id, properties=outs)

    async def Read(self, request: Any, context: Any) -> Any:
        props = _read(request.properties)
        found = await self._answer(request, context, _provider(props).read, request.id, props)
        outs = await _serialize(found.outs, props, request.properties)
        inputs = request.inputs
        if found.inputs is not None:
            inputs = await _serialize(found.inputs, props, request.inputs)
        return proto.ReadResponse(id=found.id, properties=outs, inputs=inputs)

    async def Update(self, request: Any, context: Any) -> Any:
        olds, news = _read(request.olds), _read(request.news)
        made = await self._answer(request, context, _provider(news).update, request.id, olds, news)
        return proto.UpdateResponse(
            properties=await _serialize(made.outs or {}, news, request.news)
        )

    async def Delete(self, request: Any, context: Any) -> Any:
        props = _read(request.properties)
        await self._answer(request, context, _provider(props).delete, request.id, props)
        return empty_pb2.Empty()

    async def _answer(
        self, request: Any, context: Any, method: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Return the provider's answer, from a thread: it may wait for AWS for minutes."""

        def answer() -> Any:
            # The engine hides what the process of a package prints.
            output.set(lambda line: self._log(request.urn, line))
            return method(*arguments)

        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(PROVIDERS, copy_context().run, answer)
        except Exception as error:
            if is_for_users(error):
                await context.abort(grpc.StatusCode.UNKNOWN, str(error))
            raise

    def _log(self, urn: str, line: str) -> None:
        self._engine.Log(engine_pb2.LogRequest(severity=engine_pb2.INFO, message=line, urn=urn))


def main() -> None:
    """Serve the engine until it ends this process; the last argument is the engine's address."""
    try:
        asyncio.run(_serve(sys.argv[-1]))
    except KeyboardInterrupt:  # the engine has finished
        return


async def _serve(engine: str) -> None:
    # The SDK holds a thread for each resource that is being created.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(WORKERS))
    limits = [
        ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ]
    server = grpc.aio.server(options=limits)
    servicer = PackageServicer(Package(), sys.argv[1:], engine)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)  # the engine connects to it
    await server.wait_for_termination()


def _provider(props: Mapping[str, Any]) -> Any:
    return provider(props[PROVIDER])


def _read(properties: Any) -> dict[str, Any]:
    """Return the properties of a resource without their secrecy."""
    read = rpc.deserialize_properties(properties, keep_unknowns=True)
    return {key: rpc.unwrap_rpc_secret(value) for key, value in read.items()}


async def _serialize(made: Mapping[str, Any], props: Mapping[str, Any], asked: Any) -> Any:
    """Return properties for the engine; what was secret in those it asked with is secret."""
    given = rpc.deserialize_properties(asked, keep_unknowns=True)
    secret = {key for key, value in given.items() if rpc.is_rpc_secret(value)}
    outs = {
        key: rpc.wrap_rpc_secret(value) if key in secret else value for key, value in made.items()
    }
    return await rpc.serialize_properties({**outs, PROVIDER: props[PROVIDER]}, {})
