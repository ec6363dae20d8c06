"""Pictures and pieces as text: what is late has a mark, what comes from outside is escaped."""

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from dashboard.told import NOW_NS, broker, contract, pipeline
from holdfast.dashboard.board import Board
from holdfast.dashboard.city import EMERGENCIES_MAX, City
from holdfast.dashboard.drawing import bars, level, scale_for, spark
from holdfast.dashboard.picture import SIGNS
from holdfast.dashboard.render import changed, contract_page, front
from holdfast.dashboard.spec import Ground
from holdfast.status import BOUNDS_NS
from holdfast.units import MS, S

GROUND = Ground(south=50.0, north=51.0, west=4.0, east=5.0, people="p/+", emergencies="e/+")
NASTY = "<img src=x onerror=alert(1)>\"'&"


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def marks(svg: str, name: str) -> list[str]:
    return [each.get("d", "") for each in parse(svg).iter() if each.get("class") == name]


def test_what_is_late_has_a_mark_of_its_own() -> None:
    fine = spark([1 * MS, None, 49 * MS], 50 * MS, "fine")
    late = spark([1 * MS, 51 * MS, 51 * MS], 50 * MS, "late")
    assert marks(fine, "late") == []
    assert marks(late, "late")[0].count("M") == 2


def test_where_nothing_came_there_is_a_gap() -> None:
    (line,) = marks(spark([MS, MS, None, MS], 50 * MS, "gap"), "line")
    assert line.count("M") == 2


@given(st.lists(st.none() | st.integers(0, 100 * S), max_size=100), st.integers(1, 100 * S))
def test_a_line_stays_in_its_picture(latencies_ns: list[int | None], deadline_ns: int) -> None:
    picture = parse(spark(latencies_ns, deadline_ns, "any", width=180, height=36))
    for path in picture.iter("path"):
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d", "")):
            assert 0 <= float(x) <= 180
            assert -1 <= float(y) <= 36


@given(st.integers(1, 10 * S), st.integers(1, 10 * S), st.integers(1, 10 * S))
def test_later_is_never_lower(one_ns: int, other_ns: int, deadline_ns: int) -> None:
    low, high = sorted((one_ns, other_ns))
    assert level(low, deadline_ns) <= level(high, deadline_ns)


def test_bars_begin_where_something_was_met() -> None:
    counts = [0] * (len(BOUNDS_NS) + 1)
    counts[14], counts[24] = 100, 1
    picture = bars(counts, scale_for(counts, BOUNDS_NS, 50 * MS), "all")
    heights = [float(each.get("height", "0")) for each in parse(picture).iter("rect")]
    assert len([height for height in heights if height > 0]) == 2
    nothing = [0] * len(counts)
    parse(bars(nothing, scale_for(nothing, BOUNDS_NS, 50 * MS), "none"))


def pieces(**changes: object) -> dict[str, str]:
    board = Board(["http://a", "http://b"], "http://p", NOW_NS)
    board.heard("http://a", broker("a", **changes), NOW_NS)
    board.failed("http://b", f"it says {NASTY}", NOW_NS)
    channel = pipeline().channels[0]
    board.heard("http://p", pipeline(channels=[channel]), NOW_NS)
    board.close()
    city = City(GROUND)
    city.heard("p/1", b'{"user": "<b>", "lat": 50.5, "lon": 4.5}', NOW_NS)
    return front(board.picture(NOW_NS), city.picture(NOW_NS))


def test_what_comes_from_outside_is_text() -> None:
    found = pieces(
        group=NASTY,
        ready=False,
        ready_why=NASTY,
        contracts=[contract(NASTY, topics=[NASTY])],
        refusals={NASTY: 3},
    )
    for piece in found.values():
        assert "<img" not in piece
        assert "<b>" not in piece
        parse(f"<div>{piece}</div>")


def test_every_state_is_a_word_and_a_sign() -> None:
    found = pieces(contracts=[contract("late", late=1, late_last_at_ns=NOW_NS), contract("fine")])
    assert re.search(r"<i[^>]*>✕</i>broken", found["contract/late/verdict"])
    assert "1 of 100 came later" in found["contract/late/verdict"]
    assert re.search(r"<i[^>]*>✓</i>kept", found["contract/fine/verdict"])
    assert len(set(SIGNS.values())) == len(SIGNS)


def test_only_what_changed_is_told() -> None:
    before, same = pieces(), pieces()
    assert changed(before, same, list(before)) == []
    other = pieces(contracts=[contract(loss_run_max=1)])
    assert "contract/emergency/loss" in changed(before, other, list(before))
    assert "contract/emergency/promise" not in changed(before, other, list(before))


def test_the_page_of_a_contract_has_its_pieces() -> None:
    board = Board(["http://a"], None, NOW_NS)
    board.heard("http://a", broker("a"), NOW_NS)
    (row,) = board.picture(NOW_NS).contracts
    for name in ("chart", "bars"):
        parse(f"<div>{contract_page(row)[name]}</div>")


# -- the city ------------------------------------------------------------------------------------------------


def emergency(name: str, *, lasts_s: int = 60, radius_m: int = 1000) -> bytes:
    return (
        f'{{"id": "{name}", "kind": "fire", "district": "old_town", "severity": 3, "lat": 50.5, "lon": 4.5, '
        f'"radius_m": {radius_m}, "ends": "2027-01-15T08:0{lasts_s // 60}:00.000+00:00"}}'
    ).encode()


def test_who_is_in_reach_of_an_emergency_that_lasts() -> None:
    city = City(GROUND)
    city.heard("p/1", b'{"user": "near", "lat": 50.501, "lon": 4.5}', NOW_NS)
    city.heard("p/2", b'{"user": "far", "lat": 50.6, "lon": 4.5}', NOW_NS)
    city.heard("e/1", emergency("e1"), NOW_NS)
    seen = city.picture(NOW_NS)
    assert {dot.name: dot.reached for dot in seen.dots} == {"near": True, "far": False}
    assert seen.words == "2 people, 1 emergency; 1 in reach of one"
    assert seen.lines == ("fire in old town, severity 3, reaches 1 person",)
    (ring,) = seen.rings
    assert (ring.x, ring.y) == (0.5, 0.5)
    assert city.picture(NOW_NS + 61 * S).rings == ()


def test_what_channels_told_is_shown_and_nonsense_is_passed_over() -> None:
    city = City(GROUND)
    for payload in (b"", b"{", b"[]", b'{"user": 1}', b'{"radius_m": "x"}', b"\xff"):
        city.heard("p/1", payload, NOW_NS)
        city.heard("$channel/near/p001", payload, NOW_NS)
    assert city.picture(NOW_NS).told == ()
    rows = (
        b'{"channel": "near", "rows": [{"id": "e1", "begins": "2026-11-16T11:22:09Z", "kind": "fire"}, {}]}'
    )
    city.heard("$channel/near/p001", rows, NOW_NS)
    ((_, who, words),) = city.picture(NOW_NS).told
    assert (who, words) == ("near/p001", "id e1, kind fire and 1 more")


def test_what_a_city_keeps_is_bounded() -> None:
    city = City(GROUND)
    for number in range(1000):
        city.heard("p/1", f'{{"user": "{number}", "lat": 1, "lon": 1}}'.encode(), NOW_NS)
        city.heard("e/1", emergency(f"e{number}"), NOW_NS)
    seen = city.picture(NOW_NS)
    assert len(seen.dots) == 500
    assert len(seen.rings) == EMERGENCIES_MAX
