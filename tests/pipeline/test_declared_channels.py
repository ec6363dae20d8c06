"""What is wrong with channels is known from the pipeline file alone, all of it at once."""

from __future__ import annotations

import pytest

from holdfast.errors import ConfigError
from holdfast.pipeline.declared import parse_pipeline

BASE = """
[[feed]]
name = "incidents"
topics = ["incidents/#"]
[[dataset]]
name = "emergencies"
feed = "incidents"
schema = { id = "string" }
[[dataset]]
name = "shelters"
kind = "external"
file = "shelters.csv"
schema = { id = "string" }
[[channel]]
name = "near"
"""
QUERY = 'query = "SELECT 1"\n'


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("", "channel[0].query", "missing"),
        (QUERY + 'file = "near.sql"\n', "channel[0].query", "leave one out"),
        (QUERY + 'new = ["emergencie"]\n', "channel[0].new", "did you mean emergencies?"),
        (QUERY + 'new = ["x"]\n', "channel[0].new", "declared are emergencies, shelters"),
        (QUERY + 'new = ["shelters"]\n', "channel[0].new", "nothing of it is ever new"),
        (QUERY + 'new = ["emergencies", "emergencies"]\n', "channel[0].new", "twice"),
        (QUERY + 'parameters = { user = "text" }\n', "channel[0].parameters.user", "use string, bigint, "),
        (QUERY + 'parameters = { user = "bigit" }\n', "channel[0].parameters.user", "did you mean bigint?"),
        (QUERY + 'parameters = { SUBSCRIPTION = "string" }\n', "channel[0].parameters.SUBSCRIPTION", "name"),
        (QUERY + 'parameters = { a = "string", A = "string" }\n', "channel[0].parameters.a", "rename it"),
        (QUERY + 'period = "0s"\n', "channel[0].period", "longer than 0"),
        (QUERY + 'time_limit = 3\n', "channel[0].time_limit", "a duration"),
        (QUERY.replace("query", "querry"), "channel[0].querry", "did you mean query?"),
    ],
)  # fmt: skip
def test_a_channel_that_cannot_be_is_refused(text: str, path: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_pipeline(BASE + text)
    problem = next(each for each in caught.value.problems if each.path == path)
    assert said in problem.message
    assert '"near"' in problem.message or "near" in str(caught.value)


def test_a_channel_that_can_be_is_taken() -> None:
    declared = parse_pipeline(BASE + QUERY + 'new = ["emergencies"]\nparameters = { user = "string" }\n')
    assert declared.channels[0].new == ("emergencies",)
