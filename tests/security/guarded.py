"""A broker behind a gate in made-up time; a client's certificate says who it is."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.broker.bench import Bench, Client

from holdfast.broker.rules import Rules
from holdfast.config import loads
from holdfast.contract.model import ContractBook
from holdfast.mqtt.packets import Connack, Connect, Disconnect, Packet
from holdfast.security.config import Security
from holdfast.security.gate import Gate, Known, Wanted
from holdfast.security.rules import load_rules
from holdfast.security.verified import Verified


def rules_of(document: str) -> Rules:
    with TemporaryDirectory() as directory:
        path = Path(directory, "rules.toml")
        path.write_text(document)
        return load_rules(path)


def known(rules: str | None = None, security: str = "", users: dict[str, str] | None = None) -> Known:
    return Known(loads(security, Security), users or {}, None if rules is None else rules_of(rules))


class Guarded(Bench):
    """`checks` are the passwords that wait for an answer."""

    def __init__(
        self,
        rules: str | None = None,
        security: str = "",
        users: dict[str, str] | None = None,
        contracts: ContractBook | None = None,
    ) -> None:
        super().__init__(contracts)
        self.checks: list[Wanted] = []
        self.full = False
        self.gate = Gate(
            self.broker,
            known(rules, security, users),
            verified=Verified(b"k" * 32),
            check=self._take,
            address_of=lambda fd: "192.0.2.1",
        )

    def _take(self, wanted: Wanted) -> bool:
        self.checks.append(wanted)
        return not self.full

    def answer(self, user: str | None) -> None:
        self.gate.checked(self.checks.pop(0), user, self.now_ns)
        self.run()

    def knock(
        self, packet: Connect, *, certificate: str | None = None, local: bool = False, listener: object = None
    ) -> Client:
        """A client that says CONNECT, whatever comes of it."""
        connection = self.broker.open(None, self.now_ns)
        assert connection is not None
        connection.certificate_name, connection.local, connection.listener = certificate, local, listener
        client = Client(self, connection, packet.version)
        self.clients[connection] = client
        client.say(packet)
        return client

    def user(self, name: str, client_id: str = "", **options: object) -> Client:
        """A client of that user, let in."""
        packet = Connect(client_id=client_id or f"{name}-1", **options)
        client = self.knock(packet, certificate=name)
        assert reason(client) == 0
        return client


def reason(client: Client) -> int:
    """What CONNACK, or else DISCONNECT, said."""
    (answer,) = [packet for packet in client.take() if isinstance(packet, Connack | Disconnect)]
    return answer.reason


def kinds(packets: list[Packet]) -> list[str]:
    return [type(packet).__name__ for packet in packets]
