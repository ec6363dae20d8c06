"""The pieces of the pages as HTML text, each under a name; whoever draws puts them where they belong. Pure.

Laws:
- what comes from outside is escaped
- a piece is the same text as long as it says the same, so that only what changed is sent
- every state is a word and a sign; colour only repeats it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from holdfast.dashboard.city import CityPicture
from holdfast.dashboard.drawing import Scale, bars, city, level, scale_for, spark, timeline
from holdfast.dashboard.picture import (
    BrokerCard,
    ChannelRow,
    ContractRow,
    Headline,
    Mood,
    Picture,
    Pipeline,
    Timeline,
)
from holdfast.dashboard.words import about, exact
from holdfast.dashboard.worked import Worked
from holdfast.status import BOUNDS_NS

DETAILS_MAX = 6
DOTS_MAX = 5
LINES_MAX = 8
TIMES = "".join(f"<span>−{minutes} min</span>" for minutes in (5, 4, 3, 2, 1)) + "<span>now</span>"
DECADES = 3
LANES_LEGEND = "thick bar: primary · thin bar: backup · hairline: joining · nothing: unreachable"
CITY_LEGEND = "ring: an emergency and its reach · cross: a person in reach · point: a person"
ROLE_SIGNS = {"primary": "■", "alone": "■", "backup": "□", "unreachable": "✕"}


def chip(mood: Mood, word: str) -> str:
    return f'<span class="chip {mood.value}"><i aria-hidden="true">{mood.sign}</i>{escape(word)}</span>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)


def front(picture: Picture, map_picture: CityPicture | None) -> dict[str, str]:
    """All pieces of the first page by name."""
    pieces = {
        "where": _where(picture),
        "headline": headline(picture.headline),
        "brokers": "".join(map(broker, picture.brokers)),
        "contracts-words": _contracts_words(picture),
        "timeline": failovers(picture.timeline),
    }
    for row in picture.contracts:
        for name, piece in contract(row).items():
            pieces[f"contract/{row.name}/{name}"] = piece
    if picture.pipeline is not None:
        pieces["pipeline"] = pipeline(picture.pipeline)
    if map_picture is not None:
        pieces["map"] = city(map_picture.dots, map_picture.rings, map_picture.words)
        pieces["city-words"] = city_words(map_picture)
    return pieces


def _where(picture: Picture) -> str:
    parts = [f"group {picture.group}" if picture.group else "", picture.view]
    return escape(" · ".join(part for part in parts if part))


def headline(said: Headline) -> str:
    more = len(said.details) - DETAILS_MAX
    lines = [*said.details[:DETAILS_MAX], *([f"{more} more below."] if more > 0 else [])]
    below = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return (
        f'<div class="headline {said.mood.value}"><i aria-hidden="true">{said.mood.sign}</i>'
        f"<div><strong>{escape(said.words)}</strong>{f'<ul>{below}</ul>' if below else ''}</div></div>"
    )


def broker(card: BrokerCard) -> str:
    sign = ROLE_SIGNS.get(card.role, "◌")
    links = "".join(f'<li class="{link.mood.value}">{escape(link.words)}</li>' for link in card.links)
    return (
        f'<article class="broker {card.mood.value}"><h3><span>Broker {escape(card.name)}</span>'
        f'<span class="role role-{escape(card.role.split()[0])}"><i aria-hidden="true">{sign}</i> '
        f"{escape(card.role)}</span></h3>"
        f"<dl>{facts(card.facts)}</dl>"
        + (f"<ul>{links}</ul>" if links else "")
        + (f'<p class="why">{escape(card.why)}</p>' if card.why else "")
        + "</article>"
    )


def _contracts_words(picture: Picture) -> str:
    if picture.contracts_words:
        return f'<p class="empty">{escape(picture.contracts_words)}</p>'
    if picture.contracts_left_out:
        more = picture.contracts_left_out
        return f'<p class="empty">{more} more are not shown; what is broken comes first.</p>'
    return ""


def contract(row: ContractRow) -> dict[str, str]:
    """The cells of a row that change."""
    words = latency_words(row)
    return {
        "promise": f"{escape(row.promise[0])}<small>{escape(row.promise[1])}</small>",
        "latency": spark(row.latencies_ns, row.limit_ns, words)
        + f'<span class="figure">{escape(row.latency)}<small>limit {exact(row.limit_ns)}</small></span>',
        "loss": loss(row),
        "rate": f'<span class="figure">{escape(row.rate)}</span>',
        "verdict": chip(row.mood, row.verdict) + (f'<p class="why">{escape(row.why)}</p>' if row.why else ""),
    }


def latency_words(row: ContractRow) -> str:
    return f"p99 of a second, now {row.latency}, against a limit of {exact(row.limit_ns)} at the broker"


def loss(row: ContractRow) -> str:
    """As many places as may be lost, and filled ones for those that were."""
    run, allowed = row.loss_dots
    dots = ""
    if allowed is not None:
        shown = max(min(allowed, DOTS_MAX), min(run, DOTS_MAX))
        dots = "".join("●" if place < run else "○" for place in range(shown))
        dots = f'<i class="dots" aria-hidden="true">{dots}</i>'
    return f'<span class="figure">{escape(row.loss_run)}</span>{dots}'


def failovers(shown: Timeline) -> str:
    if not shown.lanes:
        return '<p class="empty">No broker has told what it is yet.</p>'
    said = "; ".join(
        f"{lane.name}: {lane.spans[-1].role if lane.spans else 'not known'}" for lane in shown.lanes
    )
    names = "".join(f"<span>{escape(lane.name)}</span>" for lane in shown.lanes)
    rows = "".join(
        f"<tr><td>{escape(line.at)}</td><td>{escape(line.words)}</td><td>{escape(line.took)}</td></tr>"
        for line in shown.lines[:LINES_MAX]
    )
    table = (
        '<table class="failovers"><thead><tr><th>when</th><th>what happened</th><th>x</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
        if rows
        else '<p class="empty">No failover yet.</p>'
    )
    picture = timeline(shown.lanes, shown.marks, 300.0, f"Who served in the last five minutes. {said}")
    return (
        f'<div class="lanes"><div class="names">{names}</div><div>{picture}<p class="axis">{TIMES}</p></div>'
        f'</div><p class="legend">{LANES_LEGEND}</p>'
        f"{table}"
    )


def pipeline(seen: Pipeline) -> str:
    state = f'<p class="state">{chip(seen.mood, seen.words)}</p>'
    if not seen.channels:
        return state
    rows = "".join(map(_channel, seen.channels))
    return (
        f"{state}<dl>{facts(seen.facts)}</dl>"
        '<table class="channels"><thead><tr><th>channel</th><th>every</th><th>last run</th><th>took</th>'
        f"<th>results</th><th>subscribers</th><th>state</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _channel(row: ChannelRow) -> str:
    cells = [("every", row.period), ("last run", row.last_run), ("took", row.took), ("results", row.results)]
    cells.append(("subscribers", row.subscribers))
    middle = "".join(f'<td data-name="{name}">{escape(value)}</td>' for name, value in cells)
    why = f'<p class="why">{escape(row.why)}</p>' if row.why else ""
    return (
        f'<tr class="{row.mood.value}"><td class="name">{escape(row.name)}</td>{middle}'
        f"<td>{chip(row.mood, row.verdict)}{why}</td></tr>"
    )


def city_words(seen: CityPicture) -> str:
    lines = "".join(f"<li>{escape(line)}</li>" for line in seen.lines)
    told = "".join(
        f"<tr><td>{escape(at)}</td><td>{escape(topic)}</td><td>{escape(words)}</td></tr>"
        for at, topic, words in seen.told
    )
    table = (
        '<table class="told"><thead><tr><th>when</th><th>who was told</th><th>of what</th></tr></thead>'
        f"<tbody>{told}</tbody></table>"
        if told
        else '<p class="empty">Nobody was told anything yet: channels run when the pipeline does.</p>'
    )
    return (
        f"<p>{escape(seen.words)}</p><ul>{lines}</ul>"
        f'<p class="legend">{CITY_LEGEND}</p>'
        f"<h3>What channels told</h3>{table}"
    )


# -- the page of a contract ----------------------------------------------------------------------------------


def contract_page(row: ContractRow) -> dict[str, str]:
    words = latency_words(row)
    scale = scale_for(row.counts, BOUNDS_NS, row.limit_ns)
    return {
        "promise": escape(f"{row.topics}: {', '.join(row.promise)}"),
        "headline": headline(
            Headline(row.mood, row.verdict.capitalize(), (f"{row.why}.",) if row.why else ())
        ),
        "chart": spark(row.latencies_ns, row.limit_ns, words, width=900, height=150) + _decades(row.limit_ns),
        "chart-words": f"Each point is the {escape(words)}. A triangle is late. The scale is logarithmic.",
        "totals": facts([*row.totals, ("longest loss run", row.loss_run), ("messages/s", row.rate)]),
        "bars": bars(row.counts, scale, "how often a message took how long, against the limit")
        + _bounds(scale),
        "bars-words": "How long messages took, from creation to the subscriber's socket; the dashed line "
        f"is the limit of {exact(row.limit_ns)}.",
    }


def _decades(limit_ns: int) -> str:
    """The limit, and a tenth of it, and so on, where the scale has them."""
    marks = []
    for decade in range(DECADES):
        ns = limit_ns // 10**decade
        below = 100 * (1 - level(ns, limit_ns)) if ns else 100.0
        marks.append(f'<span style="top:{below:.1f}%">{exact(ns) if not decade else about(ns)}</span>')
    return f'<div class="decades" aria-hidden="true">{"".join(marks)}</div>'


def _bounds(scale: Scale) -> str:
    """Whole tens of the bounds that are shown."""
    marks = [
        f'<span style="left:{100 * scale.x(index + 1):.1f}%">{exact(bound)}</span>'
        for index, bound in enumerate(BOUNDS_NS[scale.first : scale.last - 1], scale.first)
        if str(bound).strip("0") == "1"
    ]
    return f'<div class="bounds" aria-hidden="true">{"".join(marks)}</div>'


def worked_out(worked: Worked) -> str:
    lemmas = "".join(
        f"<article><h3>{escape(lemma.title)}</h3><p class='formula'>{_symbols(lemma.formula)}</p>"
        f"<p class='formula numbers'>{escape(lemma.numbers)}</p><p>{escape(lemma.meaning)}</p></article>"
        for lemma in worked.lemmas
    )
    rows = "".join(
        f"<tr{' class=current' if each.current else ''}>"
        f"<td>{each.retention}{' (now)' if each.current else ''}</td>"
        f"<td>{escape(each.copied_within)}</td><td>{escape(each.outcome)}</td><td>{escape(each.meaning)}</td></tr>"
        for each in worked.choices
    )
    return (
        f'<div class="lemmas">{lemmas}</div><h2>What another N would do</h2>'
        "<p>N is how many of its last messages a publisher keeps, to send them again after a failover.</p>"
        '<table class="choices"><thead><tr><th>N</th><th>D<sub>r</sub></th><th>outcome</th><th>why</th></tr>'
        "</thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _symbols(formula: str) -> str:
    """D_r with a small r below."""
    words = []
    for word in escape(formula).split(" "):
        name, line, below = word.partition("_")
        words.append(f"{name}<sub>{below}</sub>" if line else word)
    return " ".join(words)


def changed(before: Mapping[str, str], now: Mapping[str, str], wanted: Sequence[str]) -> list[str]:
    """The names of the pieces that are wanted and differ."""
    return [name for name in wanted if now.get(name) != before.get(name)]
