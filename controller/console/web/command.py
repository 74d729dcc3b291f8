"""The command `web`: serves a page on a live cluster, or on a recorded world."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from multiprocessing import parent_process
from pathlib import Path

from controller.console import costhistory, study
from controller.console.feed import Feed, Point
from controller.console.web.server import application, is_loopback, serving
from controller.offline.commandline import (
    CommandError,
    add_now,
    add_source,
    parse_with_settings,
    run_command,
)

LOOPBACK = "127.0.0.1"
HOSTS = frozenset({LOOPBACK, "localhost", "::1"})
TOKEN = "JOINER_WEB_TOKEN"  # noqa: S105 - the name of an environment variable
SHORTEST_TOKEN = 16
MAX_PORT = 65535


def web(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `web`; return the exit code."""
    chosen, settings = parse_with_settings(parser(), argv)

    def serve() -> int:
        if chosen.prometheus and chosen.world is not None:
            raise CommandError("--prometheus is for a live cluster; remove it, or WORLD.json")
        if chosen.prometheus_selector and not chosen.prometheus:
            raise CommandError("--prometheus-selector needs --prometheus; add it")
        token = _token(chosen, environ)
        return asyncio.run(_serve(chosen, study.source_of(chosen, settings, environ), token))

    return run_command(serve)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="joiner web",
        description="Serve a web page: the nodes with their pods, their cost and a lower bound on "
        "it, decisions, pending pods, and answers to what-if questions. It shows the cluster of "
        "KUBECONFIG, or a recorded world. The command changes nothing.",
    )
    add_source(parser, time_limit=20.0)
    parser.add_argument(
        "--bind",
        default=LOOPBACK,
        metavar="ADDRESS",
        help="address to listen on (default 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=8090,
        metavar="PORT",
        help="port to listen on (default 8090); 0 takes a free port",
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="an additional host name of the page's URL, such as that of an Ingress",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the token that the page requires; without it, the token is {TOKEN}. "
        "Required unless --bind is a loopback address",
    )
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="the Prometheus that scrapes the controller, such as http://127.0.0.1:9090; the page "
        "then shows the cost of the last day, not only since the start of the command",
    )
    parser.add_argument(
        "--prometheus-selector",
        default="",
        metavar="MATCHERS",
        help="label matchers, such as 'cluster=\"prod\"', if that Prometheus scrapes several "
        "clusters",
    )
    study.add_interval(parser)
    add_now(parser)
    return parser


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {MAX_PORT}")
    return int(text)


def _token(chosen: argparse.Namespace, environ: Mapping[str, str]) -> str:
    token, given = environ.get(TOKEN, ""), TOKEN if TOKEN in environ else ""
    if chosen.token_file is not None:
        try:
            token = chosen.token_file.read_text(errors="replace").strip()
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise CommandError(f"--token-file {chosen.token_file}: {why}") from error
        given = f"--token-file {chosen.token_file}"
    if given and not token:
        raise CommandError(
            f"{given} is empty; write a token into it, such as from `openssl rand -hex 16`, or "
            "leave it out to serve the page without a token"
        )
    if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise CommandError(
            f"the token of --token-file or {TOKEN} is too short or has invalid characters: allowed "
            f"are at least {SHORTEST_TOKEN} ASCII characters, such as from `openssl rand -hex 16`"
        )
    if not token and not is_loopback(chosen.bind):
        raise CommandError(
            f"--bind {chosen.bind} can be reached from other machines: give --token-file or {TOKEN}"
        )
    return token


@contextmanager
def beside(port: int, argv: Sequence[str], environ: Mapping[str, str]) -> Iterator[None]:
    """Serve the page on this port of the loopback address, in a process of its own.

    The process ends with the context, and with its parent. `argv` are flags of `run`.
    """
    source = study.Source(settings=list(argv), environ=dict(environ))
    serve = multiprocessing.get_context("spawn").Process(target=_serve_beside, args=(source, port))
    serve.start()
    try:
        yield
    finally:
        serve.terminate()
        serve.join()


def _serve_beside(source: study.Source, port: int) -> None:
    asyncio.run(_serve_for_parent(source, port))


async def _serve_for_parent(source: study.Source, port: int) -> None:
    done, loop, parent = asyncio.Event(), asyncio.get_running_loop(), parent_process()
    assert parent is not None, "this process was started by another"
    loop.add_signal_handler(signal.SIGTERM, done.set)
    loop.add_reader(parent.sentinel, done.set)
    async with served(source, LOOPBACK, port):
        await done.wait()


async def _serve(chosen: argparse.Namespace, source: study.Source, token: str) -> int:
    done, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    hosts = {chosen.bind, *HOSTS, *chosen.host}
    feed = Feed()
    feed.history.extend(await _history(chosen))
    try:
        async with served(
            source, chosen.bind, chosen.port, hosts=hosts, token=token, feed=feed
        ) as port:
            _say(chosen.bind, port, token)
            await done.wait()
    except OSError as error:
        raise CommandError(
            f"cannot listen on {chosen.bind}:{chosen.port}: {error}; change --bind or --port "
            "(--port 0 takes a free port)"
        ) from error
    return 0


async def _history(chosen: argparse.Namespace) -> Sequence[Point]:
    """Return the cost of the last day; none if Prometheus cannot be read, and say so."""
    if not chosen.prometheus:
        return []
    try:
        found = await costhistory.read(
            chosen.prometheus, datetime.now(UTC), chosen.prometheus_selector
        )
    except costhistory.HistoryError as error:
        # The URL may have a password.
        print(f"--prometheus: {error}; the cost history starts now", file=sys.stderr)
        return []
    if not found:
        print(
            "--prometheus: no series of karpenter_nodepools_cost_total matches "
            "--prometheus-selector; the cost history starts now",
            file=sys.stderr,
        )
    return found


@asynccontextmanager
async def served(
    source: study.Source,
    bind: str,
    port: int,
    *,
    hosts: Iterable[str] = HOSTS,
    token: str = "",
    feed: Feed | None = None,
) -> AsyncIterator[int]:
    """Serve the page within the context; yield its port.

    `hosts` and `token` are those of `server.application`. `feed` may have a cost history; None is
    an empty feed.
    """
    feed = feed or Feed()
    async with study.studied(source, feed) as studied:
        app = application(feed, studied.answer, hosts=hosts, token=token)
        async with serving(app, bind, port) as served_port:
            yield served_port


def _say(bind: str, port: int, token: str) -> None:
    host = f"[{bind}]" if ":" in bind else bind
    print(f"http://{host}:{port}/", flush=True)
    if token:
        print("The page requires the token.", file=sys.stderr)
