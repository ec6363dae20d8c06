"""MQTT.js over WebSocket, as a browser has it; from npm, once, into build/."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from security.secured import Secured, listener, tls_table
from support.certificates import Authority

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "mqttjs"
SCRIPT = Path(__file__).with_name("mqttjs.js")
VERSION = "5"
INSTALL_S_MAX = 60
WAIT_S = 20


@pytest.fixture(scope="module")
def modules() -> Path:
    """Where node finds MQTT.js."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not here: MQTT.js is not tried")
    found = PLACE / "node_modules"
    if not (found / "mqtt").is_dir():
        PLACE.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(PLACE), f"mqtt@{VERSION}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False)
            why = "" if done.returncode == 0 else done.stderr[-300:]
        except subprocess.TimeoutExpired:
            why = f"npm took more than {INSTALL_S_MAX} s"
        if why:
            warnings.warn(pytest.PytestWarning(f"MQTT.JS IS NOT TRIED: {why}"), stacklevel=1)
            pytest.skip(why)
    return found


@pytest.mark.filterwarnings("default::pytest.PytestWarning")
def test_mqttjs_over_websocket_and_tls(modules: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    listeners = listener(tls=False, websocket=True) + listener(tls=True, websocket=True)
    with Secured(tmp_path, tls_table(authority.issue("broker")) + listeners) as broker:
        for scheme in ("ws", "wss"):
            arguments = [f"{scheme}://127.0.0.1:{broker.ports[scheme]}/mqtt", str(authority.certificate)]
            done = subprocess.run(
                ["node", str(SCRIPT), *arguments[: 1 + (scheme == "wss")]],
                env={**os.environ, "NODE_PATH": str(modules)},
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout) == [[f"js/{qos}", 70_000 * qos + 1, qos] for qos in (0, 1, 2)]
