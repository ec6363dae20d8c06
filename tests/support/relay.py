"""A relay under test, as a process: put in front of a target, steered by commands, ended with its input."""

import json
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from support.brokers import LOOPBACK, STOP_S_MAX


class RelayProcess:
    """For the length of a `with` block. Every command has been carried out when its call returns."""

    def __init__(self, target_port: int, *, seed: int = 0) -> None:
        options = {"target": f"{LOOPBACK}:{target_port}", "seed": seed}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.runtime.relay", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.port = int(self._line()["listening"].rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S_MAX)
        finally:
            self._process.kill()
            self._process.wait(STOP_S_MAX)
            self._process.stdout.close()

    def delay(self, ms: float, jitter_ms: float = 0.0) -> None:
        self.tell("delay", ms=ms, jitter_ms=jitter_ms)

    def cut(self, direction: str = "both") -> None:
        self.tell("cut", direction=direction)

    def refuse(self) -> None:
        self.tell("refuse")

    def close_all(self) -> None:
        self.tell("close")

    def heal(self) -> None:
        self.tell("heal")

    def status(self) -> dict[str, Any]:
        return self.tell("status")

    def tell(self, command: str, **details: object) -> dict[str, Any]:
        answer = self.say(json.dumps({"do": command, **details}))
        if not answer["ok"]:
            raise ValueError(answer["error"])
        return answer

    def say(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"the relay ended with status {self._process.wait(STOP_S_MAX)}")
        answer: dict[str, Any] = json.loads(line)
        return answer
