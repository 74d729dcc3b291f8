"""A page in a real Chromium, driven by the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE = 30.0


class Page:
    """One page. What it logs as an error is collected in `faults`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.faults: list[str] = []
        self._loaded = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, PATIENCE)

    async def open(self, url: str, *, width: int = 1280, height: int = 800) -> None:
        """Load a page."""
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            await self.call(f"{domain}.enable")
        await self.resize(width, height)
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), PATIENCE)

    async def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    async def prefer(self, scheme: str) -> None:
        """Prefer `dark` or `light`."""
        await self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    async def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Return the value of an expression as soon as it is true."""
        poll = f"""new Promise((resolve, reject) => {{
          const end = Date.now() + {PATIENCE * 900};
          const look = () => {{
            let found = null;
            try {{ found = {expression}; }} catch (error) {{ found = null; }}
            if (found) resolve(found);
            else if (Date.now() > end) reject(new Error({json.dumps(expression)} + " stays false"));
            else requestAnimationFrame(look);
          }};
          look();
        }})"""
        return await self.value(poll)

    async def text(self, selector: str) -> str:
        """Return the text that is shown in an element."""
        return str(await self.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        x, y = await self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    async def press(self, *keys: str) -> None:
        """Press keys, such as `Tab` or `ArrowRight`."""
        for key in keys:
            text = {"Enter": "\r"}.get(key, "")
            for kind in ("keyDown", "keyUp"):
                await self.call(
                    "Input.dispatchKeyEvent",
                    type=kind, key=key, code=key, text=text if kind == "keyDown" else "",
                    windowsVirtualKeyCode=CODES.get(key, 0),
                )  # fmt: skip

    async def write(self, text: str) -> None:
        """Write a text into the focused element."""
        await self.call("Input.insertText", text=text)

    async def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of the window, or of the whole page."""
        taken = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(taken["data"]))

    async def _read(self) -> None:
        async for message in self._socket:
            content = message.json()
            if "id" in content:
                waiting = self._answers.pop(content["id"])
                if "error" in content:
                    waiting.set_exception(RuntimeError(content["error"]["message"]))
                else:
                    waiting.set_result(content["result"])
            elif content["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif content["method"] == "Runtime.exceptionThrown":
                details = content["params"]["exceptionDetails"]
                self.faults.append(details.get("exception", details).get("description", ""))
            elif content["method"] == "Log.entryAdded":
                entry = content["params"]["entry"]
                if entry["level"] == "error":
                    self.faults.append(f"{entry['text']} {entry.get('url', '')}")


CODES = {"Tab": 9, "Enter": 13, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38,
         "ArrowRight": 39, "ArrowDown": 40}  # fmt: skip


@contextlib.asynccontextmanager
async def page(devtools: str) -> AsyncIterator[Page]:
    """Open the one page of a running Chromium."""
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{devtools}/json/list") as answer:
            target = next(each for each in await answer.json() if each["type"] == "page")
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            opened = Page(socket)
            await opened.call("Network.enable")
            await opened.call("Network.clearBrowserCookies")
            yield opened
            await opened.call("Page.navigate", url="about:blank")
