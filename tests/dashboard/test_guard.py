"""Who may talk to the page: no script of another site, no name that is not ours, and nothing in a frame."""

import pytest

from holdfast.dashboard.guard import host_allowed, same_origin

NAMES = frozenset({"localhost", "ops.example"})


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("[::1]", True),
        ("10.0.0.7", True),
        ("localhost:8080", True),
        ("OPS.example", True),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
    ],
)
def test_names_that_are_not_ours_are_refused(host: str, allowed: bool) -> None:
    assert host_allowed(host, NAMES) is allowed


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://127.0.0.1:8080", True),
        ("https://127.0.0.1:8080", True),
        ("http://127.0.0.1:9090", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
    ],
)
def test_scripts_of_other_sites_are_refused(origin: str | None, allowed: bool) -> None:
    headers = {"host": "127.0.0.1:8080"} | ({} if origin is None else {"origin": origin})
    assert same_origin(headers, NAMES) is allowed
