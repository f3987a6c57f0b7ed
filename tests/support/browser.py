"""A real browser, driven over its DevTools protocol: how a page looks, and what it asked the network for.

The protocol goes through two pipes (`--remote-debugging-pipe`): no port, no further package. Messages are
JSON, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = "chromium-headless-shell"
_SECONDS = 30.0
# What is in a picture; the browser itself counts, for it can read PNG.
_COLOURS = """
async picture => {
  const bytes = Uint8Array.from(atob(picture), letter => letter.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes]));
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const data = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const count = new Map();
  for (const pixel of data) count.set(pixel, (count.get(pixel) || 0) + 1);
  const most = Math.max(...count.values());
  return {width: image.width, height: image.height, colours: count.size, ground: most / data.length};
}
"""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A screenshot: PNG, size in pixels, number of colours, and the share of the most frequent one."""

    png: bytes
    width: int
    height: int
    colours: int
    ground: float


class Browser:
    """One running browser with one page."""

    def __init__(self, write: int, read: int) -> None:
        self._write = write
        self._read = read
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = str(attached["sessionId"])
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the page's session."""
        return self._call(method, parameters, self._session)

    def open(self, path: Path, *, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Show a file on a screen of this width, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.events.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        self._until("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """Compute something in the page, as its developer tools would, whatever its policy says."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self) -> Picture:
        """Take a picture of the whole page, not only of what fits on the screen."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        measured = self.evaluate(f"({_COLOURS})({json.dumps(taken)})")
        return Picture(png=base64.b64decode(taken), **measured)

    def print_pdf(self) -> bytes:
        """Print the page on A4."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True}
        return base64.b64decode(self.call("Page.printToPDF", **paper)["data"])

    def requests(self) -> tuple[str, ...]:
        """Name what the page was after since it was opened, itself too; not what its policy stopped."""
        told = {kind: self._told(f"Network.{kind}") for kind in ("requestWillBeSent", "loadingFailed")}
        stopped = {said["requestId"] for said in told["loadingFailed"] if said.get("blockedReason") == "csp"}
        sent = [said for said in told["requestWillBeSent"] if said["requestId"] not in stopped]
        return tuple(str(said["request"]["url"]) for said in sent)

    def complaints(self) -> tuple[str, ...]:
        """Tell what the browser's console says: scripts that failed, and what a policy forbade."""
        kinds = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return tuple(json.dumps(said) for kind in kinds for said in self._told(kind))

    def _told(self, method: str) -> list[Any]:
        return [event["params"] for event in self.events if event["method"] == method]

    def _call(self, method: str, parameters: dict[str, Any], session: str = "") -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        text = json.dumps({**message, "sessionId": session} if session else message)
        _write_all(self._write, text.encode() + b"\0")
        number = self._number
        answer = self._wait(lambda said: said.get("id") == number, method)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _until(self, event: str) -> None:
        if not any(seen["method"] == event for seen in self.events):
            self._wait(lambda said: said.get("method") == event, event)

    def _wait(self, wanted: Any, what: str) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while True:
            said = self._next(deadline, what)
            if "method" in said:
                self.events.append(said)
            if wanted(said):
                return said

    def _next(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"the browser did not answer {what} within {_SECONDS:.0f} s"
            piece = os.read(self._read, 1 << 20)
            assert piece, f"the browser ended during {what}"
            self._rest += piece
        text, _, self._rest = self._rest.partition(b"\0")
        said: dict[str, Any] = json.loads(text)
        return said


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Run a browser for as long as the block lasts. `scripts/install-host-packages` installs it."""
    with tempfile.TemporaryDirectory(prefix="ib-browser-", ignore_cleanup_errors=True) as profile:
        to_it, from_us = os.pipe()
        to_us, from_it = os.pipe()
        # It reads from descriptor 3 and writes to 4; a shell puts the pipes there.
        command = f'exec "$@" 3<&{to_it} 4>&{from_it}'
        options = [
            "--remote-debugging-pipe",
            # Its sandbox refuses to work for root, and what it shows here is our own page.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--force-color-profile=srgb",
            f"--user-data-dir={profile}",
        ]
        child = subprocess.Popen(
            ["bash", "-c", command, "bash", PROGRAM, *options],
            pass_fds=(to_it, from_it),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_it)
        os.close(from_it)
        try:
            yield Browser(from_us, to_us)
        finally:
            os.close(from_us)
            os.close(to_us)
            child.terminate()
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(timeout=10)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
