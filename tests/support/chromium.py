"""A real Chromium without a window, steered over a pipe as its developer tools do.

Nothing here knows what is tested: open a page, wait until something holds in it, press keys, look.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.brokers import POLL_S, STOP_S_MAX

WAIT_S_MAX = 30.0
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# It asks nobody for anything on its own, and needs no display, sound or graphics card.
OPTIONS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--mute-audio", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars",
    "--disable-extensions", "--remote-debugging-pipe",
]  # fmt: skip
# It reads commands from descriptor 3 and answers on 4.
SHELL = 'exec "$@" 3<&"$HF_READ" 4>&"$HF_WRITE"'
KEYS = {"Tab": 9, "Enter": 13, " ": 32}


class Chromium:
    """For the length of a `with` block."""

    def __init__(self) -> None:
        assert PROGRAM is not None
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-chromium-", ignore_cleanup_errors=True)
        its_read, self._write = os.pipe()
        self._read, its_write = os.pipe()
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                SHELL,
                "bash",
                PROGRAM,
                *OPTIONS,
                f"--user-data-dir={self._folder.name}",
                "about:blank",
            ],
            env={
                **os.environ,
                "HF_READ": str(its_read),
                "HF_WRITE": str(its_write),
                "HOME": self._folder.name,
            },
            pass_fds=(its_read, its_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(its_read)
        os.close(its_write)
        self._heard = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.ask("Browser.close")
            self._process.wait(STOP_S_MAX)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(STOP_S_MAX)
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def page(self, width: int = 1280, height: int = 900) -> "Page":
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, width, height)

    def ask(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        asked = {"id": number, "method": method, "params": parameters}
        if session is not None:
            asked["sessionId"] = session
        os.write(self._write, json.dumps(asked).encode() + b"\0")
        deadline_s = time.monotonic() + WAIT_S_MAX
        while True:
            answer = self._next(deadline_s)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self, deadline_s: float) -> dict[str, Any]:
        while b"\0" not in self._heard:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, "Chromium does not answer"
            data = os.read(self._read, 2**20)
            assert data, f"Chromium ended with {self._process.poll()}"
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        return found


class Page:
    """A tab. `requests` are the addresses of everything that it has fetched or connected to."""

    def __init__(self, browser: Chromium, session: str, width: int, height: int) -> None:
        self._browser = browser
        self._session = session
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self.resize(width, height)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **parameters)

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
            mobile=width < 600,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=features)

    def open(self, url: str) -> None:
        self.ask("Page.navigate", url=url)

    def evaluate(self, script: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, script: str, what: str = "") -> Any:
        """Until the expression is true in the page; its value."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        while True:
            try:
                found = self.evaluate(script)
            except AssertionError:  # the page was just being replaced
                found = None
            if found:
                return found
            assert time.monotonic() < deadline_s, f"{what or script} within {WAIT_S_MAX} s:\n{self.text}"
            time.sleep(POLL_S)

    def wait_text(self, words: str, within: str = "main") -> str:
        quoted = json.dumps(words)
        script = (
            f"(e => e && e.innerText.includes({quoted}) && e.innerText)(document.querySelector('{within}'))"
        )
        found: str = self.wait(script, f"{words!r} in {within}")
        return found

    @property
    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    def press(self, key: str, *, shift: bool = False) -> None:
        details = {
            "key": key,
            "code": key,
            "windowsVirtualKeyCode": KEYS[key],
            "modifiers": 8 if shift else 0,
        }
        text = {"Enter": "\r", " ": " "}.get(key)
        more = {"text": text} if text else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **details, **more)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **details)

    def focused(self) -> str:
        """The text of what has the focus."""
        return str(self.evaluate("document.activeElement ? document.activeElement.innerText : ''")).strip()

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    @property
    def requests(self) -> list[str]:
        self.evaluate("1")
        found = []
        for event in self._of_mine():
            if event["method"] == "Network.requestWillBeSent":
                found.append(event["params"]["request"]["url"])
            elif event["method"] == "Network.webSocketCreated":
                found.append(event["params"]["url"])
        return found

    @property
    def complaints(self) -> list[str]:
        """What went wrong in the page: exceptions, and what was blocked or not found."""
        self.evaluate("1")
        found = []
        for event in self._of_mine():
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"])[:500])
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found

    def _of_mine(self) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("sessionId") == self._session]
