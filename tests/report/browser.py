"""A headless Chromium through its DevTools pipe, without any driver package.

with Browser() as page:
    page.open(path); page.evaluate("document.title"); page.problems; page.requests
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE = Path(__file__).parent / "axe" / "axe.min.js"
PROGRAM = next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. Collects console errors, exceptions and every request that the page makes."""

    def __init__(self) -> None:
        assert PROGRAM is not None
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        from_us, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        flags += ["--remote-debugging-pipe", "--disable-background-networking", "--no-first-run"]
        # above 4, so that connecting one of them to 3 or 4 cannot overwrite the other
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (from_us, from_browser)]
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, end, 3 + i) for i, end in enumerate(ends)]
        actions += [(os.POSIX_SPAWN_OPEN, out, os.devnull, os.O_WRONLY, 0) for out in (1, 2)]
        self._process = os.posix_spawn(
            PROGRAM,
            [PROGRAM, *flags, f"--user-data-dir={self._profile.name}", "about:blank"],
            dict(os.environ),
            file_actions=actions,
        )
        for end in (from_us, from_browser, *ends):
            os.close(end)
        self._buffer = b""
        self._next = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A DevTools command and its result; events that come meanwhile are collected."""
        self._next += 1
        number = self._next
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.resolve().as_uri())
        loaded = "document.readyState === 'complete' ? done(1) : addEventListener('load', () => done(1))"
        self.evaluate(f"new Promise(done => {loaded})")

    def evaluate(self, expression: str) -> Any:
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def resize(self, width: int, height: int, dark: bool = False, scale: float = 1) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """The whole page."""
        result = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(result["data"]))

    def accessibility(self) -> list[str]:
        """What axe-core finds wrong with the open page, a line each."""
        self.evaluate(f"{AXE.read_text()}; 0")
        # no preload: it requests style sheets a second time, which pages of files may not
        rules = "preload: false, runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']"
        found = self.evaluate(
            f"axe.run(document, {{{rules}}}).then(r => r.violations.map(v => v.id + ': ' + v.help + ' at ' + "
            "v.nodes.map(n => n.target.join(' ')).slice(0, 5).join(', ')))"
        )
        return list(found)

    def offline(self) -> None:
        """No network from here on, whatever the page asks for."""
        self.call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1,
            uploadThroughput=-1,
        )  # fmt: skip

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(json.dumps(parameters["entry"]))
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith("data:"):
            self.requests.append(parameters["request"]["url"])
