"""A rule gives what it says and nothing wider, whatever names and filters clients choose."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.security.guarded import Guarded, rules_of

from holdfast.broker.rules import NEVER, Grant, Rules, Who, allows, covers, fill, fill_widely, names, overlap
from holdfast.errors import ConfigError
from holdfast.mqtt.topics import matches
from holdfast.security.rules import load_rules, problem_of_pattern

level = st.sampled_from(["a", "b", "$SYS", "", "+"])
topic_level = st.sampled_from(["a", "b", "c", "$SYS", ""])
filters = st.tuples(st.lists(level, min_size=1, max_size=4), st.booleans()).map(
    lambda drawn: [*drawn[0], "#"] if drawn[1] else drawn[0]
) | st.just(["#"])
topics = st.lists(topic_level, min_size=1, max_size=5).filter(lambda levels: levels != [""])


def may_publish(rules: Rules, who: Who, topic: bytes) -> bool:
    return allows(rules.publishing(who, topic), 0, False)


def valid(levels: list[str]) -> bool:
    return "/".join(levels) != ""


@given(pattern=filters.filter(valid), wanted=filters.filter(valid), topic=topics)
@example(pattern=["+", "#"], wanted=["#"], topic=["a"])
@example(pattern=["#"], wanted=["$SYS", "#"], topic=["$SYS", "x"])
def test_what_a_covered_filter_matches_the_pattern_matches(
    pattern: list[str], wanted: list[str], topic: list[str]
) -> None:
    joined = "/".join(topic).encode()
    if covers(tuple(pattern), tuple(wanted)) and matches("/".join(wanted).encode(), joined):
        assert matches("/".join(pattern).encode(), joined)


@given(pattern=filters.filter(valid), wanted=filters.filter(valid))
@example(pattern=["", "+", "#"], wanted=["", "#"])
@example(pattern=["+", "+", "#"], wanted=["", "#"])
def test_a_filter_that_is_not_covered_matches_something_that_the_pattern_does_not(
    pattern: list[str], wanted: list[str]
) -> None:
    """Nothing is refused that could be granted: wildcards are tried with levels that stand in no pattern."""
    if covers(tuple(pattern), tuple(wanted)):
        return
    plain = ["z" if each == "+" else each for each in wanted if each != "#"]
    deeper = [plain, [*plain, "z"], [*plain, "z", "z", "z", "z", "z"]] if wanted[-1] == "#" else [plain]
    found = ["/".join(each).encode() for each in deeper if "/".join(each)]
    assert any(
        matches("/".join(wanted).encode(), topic) and not matches("/".join(pattern).encode(), topic)
        for topic in found
    )


@given(name=st.text(max_size=8), other=st.text(max_size=8), topic=topics)
@example(name="+", other="o", topic=["a"])
@example(name="#", other="o", topic=["a"])
@example(name="a/b", other="o", topic=["a"])
def test_a_name_never_widens_a_pattern(name: str, other: str, topic: list[str]) -> None:
    """Whatever a user is called, `devices/%u/#` gives it topics under one level of that name alone."""
    levels = fill("devices/%u/#", name, other)
    if levels is None:
        return
    assert levels == ("devices", name, "#")
    assert covers(levels, ("devices", *topic)) == (topic[0] == name)
    assert not covers(levels, ("devices", "+", "x"))
    assert not covers(levels, ("devices", "#"))


@pytest.mark.parametrize("name", ["+", "#", "a/b", "", "$SYS", "a+", "x#", "/", "a\0b"])
def test_a_name_that_means_something_in_a_filter_makes_its_pattern_worthless(name: str) -> None:
    rules = rules_of('[[rule]]\neveryone = true\npublish = ["%u/x", "in/%c"]\nsubscribe = ["%u/#", "out/%c"]')
    for user, client in ((name, "c"), ("u", name)):
        assert may_publish(rules, Who(user, client), b"u/x") == (user == "u")
        assert may_publish(rules, Who(user, client), b"in/c") == (client == "c")
        for wanted in (b"#", b"+/#", b"a/b/#", b"$SYS/#", b"out/+", b"out/a/b", b"out/#"):
            assert rules.subscribing(Who(user, client), wanted) == NEVER


@pytest.mark.parametrize("what", ["publish", "subscribe", "deny_publish", "deny_subscribe"])
@pytest.mark.parametrize("by", ["%u", "%c"])
def test_rights_are_kept_for_each_client_where_a_rule_names_clients(what: str, by: str) -> None:
    """Also when somebody else of the same name was asked about before."""
    rules = rules_of(
        f'[[rule]]\neveryone = true\n{what} = ["own/{by}"]\n'
        + ('[[rule]]\neveryone = true\npublish = ["#"]\nsubscribe = ["#"]' if "deny" in what else "")
    )
    for user, client in (("alice", "one"), ("alice", "two"), ("bob", "one"), ("alice", "one")):
        mine = client if by == "%c" else user
        for name in ("alice", "bob", "one", "two"):
            who, topic = Who(user, client), f"own/{name}".encode()
            subscribes = rules.subscribing(who, topic) != NEVER
            touched = may_publish(rules, who, topic) if "publish" in what else subscribes
            assert touched is ((name == mine) != ("deny" in what)), (user, client, name)


def test_what_a_login_gave_is_its_own_alone() -> None:
    rules = rules_of('[[rule]]\neveryone = true\npublish = ["all"]')
    granted = Who("alice", "one", Grant(publish=("more",)))
    for who, more in ((Who("alice", "one"), False), (granted, True), (Who("alice", "one"), False)):
        assert may_publish(rules, who, b"more") is more
        assert may_publish(rules, who, b"all")


def test_variables_are_filled_in_once() -> None:
    assert fill("%u/%c/%%u", "%c", "%u") is not None
    assert fill("%u/%c/%%u", "%c", "%u") == ("%c", "%u", "%u")


def test_rules_are_for_users_groups_or_everyone() -> None:
    rules = rules_of(
        """
        [groups]
        plant = ["a", "b"]
        [[rule]]
        users = ["c"]
        publish = ["c"]
        [[rule]]
        groups = ["plant"]
        publish = ["plant"]
        serve_channels = true
        tell_views = true
        [[rule]]
        everyone = true
        publish = ["all"]
        """
    )
    given = {
        user: [t for t in ("c", "plant", "all", "no") if may_publish(rules, Who(user, "i"), t.encode())]
        for user in "abc"
    }
    assert given == {"a": ["plant", "all"], "b": ["plant", "all"], "c": ["c", "all"]}
    assert may_publish(rules, Who("", "i"), b"all")
    assert [rules.may_serve(user) for user in ("a", "c", "")] == [True, False, False]
    assert [rules.may_tell_views(user) for user in ("a", "c", "")] == [True, False, False]


def test_without_a_rule_nothing_is_allowed() -> None:
    rules = rules_of("")
    assert not may_publish(rules, Who("alice", "c"), b"a")
    assert rules.subscribing(Who("alice", "c"), b"a") == NEVER
    assert not rules.may_serve("alice")
    assert not rules.may_tell_views("alice")


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ("[[rule]]\npublish = ['a']", "rule[0]"),
        ("[[rule]]\nusers = ['u']\npublish = ['a/#/b']", "rule[0].publish[0]"),
        ("[[rule]]\nusers = ['u']\nsubscribe = ['a', '$share/g/a']", "rule[0].subscribe[1]"),
        ("[[rule]]\ngroups = ['g']\npublish = ['a']", "rule[0].groups"),
        ("[[rule]]\nusers = ['u']\ndeny = ['a']", "rule[0].deny"),
        ("[[rule]]\nusers = ['u']\ndeny_publish = ['a#']", "rule[0].deny_publish[0]"),
        ("[[rule]]\nusers = ['u']\nqos_max = 3", "rule[0].qos_max"),
        ("[[rule]]\nusers = ['u']\nclients = ['%u*-*']", "rule[0].clients[0]"),
        ("[[rule]]\nusers = ['u']\nclients = ['a', '%c']", "rule[0].clients[1]"),
        ("[[rule]]\nusers = ['u']\nclients = ['%U:*']", "rule[0].clients[0]"),
        ("[[rule]]\nusers = ['u']\npublish = ['%u', '%x/y']", "rule[0].publish[1]"),
        ("[[rule]]\nusers = ['u']\nsubscribe = ['100%']", "rule[0].subscribe[0]"),
        ("[[rule]]\nusers = ['u']\ndeny_publish = ['%%%d']", "rule[0].deny_publish[0]"),
        ("[[rule]]\nusers = ['u']\ndeny_subscribe = ['secret/%C']", "rule[0].deny_subscribe[0]"),
        ("[[rule]]\neveryone = true\nusers = ['u']", "rule[0].everyone"),
        ("[groups]\ng = ['u']\n[[rule]]\neveryone = true\ngroups = ['g']", "rule[0].everyone"),
    ],
)
def test_what_is_wrong_with_a_rule_is_named(tmp_path: Path, document: str, where: str) -> None:
    (tmp_path / "rules.toml").write_text(document)
    with pytest.raises(ConfigError) as error:
        load_rules(tmp_path / "rules.toml")
    assert [problem.path for problem in error.value.problems] == [where]


@pytest.mark.parametrize("pattern", ["%u", "%c", "%%", "%%x", "a/%%%u/%c%c"])
def test_what_a_percent_sign_may_stand_for_is_said_where_it_stands_for_nothing(pattern: str) -> None:
    assert problem_of_pattern(pattern) == ""
    assert problem_of_pattern(pattern + "/%x") == (
        "'%x' stands for nothing; %u is the user, %c the client identifier, %% a percent sign"
    )


# Denials, QoS and retain


@given(one=filters.filter(valid), other=filters.filter(valid), topic=topics)
@example(one=["a", "#"], other=["a"], topic=["a"])
@example(one=["+"], other=["$SYS"], topic=["$SYS"])
def test_filters_that_do_not_overlap_match_no_topic_together(
    one: list[str], other: list[str], topic: list[str]
) -> None:
    joined = "/".join(topic).encode()
    both = matches("/".join(one).encode(), joined) and matches("/".join(other).encode(), joined)
    assert overlap(tuple(one), tuple(other)) == overlap(tuple(other), tuple(one))
    assert overlap(tuple(one), tuple(other)) or not both


@given(one=filters.filter(valid), other=filters.filter(valid))
@example(one=["", "#"], other=["+"])
def test_filters_that_overlap_match_some_topic_together(one: list[str], other: list[str]) -> None:
    """Nothing is denied that could be granted: the topic is made of what both say of each level."""
    if not overlap(tuple(one), tuple(other)):
        return
    found = []
    for length in range(1, 7):
        levels = []
        for index in range(length):
            said = [
                each[index] for each in (one, other) if index < len(each) and each[index] not in ("+", "#")
            ]
            levels.append(said[0] if said else "z")
        found.append("/".join(levels).encode())
    assert any(
        matches("/".join(one).encode(), topic) and matches("/".join(other).encode(), topic)
        for topic in found
        if topic
    )


DENYING = """
[[rule]]
everyone = true
deny_publish = ["plant/secret/#", "own/%c/x"]
deny_subscribe = ["plant/secret/#"]
[[rule]]
users = ["alice"]
publish = ["#"]
subscribe = ["#", "plant/+/open"]
"""


def test_what_is_denied_is_refused_whatever_is_granted() -> None:
    rules = rules_of(DENYING)
    alice = Who("alice", "c")
    for topic, allowed in (("plant/open", True), ("plant/secret", False), ("plant/secret/a/b", False)):
        assert may_publish(rules, alice, topic.encode()) is allowed
    for filter, allowed in (
        ("plant/open/#", True),
        ("other/#", True),
        ("#", False),  # it would bring what is denied
        ("plant/#", False),
        ("plant/+", False),
        ("+/secret/x", False),
        ("plant/secret/x", False),
        ("plant/+/open", False),
        ("plant/+/+/+", False),
        ("plants/#", True),
    ):
        assert (rules.subscribing(alice, filter.encode()) != NEVER) is allowed, filter


@pytest.mark.parametrize("name", ["a/b", "+", "#", "$x", ""])
def test_a_name_never_narrows_a_denial(name: str) -> None:
    """Nobody gets around a denial by what it calls itself."""
    assert fill_widely("own/%c/x", "u", "plain") == ("own", "plain", "x")
    assert fill_widely("own/%c/x", "u", name) == ("own", "#")
    rules = rules_of(DENYING)
    assert not may_publish(rules, Who("alice", name), f"own/{name}/x".encode())
    assert not may_publish(rules, Who("alice", name), b"own/anything")


def test_qos_and_retain_are_limited_for_each_rule() -> None:
    rules = rules_of(
        """
        [[rule]]
        everyone = true
        publish = ["low/#"]
        subscribe = ["low/#"]
        qos_max = 0
        retain = false
        [[rule]]
        users = ["alice"]
        publish = ["low/mine/#", "all/#"]
        subscribe = ["low/mine/#"]
        qos_max = 1
        """
    )

    def allowed(user: str, topic: str) -> list[tuple[int, bool]]:
        rights = rules.publishing(Who(user, "c"), topic.encode())
        return [(qos, retain) for retain in (False, True) for qos in (0, 1, 2) if allows(rights, qos, retain)]

    assert allowed("bob", "low/x") == [(0, False)]
    assert allowed("bob", "all/x") == []
    assert allowed("alice", "low/x") == [(0, False)]
    assert allowed("alice", "low/mine/x") == [(0, False), (1, False), (0, True), (1, True)]
    subscribing = [rules.subscribing(Who("alice", "c"), each) for each in (b"low/#", b"low/mine/x", b"all/x")]
    assert subscribing == [0, 1, NEVER]


# Client identifiers


@pytest.mark.parametrize(
    ("pattern", "client_id", "found"),
    [
        ("%u", "alice", True),
        ("%u", "alice2", False),
        ("%u:*", "alice:1", True),
        ("%u:*", "alice:", True),
        ("%u:*", "alice", False),
        ("%u:*", "bob:1", False),
        ("*-%u", "x-alice", True),
        ("a*ice", "aice", True),
        ("ab*bc", "abc", False),  # what stands before and behind the star does not overlap
        ("%%u*", "%u1", True),
        ("%%u*", "alice", False),
        ("*", "anything", True),
    ],
)
def test_which_identifiers_a_pattern_stands_for(pattern: str, client_id: str, found: bool) -> None:
    assert names(pattern, "alice", client_id) is found


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "$x"])
def test_a_name_that_could_mean_more_has_no_identifiers(name: str) -> None:
    assert not names("%u*", name, f"{name}1")


@pytest.mark.parametrize(
    ("filter", "words"),
    [
        ("plant/secret/1", "a rule denies this user some of that"),
        ("plant/#", "a rule denies this user some of that"),
        ("other/1", "no rule lets this user subscribe to all of that"),
    ],
)
def test_a_refused_filter_is_told_whether_a_rule_denies_it(filter: str, words: str) -> None:
    document = '[[rule]]\neveryone = true\nsubscribe = ["plant/#"]\ndeny_subscribe = ["plant/secret/#"]\n'
    answer = Guarded(document).user("alice").subscribe(filter)
    assert answer.reasons == [0x87]
    assert words in answer.properties.reason_string
