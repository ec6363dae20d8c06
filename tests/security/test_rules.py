"""A rule gives what it says and nothing wider, whatever names and filters clients choose."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.security.guarded import rules_of

from holdfast.broker.rules import covers, fill
from holdfast.errors import ConfigError
from holdfast.mqtt.topics import matches
from holdfast.security.rules import load_rules

level = st.sampled_from(["a", "b", "$SYS", "", "+"])
topic_level = st.sampled_from(["a", "b", "c", "$SYS", ""])
filters = st.tuples(st.lists(level, min_size=1, max_size=4), st.booleans()).map(
    lambda drawn: [*drawn[0], "#"] if drawn[1] else drawn[0]
) | st.just(["#"])
topics = st.lists(topic_level, min_size=1, max_size=5).filter(lambda levels: levels != [""])


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
        assert rules.may_publish(user, client, b"u/x") == (user == "u")
        assert rules.may_publish(user, client, b"in/c") == (client == "c")
        for wanted in (b"#", b"+/#", b"a/b/#", b"$SYS/#", b"out/+", b"out/a/b", b"out/#"):
            assert not rules.may_subscribe(user, client, wanted)


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
        user: [t for t in ("c", "plant", "all", "no") if rules.may_publish(user, "i", t.encode())]
        for user in "abc"
    }
    assert given == {"a": ["plant", "all"], "b": ["plant", "all"], "c": ["c", "all"]}
    assert rules.may_publish("", "i", b"all")
    assert [rules.may_serve(user) for user in ("a", "c", "")] == [True, False, False]
    assert [rules.may_tell_views(user) for user in ("a", "c", "")] == [True, False, False]


def test_without_a_rule_nothing_is_allowed() -> None:
    rules = rules_of("")
    assert not rules.may_publish("alice", "c", b"a")
    assert not rules.may_subscribe("alice", "c", b"a")
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
    ],
)
def test_what_is_wrong_with_a_rule_is_named(tmp_path: Path, document: str, where: str) -> None:
    (tmp_path / "rules.toml").write_text(document)
    with pytest.raises(ConfigError) as error:
        load_rules(tmp_path / "rules.toml")
    assert [problem.path for problem in error.value.problems] == [where]
