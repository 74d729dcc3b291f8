"""Ends a plugin when its engine ends, in whatever way the engine ends.

The engine interrupts its plugins when it has finished. If it is killed, it sends nothing; then
only the change of the parent process shows it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent import futures
from types import FrameType
from typing import Any, Final

import grpc

PARENT_CHECK_SECONDS: Final = 0.5
MESSAGE_LIMIT_BYTES: Final = 400 * 1024 * 1024
WORKERS: Final = 64  # a wait for a resource holds a thread, and the engine works in parallel


def end_with_engine() -> None:
    """Exit on SIGINT and SIGTERM, and when the parent process is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()


def new_server() -> Any:
    """Return a gRPC server that accepts messages as large as the engine sends."""
    limits = [
        ("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES),
        ("grpc.max_send_message_length", MESSAGE_LIMIT_BYTES),
    ]
    return grpc.server(futures.ThreadPoolExecutor(WORKERS), options=limits)


def serve(server: Any) -> None:
    """Serve on a free loopback port, printed to stdout for the engine, until the process exits."""
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    end_with_engine()
    print(port, flush=True)
    server.wait_for_termination()


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(0)
