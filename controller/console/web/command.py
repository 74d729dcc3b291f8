"""The command `web`: serves a page on a live cluster, or on a recorded world."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from controller.console.web import study
from controller.console.web.server import Feed, Refresher, application, is_loopback, serving
from controller.offline.commandline import (
    QuestionError,
    add_connection,
    add_now,
    answered,
    connection,
    parsed_with_settings,
    positive,
    seconds,
)

LOOPBACK = "127.0.0.1"
HOSTS = frozenset({LOOPBACK, "localhost", "::1"})
PAUSE_SECONDS = 30.0
TOKEN = "JOINER_WEB_TOKEN"  # noqa: S105 - the name of an environment variable
SHORTEST_TOKEN = 16


def web(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the command `web`."""
    chosen, settings = parsed_with_settings(parser(), argv)
    source = study.Source(
        world=chosen.world,
        now=chosen.now,
        settings=settings,
        environ=dict(connection(chosen, environ)),
        time_limit=chosen.time_limit,
    )
    return answered(lambda: asyncio.run(_serve(chosen, source, _token(chosen, environ))))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = argparse.ArgumentParser(
        prog="joiner web",
        description="Serve a page: the nodes with their pods, the cost against its lower bound, "
        "decisions, pending pods, and answers to what-if questions. It shows the cluster of "
        "KUBECONFIG, or a recorded world. The command changes nothing.",
    )
    parser.add_argument(
        "world", metavar="WORLD.json", nargs="?", type=Path, help="a recorded world"
    )
    parser.add_argument("--bind", default=LOOPBACK, metavar="ADDRESS", help="default 127.0.0.1")
    parser.add_argument("--port", type=int, default=8090, help="default 8090; 0: a free port")
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name by which the page is called, as in a browser's address",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"file with the token that the page asks for; without it, the token is {TOKEN}. "
        "Required unless --bind is a loopback address",
    )
    parser.add_argument(
        "--interval",
        type=positive,
        default=int(PAUSE_SECONDS),
        metavar="SECONDS",
        help="between reads (30)",
    )
    add_connection(parser)
    add_now(parser)
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=20.0,
        metavar="SECONDS",
        help="the longest time of each evaluation (default 20)",
    )
    return parser


def _token(chosen: argparse.Namespace, environ: Mapping[str, str]) -> str:
    token = environ.get(TOKEN, "")
    if chosen.token_file is not None:
        try:
            token = chosen.token_file.read_text().strip()
        except OSError as error:
            why = os.strerror(error.errno or 0)
            raise QuestionError(f"--token-file {chosen.token_file}: {why}") from error
    if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise QuestionError(
            f"the token is too short or has characters that a header cannot carry: give at least "
            f"{SHORTEST_TOKEN}, such as those of `openssl rand -hex 16`"
        )
    if not token and not is_loopback(chosen.bind):
        raise QuestionError(
            f"--bind {chosen.bind} can be reached from other machines: give --token-file or {TOKEN}"
        )
    return token


async def _serve(chosen: argparse.Namespace, source: study.Source, token: str) -> int:
    done, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    pause = None if source.world is not None else float(chosen.interval)
    hosts = {chosen.bind, *HOSTS, *chosen.host}
    try:
        async with served(
            source, chosen.bind, chosen.port, hosts=hosts, token=token, pause=pause, done=done
        ) as port:
            _say(chosen.bind, port, token)
            await done.wait()
    except OSError as error:
        raise QuestionError(f"cannot serve on {chosen.bind}:{chosen.port}: {error}") from error
    return 0


@asynccontextmanager
async def served(
    source: study.Source,
    bind: str,
    port: int,
    *,
    hosts: Iterable[str] = HOSTS,
    token: str = "",
    pause: float | None = PAUSE_SECONDS,
    done: asyncio.Event | None = None,
) -> AsyncIterator[int]:
    """Serve the page within the context; yield its port.

    `pause` is the number of seconds between two reads; None reads once. `done` is set if the worker
    process ends.
    """
    spawning, feed = multiprocessing.get_context("spawn"), Feed()
    worker = ProcessPoolExecutor(1, spawning, initializer=study.start, initargs=(source,))
    try:
        app = application(feed, worker, hosts=hosts, token=token)
        async with serving(app, bind, port) as served_port:
            reading = asyncio.create_task(Refresher(feed, worker, seconds=pause).run())
            if done is not None:
                ended = done
                reading.add_done_callback(
                    lambda task: ended.set() if not task.cancelled() and task.exception() else None
                )
            try:
                yield served_port
            finally:
                reading.cancel()
    finally:
        # An evaluation may take a minute; its process is not worth the wait.
        processes = list((worker._processes or {}).values())
        worker.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _say(bind: str, port: int, token: str) -> None:
    host = f"[{bind}]" if ":" in bind else bind
    print(f"http://{host}:{port}/", flush=True)
    if token:
        print("The page asks for the token.", file=sys.stderr)
