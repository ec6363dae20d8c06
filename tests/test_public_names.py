"""What `holdfast` offers by name, and nothing else."""

import subprocess
import sys

import holdfast


def test_the_public_names_are_these() -> None:
    assert holdfast.__all__ == [
        "Client", "Contract", "Failovers", "HoldfastError", "Message", "Outgoing", "Properties", "Refused",
        "Stamp", "Subscription", "Unavailable", "ViewNote", "Will", "connect",
    ]  # fmt: skip
    for name in holdfast.__all__:
        assert getattr(holdfast, name).__name__ == name
    assert not hasattr(holdfast, "nothing")


def test_a_broker_that_imports_the_package_does_not_load_the_client() -> None:
    code = "import sys, holdfast.errors; sys.exit('holdfast.client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
