"""A contract file with any field wrong is refused with the path to it; right ones become the model."""

from pathlib import Path

import msgspec
import pytest

from holdfast.contract.file import load_contracts, load_with_assumed, parse_contracts
from holdfast.contract.model import Capacity, Contract, ContractBook, Deployment, filter_problem
from holdfast.contract.plan import load_admitted
from holdfast.errors import ConfigError
from holdfast.units import MS, S

DEPLOYMENT = {
    "failover": '"50ms"',
    "publisher_to_broker": '"0ms"',
    "broker_to_backup": '"0.05ms"',
    "broker_to_subscriber": '{ edge = "1ms", cloud = "20ms" }',
}
CONTRACT = {"name": '"a"', "topics": '["a/+"]', "deadline": '"50ms"', "loss_tolerance": "0", "retention": "2"}


def document(
    deployment: dict[str, str] | None = None, contract: dict[str, str] | None = None, more: str = ""
) -> str:
    def table(fields: dict[str, str]) -> str:
        return "\n".join(f"{key} = {value}" for key, value in fields.items())

    return (
        f"[deployment]\n{table(DEPLOYMENT | (deployment or {}))}\n"
        f"[[contract]]\n{table(CONTRACT | (contract or {}))}\n{more}"
    )


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        parse_contracts(text)
    return {problem.path: problem.message for problem in error.value.problems}


WRONG_CONTRACT = [
    ("durable", '"yes"', "contract[0].durable"),
    ("name", '""', "contract[0].name"),
    ("name", "7", "contract[0].name"),
    ("name", '"a\\u0007"', "contract[0].name"),
    ("topics", "[]", "contract[0].topics"),
    ("topics", '"a/+"', "contract[0].topics"),
    ("topics", "[1]", "contract[0].topics[0]"),
    ("topics", '["a", ""]', "contract[0].topics[1]"),
    ("topics", '["a/#/b"]', "contract[0].topics[0]"),
    ("topics", '["a/b#"]', "contract[0].topics[0]"),
    ("topics", '["a/b+/c"]', "contract[0].topics[0]"),
    ("topics", '["a\\u0000"]', "contract[0].topics[0]"),
    ("topics", '["$share/g/a"]', "contract[0].topics[0]"),
    ("topics", '["a", "a"]', "contract[0].topics[1]"),
    ("topics", '["%s"]' % ("é" * 40_000), "contract[0].topics[0]"),
    ("topics", '["%s"]' % ("a/" * 200), "contract[0].topics[0]"),
    ("period", '"0ms"', "contract[0].period"),
    ("period", "50", "contract[0].period"),
    ("deadline", '"50"', "contract[0].deadline"),
    ("deadline", '"-1ms"', "contract[0].deadline"),
    ("deadline", '"0ms"', "contract[0].deadline"),
    ("deadline", "0.05", "contract[0].deadline"),
    ("loss_tolerance", "-1", "contract[0].loss_tolerance"),
    ("loss_tolerance", '"unlimted"', "contract[0].loss_tolerance"),
    ("loss_tolerance", "1.5", "contract[0].loss_tolerance"),
    ("retention", "true", "contract[0].retention"),
    ("retention", "99999999", "contract[0].retention"),
    ("destination", '"moon"', "contract[0].destination"),
    ("destination", "[]", "contract[0].destination"),
    ("priority", '"high"', "contract[0].priority"),
    ("count", "0", "contract[0].count"),
    ("count", "2_000_000", "limits.topics_max"),
    ("subscribers", "0", "contract[0].subscribers"),
    ("dedline", '"1s"', "contract[0].dedline"),
]
WRONG_DEPLOYMENT = [
    ("failover", '"0ms"', "deployment.failover"),
    ("failover", "50", "deployment.failover"),
    ("publisher_to_broker", '"soon"', "deployment.publisher_to_broker"),
    ("broker_to_backup", "inf", "deployment.broker_to_backup"),
    ("broker_to_subscriber", "{}", "deployment.broker_to_subscriber"),
    ("broker_to_subscriber", '"1ms"', "deployment.broker_to_subscriber"),
    ("broker_to_subscriber", "{ edge = 1 }", "deployment.broker_to_subscriber.edge"),
    ("fail_over", '"50ms"', "deployment.fail_over"),
]
WRONG_ELSEWHERE = [
    ('[capacity]\ndispatch = "0us"', "capacity.dispatch"),
    ("[capacity]\nsubscriber = 1", "capacity.subscriber"),
    ('[capacity]\nreplicate = ""', "capacity.replicate"),
    ("[capacity]\nslice = []", "capacity.slice"),
    ("[capacity]\nshare = 1.5", "capacity.share"),
    ("[capacity]\nshare = nan", "capacity.share"),
    ("[limits]\ntopics_max = 0", "limits.topics_max"),
    ("[limits]\nsessions_max = 1", "limits.connections_max"),
    ('[default]\nname = "x"', "default.name"),
    ('[default]\ndeadline = "1"', "default.deadline"),
    ('[default]\ndeadline = "0ms"', "default.deadline"),
    ("[default]\nloss_tolerance = -1", "default.loss_tolerance"),
    ('[default]\ndestination = "moon"', "default.destination"),
    ("[contracts]", "contracts"),
    ('[[contract]]\nname = "b"\ntopics = ["b"]\nloss_tolerance = 1', "contract[1].deadline"),
    ('[[contract]]\nname = "a"\ntopics = ["b"]\nloss_tolerance = 1\ndeadline = "1s"', "contract[1].name"),
    (
        '[[contract]]\nname = "b"\ntopics = ["a/+"]\nloss_tolerance = 1\ndeadline = "1s"',
        "contract[1].topics[0]",
    ),
]


@pytest.mark.parametrize(("key", "value", "path"), WRONG_CONTRACT)
def test_a_wrong_contract(key: str, value: str, path: str) -> None:
    problems = problems_of(document(contract={key: value}))
    assert path in problems
    assert all(len(message) < 1000 for message in problems.values())


@pytest.mark.parametrize(("key", "value", "path"), WRONG_DEPLOYMENT)
def test_a_wrong_deployment(key: str, value: str, path: str) -> None:
    assert path in problems_of(document(deployment={key: value}))


@pytest.mark.parametrize(("more", "path"), WRONG_ELSEWHERE)
def test_a_wrong_table(more: str, path: str) -> None:
    assert path in problems_of(document(more=more))


@pytest.mark.parametrize("struct", [Contract, Deployment, Capacity])
def test_every_field_has_a_wrong_value_above(struct: type[msgspec.Struct]) -> None:
    tried = {key for key, _, _ in WRONG_CONTRACT + WRONG_DEPLOYMENT}
    tried |= {more.split("\n")[1].split(" ")[0] for more, path in WRONG_ELSEWHERE if "capacity" in path}
    assert {field.encode_name for field in msgspec.structs.fields(struct)} <= tried


@pytest.mark.parametrize("key", ["name", "topics", "deadline", "loss_tolerance"])
def test_a_missing_field_says_what_would_do(key: str) -> None:
    text = "\n".join(line for line in document().splitlines() if not line.startswith(f"{key} ="))
    message = problems_of(text)[f"contract[0].{key}"]
    assert message.startswith("missing; expected ")
    assert f"for example {key} = " in message


def test_all_problems_of_all_tables_at_once() -> None:
    found = problems_of(
        document(
            deployment={"failover": "1"},
            contract={"deadline": "1", "retention": '"x"'},
            more="[limits]\na = 1",
        )
    )
    assert found.keys() == {
        "deployment.failover",
        "contract[0].deadline",
        "contract[0].retention",
        "limits.a",
    }
    assert '(in "a")' in found["contract[0].deadline"]


ASSUMED = {
    "failover": '"50ms"',
    "publisher_to_broker": '"0ms"',
    "broker_to_backup": '"0.05ms"',
    "broker_to_subscriber": '{ edge = "0ms" }',
}
ALONE = '[[contract]]\nname = "a"\ntopics = ["a"]\ndeadline = "1s"\nloss_tolerance = 0\nretention = 2\n'


def test_a_file_needs_no_deployment_and_means_the_same_as_one_that_says_the_default() -> None:
    assert parse_contracts(ALONE) == parse_contracts(f"{ALONE}[deployment]\n")
    said = "\n".join(f"{key} = {value}" for key, value in ASSUMED.items())
    assert parse_contracts(ALONE) == parse_contracts(f"{ALONE}[deployment]\n{said}")
    assert parse_contracts(ALONE).deployment == ContractBook().deployment == Deployment()


@pytest.mark.parametrize(
    "key", ["failover", "publisher_to_broker", "broker_to_backup", "broker_to_subscriber"]
)
def test_each_part_of_a_deployment_may_be_left_out_and_is_told_as_assumed(key: str, tmp_path: Path) -> None:
    said = {"failover": '"7ms"', "publisher_to_broker": '"7ms"', "broker_to_backup": '"7ms"'}
    said["broker_to_subscriber"] = '{ edge = "7ms" }'
    path = tmp_path / "c.toml"
    path.write_text(f"{ALONE}[deployment]\n{key} = {said[key]}\n")
    book, assumed = load_with_assumed(path)
    assert assumed == {name: value for name, value in ASSUMED.items() if name != key}
    assert 7_000_000 in (
        getattr(book.deployment, f"{key}_ns"),
        book.deployment.broker_to_subscriber_ns["edge"],
    )


def test_a_destination_needs_a_deployment_that_knows_it() -> None:
    assert "cloud" in problems_of(ALONE + 'destination = "cloud"')["contract[0].destination"]


def test_an_empty_file_is_best_effort_for_all() -> None:
    assert parse_contracts("") == ContractBook()
    assert ContractBook().default.loss_tolerance is None


def test_everything_that_a_file_can_say() -> None:
    more = """
        priority = 3
        period = "100ms"
        destination = "cloud"
        count = 4
        subscribers = 2
        [capacity]
        dispatch = "3us"
        share = 0.25
        [limits]
        topics_max = 10
        [default]
        deadline = "2s"
        loss_tolerance = 5
        retention = 1
        period = "1s"
    """
    book = parse_contracts(document(more=more))
    assert book.contracts == (
        Contract(
            name="a",
            topics=("a/+",),
            period_ns=100 * MS,
            deadline_ns=50 * MS,
            loss_tolerance=0,
            retention=2,
            destination="cloud",
            priority=3,
            count=4,
            subscribers=2,
        ),
    )
    assert book.capacity == Capacity(dispatch_ns=3000, share_ppm=250_000)
    assert book.limits.topics_max == 10
    assert (book.default.deadline_ns, book.default.loss_tolerance, book.default.period_ns) == (2 * S, 5, S)


@pytest.mark.parametrize("good", ["#", "+", "a", "/", "a//b", "+/+/#", "$SYS/#", "a/#", "é" * 32_767])
def test_topic_filters_that_do(good: str) -> None:
    assert filter_problem(good) == ""


def test_contracts_made_in_code_are_checked_too() -> None:
    with pytest.raises(ConfigError) as error:
        Contract(name="", topics=("a",), deadline_ns=-1, loss_tolerance=-1)
    assert [problem.path for problem in error.value.problems] == ["deadline", "loss_tolerance", "name"]
    with pytest.raises(ConfigError, match="'#' is the last level"):
        Contract(name="a", topics=("#/a",), deadline_ns=1, loss_tolerance=0)


def test_the_file_is_named_in_every_line(tmp_path: Path) -> None:
    path = tmp_path / "plant.toml"
    path.write_text("a = 1\nb = 2\n")
    with pytest.raises(ConfigError) as error:
        load_contracts(path)
    assert [line.split(": ")[:2] for line in str(error.value).splitlines()] == [
        [str(path), "a"],
        [str(path), "b"],
    ]


def test_mistakes_in_one_table_hide_none_in_another(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        """
        [deployment]
        broker_to_backup = 1
        [limits]
        queue_messages_max = -1
        [[contract]]
        name = "a"
        topics = []
        deadline = "50ms"
        period = "0ms"
        loss_tolerance = 0
        destination = "mars"
        [[contract]]
        name = "a"
        topics = ["t"]
        deadline = "50ms"
        loss_tolerance = -1
        [[contract]]
        name = "b"
        topics = ["t"]
        deadline = "50ms"
        loss_tolerance = 0
        """
    )
    with pytest.raises(ConfigError) as error:
        load_contracts(path)
    assert [problem.path for problem in error.value.problems] == [
        "deployment.broker_to_backup",
        "limits.queue_messages_max",
        "contract[0].period",
        "contract[0].topics",
        "contract[1].loss_tolerance",
        "contract[0].destination",
        "contract[1].name",
        "contract[2].topics[0]",
    ]


def test_a_contract_that_cannot_be_kept_is_told_though_another_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    contract = '[[contract]]\nname = "{}"\ntopics = ["{}"]\ndeadline = "50ms"\nloss_tolerance = {}\n'
    path.write_text(contract.format("a", "a", 0) + 'period = "50ms"\n' + contract.format("b", "b", -1))
    with pytest.raises(ConfigError) as error:
        load_admitted(path)
    assert [problem.path for problem in error.value.problems] == [
        "contract[1].loss_tolerance",
        "contract 'a'",
    ]
