"""Whether the query of a channel can run on the datasets: Spark's own analyser says, on empty relations.

Laws:
- a query that passes is one SELECT that gives `subscription` as a string once, and columns that JSON can hold
- nothing is executed here, whatever the text says: it is analysed as a subquery, and only a query can be one
- a problem says where (the file and the line), what, and what would do
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, Problem
from holdfast.pipeline.channels.near import FUNCTIONS, register
from holdfast.pipeline.channels.queries import Query
from holdfast.pipeline.channels.subscriptions import schema_of
from holdfast.pipeline.spark import QUERY_LOGGERS
from holdfast.readers import nearest

if TYPE_CHECKING:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SUBSCRIPTION = "subscription"
SUBSCRIPTIONS = "subscriptions"
SAID_CHARS_MAX = 300
NAMES_SHOWN_MAX = 8

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_POSITION = re.compile(r"\(line (\d+), pos (\d+)\)|; line (\d+),? pos (\d+)")


def mentioned(text: str, names: Iterable[str]) -> list[str]:
    """Those of the names that the query may read; more than it does if they are in strings or comments."""
    words = {word.lower() for word in _WORD.findall(text)}
    return [name for name in names if name.lower() in words]


def bare(text: str) -> str:
    """The query without the semicolon that may end it."""
    return re.sub(r"\s*;\s*$", "", text)


class Checker:
    """Checks queries one after the other in a session of its own."""

    def __init__(self, spark: SparkSession, schemas: Mapping[str, StructType]) -> None:
        import logging

        for name in QUERY_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._session = spark.newSession()
        self._schemas = dict(schemas)
        self._views: set[str] = set()
        register(self._session)
        for name, schema in self._schemas.items():
            self._session.createDataFrame([], schema).createOrReplaceTempView(name)

    def check(self, queries: Iterable[Query], source: Path) -> None:
        """ConfigError with the problems of all of them."""
        problems = [problem for query in queries for problem in self.problems(query)]
        if problems:
            raise ConfigError(str(source), problems)

    def problems(self, query: Query) -> Iterator[Problem]:
        """What is wrong with the query; of what Spark finds, the first."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        unread = [name for name in query.channel.new if not mentioned(query.text, [f"new_{name}"])]
        for name in unread:
            yield Problem(
                query.place(None),
                f"new names {name}, and the query never reads new_{name}: read it, or drop it",
            )
        self._declare(query)
        text = bare(query.text)
        try:
            self._session._jsparkSession.sessionState().sqlParser().parsePlan(text)
        except PySparkException as error:
            yield Problem(query.place(_syntax_at(error, text)), self._in_words(error, query))
            return
        opening = "SELECT * FROM (\n"
        try:
            frame = self._session.sql(f"{opening}{text}\n) AS found")
        except PySparkException as error:
            if _condition(error) == "PARSE_SYNTAX_ERROR":
                yield Problem(query.place(0), "this is not one SELECT; a channel's query only reads")
                return
            offset = _found_at(error)
            inside = None if offset is None else min(max(0, offset - len(opening)), len(text))
            yield Problem(query.place(inside), self._in_words(error, query))
            return
        except Py4JError as error:
            yield Problem(query.place(None), said_in_java(error))
            return
        for message in _output(frame):
            yield Problem(query.place(None), message)

    def _declare(self, query: Query) -> None:
        views: dict[str, object] = {SUBSCRIPTIONS: schema_of(query.channel)}
        views |= {f"new_{name}": self._schemas[name] for name in query.channel.new}
        for name in self._views - views.keys():
            self._session.catalog.dropTempView(name)
        self._views = set(views)
        parameters = schema_of(query.channel).empty_table()
        self._session.createDataFrame(parameters).createOrReplaceTempView(SUBSCRIPTIONS)
        for name in query.channel.new:
            self._session.table(name).createOrReplaceTempView(f"new_{name}")

    # -- words -----------------------------------------------------------------------------------------------

    def _in_words(self, error: PySparkException, query: Query) -> str:
        condition, found = _condition(error), _parameters(error)
        words: dict[str, Callable[[dict[str, str]], str]] = {
            "UNRESOLVED_COLUMN": _no_column,
            "UNRESOLVED_FIELD": _no_column,
            "TABLE_OR_VIEW_NOT_FOUND": lambda given: self._no_relation(given, query),
            "UNRESOLVED_ROUTINE": _no_function,
            "AMBIGUOUS_REFERENCE": _ambiguous,
            "DATATYPE_MISMATCH": _wrong_type,
            "UNSUPPORTED_SQL_UDF_USAGE": _not_here,
            "UNBOUND_SQL_PARAMETER": _unbound,
            "PARSE_SYNTAX_ERROR": lambda given: f"syntax error at {given['error']}{given['hint']}",
        }
        say = words.get(condition.partition(".")[0])
        try:
            return say(found) if say is not None else shortened(error)
        except KeyError:
            return shortened(error)

    def _no_relation(self, given: dict[str, str], query: Query) -> str:
        name = _plain(given["relationName"])
        base = name.removeprefix("new_")
        if name != base and base in self._schemas:
            listed = ", ".join(f'"{each}"' for each in (*query.channel.new, base))
            return f"there is no relation {name}: add the dataset to the channel, new = [{listed}]"
        known = [SUBSCRIPTIONS, *(f"new_{each}" for each in query.channel.new), *self._schemas]
        return f"there is no relation {name}; {_near(name, known)}"


def _output(frame: DataFrame) -> Iterator[str]:
    """What is wrong with the columns that the query gives."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    names = [field.name.lower() for field in frame.schema.fields]
    kinds = {field.name.lower(): field.dataType.simpleString() for field in frame.schema.fields}
    if SUBSCRIPTION not in names:
        yield "the query gives no column subscription: add s.subscription of `subscriptions s` to its SELECT"
    elif kinds[SUBSCRIPTION] != "string":
        yield f"subscription is of type {kinds[SUBSCRIPTION]}: give that of `subscriptions`, a string"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"the query gives the column {name} twice: leave one out, or name it otherwise with AS"
    if len(set(names)) == len(names):
        try:
            frame.select(f.to_json(f.struct("*")))
        except AnalysisException as error:
            yield f"a column cannot be written as JSON: {shortened(error)}"


def _no_column(given: dict[str, str]) -> str:
    name = _plain(given.get("objectName") or given["fieldName"])
    proposal = given.get("proposal") or given.get("fields") or ""
    known = [_plain(each) for each in proposal.split(", ") if each]
    return f"there is no column {name}; {_near(name, known)}" if known else f"there is no column {name}"


def _no_function(given: dict[str, str]) -> str:
    name = _plain(given["routineName"])
    return f"there is no function {name}; {_near(name, list(FUNCTIONS), 'beside those of Spark here')}"


def _ambiguous(given: dict[str, str]) -> str:
    several = _plain(given["referenceNames"]).strip("[]")
    return f"{_plain(given['name'])} could be any of {several}: say which"


def _wrong_type(given: dict[str, str]) -> str:
    expression = given.get("sqlExpr", "").strip('"')
    if "left" in given and "right" in given:
        return f"{expression} has two types that do not go together: {given['left']} and {given['right']}"
    got = given.get("inputType", "").strip('"')
    wants = given.get("requiredType", "").strip('"')
    which = given["inputSql"].strip('"')
    return f"{which} is of type {got}, and {expression} needs {wants}"


def _unbound(given: dict[str, str]) -> str:
    name = _plain(given["name"])
    return f":{name} has no value: parameters are columns of `subscriptions s`, as in s.{name}"


def _not_here(given: dict[str, str]) -> str:
    name = _plain(given["functionName"])
    return (
        f"{name} cannot stand inside another function that makes rows: name it in a SELECT of its own first, "
        f"as in FROM (SELECT *, {name}(…) AS cells FROM …), then explode(cells)"
    )


def _near(name: str, known: list[str], here: str = "known here") -> str:
    near = nearest(name, known, most=3)
    if near:
        return f"did you mean {' or '.join(each for each in known if each in near)}?"
    more = ", …" if len(known) > NAMES_SHOWN_MAX else ""
    return f"{here}: {', '.join(known[:NAMES_SHOWN_MAX])}{more}"


def _plain(quoted: str) -> str:
    return quoted.replace("`", "")


def _condition(error: PySparkException) -> str:
    return error.getCondition() or ""


def _parameters(error: PySparkException) -> dict[str, str]:
    return dict(error.getMessageParameters() or {})


def shortened(error: PySparkException) -> str:
    """The first line of what Spark says, without its codes."""
    return _without_codes((str(error).strip().splitlines() or [type(error).__name__])[0])


def _without_codes(said: str) -> str:
    said = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", said)
    said = re.sub(r"\s*(SQLSTATE: \w+|Please, refer to).*$", "", said)
    return said if len(said) <= SAID_CHARS_MAX else said[: SAID_CHARS_MAX - 1] + "…"


def said_in_java(error: Py4JError) -> str:
    """What the exception itself says, where PySpark has no words for it."""
    said = next((line for line in str(error).splitlines() if line.startswith(": ")), type(error).__name__)
    return _without_codes(re.sub(r"^: [\w.$]+: ", "", said))


def _found_at(error: PySparkException) -> int | None:
    """The offset in the text that Spark points to."""
    for context in error.getQueryContext() or []:
        if context.contextType().name == "SQL":
            return int(context.startIndex())
    return None


def _syntax_at(error: PySparkException, text: str) -> int | None:
    match = _POSITION.search(str(error))
    if match is None:
        return None
    line, column = (int(each) for each in match.groups() if each is not None)
    before = text.split("\n")[: line - 1]
    return min(len(text), sum(len(each) + 1 for each in before) + column)
