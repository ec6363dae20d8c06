"""Addresses as people and brokers write them."""

import pytest

from holdfast.cli.mqtt_options import broker_addresses
from holdfast.client.client import parse_addresses
from holdfast.endpoint.words import described, parse_address, parse_reference
from holdfast.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host", ("host", 1883)),
        ("host:18", ("host", 18)),
        ("mqtt://host:18/", ("host", 18)),
        ("[::1]:18", ("::1", 18)),
        ("[::1]", ("::1", 1883)),
        ("::1", ("::1", 1883)),
        ("[127.0.0.1]:5", ("127.0.0.1", 5)),
    ],
)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":1", "host:", "host:0", "host:65536", "host:port", "host:²"])
def test_what_is_no_address_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected host:port, for example"):
        parse_address(text)
    assert parse_reference(text) is None


def test_a_reference_may_name_several_servers() -> None:
    assert parse_reference("a:1 b:2") == ("a", 1)
    assert parse_reference(None) is None


def test_several_addresses_each_once() -> None:
    assert parse_addresses(()) == (("127.0.0.1", 1883),)
    assert parse_addresses(["mqtt://a:1,b:2", ("a", 1), "c"]) == (("a", 1), ("b", 2), ("c", 1883))


def test_the_port_option_is_for_hosts_without_one() -> None:
    assert broker_addresses("a, b:2,::1,[::1]:5", 9) == [("a", 9), ("b", 2), ("::1", 9), ("::1", 5)]
    with pytest.raises(ConfigError, match="--host: found 'a:b'"):
        broker_addresses("a:b", 9)


def test_a_reason_without_a_name_is_still_a_reason() -> None:
    assert described(0x87, "go away") == "not authorized (0x87): go away"
    assert described(0xFE, None) == "unknown reason (0xFE)"
