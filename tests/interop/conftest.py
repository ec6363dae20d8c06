"""Names that no other test uses: the broker is shared."""

import itertools

import pytest

_numbers = itertools.count(1)


@pytest.fixture
def topic() -> str:
    return f"interop/{next(_numbers)}"


@pytest.fixture
def client_id() -> str:
    return f"interop{next(_numbers)}"
