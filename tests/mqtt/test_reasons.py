"""The reason codes against section 2.4 of MQTT 5.0, and their nearest return codes of 3.1.1."""

import pytest

from holdfast.mqtt.reasons import ALLOWED, ConnectReturn, Reason, connect_return


def test_every_reason_code_has_a_name() -> None:
    named = [0x00, 0x01, 0x02, 0x04, 0x10, 0x11, 0x18, 0x19, *range(0x80, 0xA3)]
    assert sorted(Reason) == named
    assert {Reason.SUCCESS, Reason.GRANTED_QOS_0, Reason.NORMAL_DISCONNECTION} == {Reason(0x00)}


def test_every_reason_code_has_a_packet() -> None:
    assert frozenset().union(*ALLOWED.values()) == set(Reason)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (0x00, 0),
        (0x84, 1),
        (0x85, 2),
        (0x88, 3),
        (0x89, 3),
        (0x97, 3),
        (0x9C, 3),
        (0x86, 4),
        (0x87, 5),
        (0x8A, 5),
    ],
)
def test_a_refusal_has_a_return_code(reason: int, expected: int) -> None:
    assert connect_return(reason) == expected


def test_only_success_is_accepted() -> None:
    for reason in ALLOWED[2]:
        assert (connect_return(reason) == ConnectReturn.ACCEPTED) == (reason == 0)
