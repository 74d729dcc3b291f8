"""An event loop in its own thread, in which a part of the testbed runs beside the others."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class Background(ABC):
    """Runs one coroutine, `_main`, in its own thread, from `start` to `stop`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    @abstractmethod
    async def _main(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled, then clean up; `ready` is called once it is ready to serve."""

    @property
    def running(self) -> bool:
        """Whether the coroutine runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, *, timeout_seconds: float = 60.0) -> None:
        """Start the coroutine; return once it reports that it is ready.

        Raises TimeoutError, after stopping the coroutine, if it is not ready in time. Raises any
        error that the coroutine raised before it was ready, and RuntimeError if it runs already.
        """
        if self.running:
            raise RuntimeError(f"{self._name} runs already")
        self._ready.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        in_time = self._ready.wait(timeout_seconds)
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        if not in_time:
            self.stop()
            raise TimeoutError(f"{self._name} was not ready within {timeout_seconds:g} s")

    def check(self) -> None:
        """Raise the error that ended the coroutine, if one did."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Cancel the coroutine and wait for its cleanup. A second call does nothing."""
        if self._thread is None:
            return
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()
        self._thread = None

    def call(self, coroutine: Coroutine[Any, Any, T], *, timeout_seconds: float = 60.0) -> T:
        """Run a coroutine on the loop from another thread, and return its result.

        Raises RuntimeError if the loop does not run, and TimeoutError after `timeout_seconds`.
        """
        if self._loop is None:
            coroutine.close()
            raise RuntimeError(f"{self._name} does not run")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout_seconds)

    def _run(self) -> None:
        try:
            asyncio.run(self._supervise())
        except asyncio.CancelledError:
            log.debug("%s was stopped", self._name)
        except Exception as exc:
            self._failure = exc
            log.exception("%s failed", self._name)
        finally:
            self._ready.set()

    async def _supervise(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        await self._main(self._ready.set)
