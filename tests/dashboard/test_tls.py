"""The page about brokers that are asked in TLS, itself in TLS."""

import re
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from support.brokers import StartBroker, free_port, wait_until
from support.certificates import Authority

HOLDFAST = [sys.executable, "-m", "holdfast.cli.main", "dashboard"]
TOKEN = "0123456789abcdef0123456789abcdef"
WAIT_S = 20.0


def test_a_page_in_tls_about_a_broker_in_tls(tmp_path: Path, start_broker: StartBroker) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("a")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    security = tmp_path / "security.toml"
    security.write_text(f'[tls]\ncertificate = "{issued.certificate}"\nkey = "{issued.key}"\n')
    port = free_port()
    start_broker("--security", str(security), "--http", f"0.0.0.0:{port}", "--http-token", str(token))
    command = [*HOLDFAST, f"https://127.0.0.1:{port}", "--token", str(token), "--listen", "127.0.0.1:0"]
    command += [
        "--ca",
        str(authority.certificate),
        "--cert",
        str(issued.certificate),
        "--key",
        str(issued.key),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dashboard:
        try:
            assert dashboard.stdout is not None
            found = re.search(r"https://\S+", dashboard.stdout.readline())
            assert found is not None
            trusting = ssl.create_default_context(cafile=str(authority.certificate))

            def page() -> str:
                with urlopen(found[0], context=trusting, timeout=WAIT_S) as answer:
                    return str(answer.read().decode())

            wait_until(lambda: "best effort" in page(), "a contract, which only the broker knows,", WAIT_S)
            with pytest.raises(URLError, match="certificate verify failed"):
                urlopen(found[0], context=ssl.create_default_context(), timeout=WAIT_S)
        finally:
            dashboard.terminate()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cert", "a.pem"], "a certificate and its key go together"),
        (["--cert", "a.pem", "--key", "b.key"], "a.pem cannot be read"),
        (["--cert", __file__, "--key", "none"], "none cannot be read"),
        (["--ca", __file__], "holds no certificate"),
    ],
)
def test_files_that_are_no_good_are_said(options: list[str], words: str) -> None:
    command = [*HOLDFAST, "http://127.0.0.1:1", "--listen", "127.0.0.1:0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
