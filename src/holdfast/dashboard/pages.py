"""The pages, drawn with NiceGUI: where each piece stands, and what can be pressed.

Laws:
- an element is told only what changed, and nothing that can have the focus is ever replaced
- everything that can be reached with a pointer can be reached with Tab, in the order in which it is read
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from urllib.parse import quote

from nicegui import ui
from nicegui.element import Element

from holdfast.dashboard.example import Example
from holdfast.dashboard.live import Live
from holdfast.dashboard.picture import ContractRow, Picture
from holdfast.dashboard.render import changed, contract_page, worked_out
from holdfast.dashboard.spec import Action
from holdfast.dashboard.worked import work_out

TITLE = "Holdfast"
STYLE = Path(__file__).with_name("style.css").read_text()
CELLS = {
    "promise": "promise",
    "latency": "latency, p99 against the deadline",
    "loss": "lost in a row",
    "rate": "messages/s",
    "verdict": "verdict",
}
FAVICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'><rect width='32' height='32' rx='7' "
    "fill='#2f5bd0'/><path d='M10 7v18M22 7v18M10 16h12' stroke='#fff' stroke-width='4'/></svg>"
)
BUTTONS: tuple[tuple[Action, str, str], ...] = (
    ("kill", "Kill the primary", "SIGKILL, as if its machine had lost power"),
    ("restart", "Start it again", "Starts the brokers that are down"),
)


class Pieces:
    """The elements of one browser's page, by the piece that each shows."""

    def __init__(self) -> None:
        self._elements: dict[str, ui.html] = {}
        self._shown: dict[str, str] = {}

    def place(self, name: str, tag: str = "div", classes: str = "") -> ui.html:
        element = self._elements[name] = plain(tag, "", classes)
        self._shown.pop(name, None)
        return element

    def forget(self, prefix: str) -> None:
        for name in [name for name in self._elements if name.startswith(prefix)]:
            del self._elements[name]

    def show(self, pieces: dict[str, str]) -> None:
        for name in changed(self._shown, pieces, list(self._elements)):
            self._shown[name] = pieces.get(name, "")
            self._elements[name].set_content(self._shown[name])


def plain(tag: str, text: str, classes: str = "") -> ui.html:
    return ui.html(escape(text), sanitize=False, tag=tag).classes(classes)


def link(text: str, target: str, classes: str = "") -> Element:
    element = ui.element("a").props(f'href="{escape(target)}"').classes(classes)
    with element:
        plain("span", text)
    return element


@contextmanager
def section(title: str, classes: str) -> Iterator[None]:
    with ui.element("section").classes(classes):
        plain("h2", title)
        yield


def watch(live: Live, refresh: Callable[[], None]) -> None:
    """Until the browser is gone."""
    refresh()
    live.watch(refresh)
    ui.context.client.on_delete(lambda: live.unwatch(refresh))


def frame() -> Element:
    """What all pages have; what comes in it is the page."""
    ui.add_css(STYLE)
    ui.query(".nicegui-content").classes("hf-content")
    return ui.element("main")


class Front:
    """The first page, for one browser."""

    def __init__(self, live: Live, example: Example | None) -> None:
        self._live = live
        self._example = example
        self._pieces = Pieces()
        self._names: list[str] | None = None
        with frame():
            self._header()
            self._pieces.place("headline").props('role="status" aria-live="polite"')
            if example is not None:
                self._actions(example)
            with section("Brokers", "brokers"):
                self._pieces.place("brokers", classes="cards")
            with section("Contracts", "contracts"):
                self._table()
                self._pieces.place("contracts-words")
                if example is not None:
                    self._pieces.place("subscriber", "p", "legend")
            with section("Failovers", "failover"):
                self._pieces.place("timeline")
            if live.picture.pipeline is not None or example is not None:
                with section("Channels", "pipeline"):
                    self._pieces.place("pipeline")
            if live.city is not None:
                with section("City", "city"):
                    self._pieces.place("map", classes="map-box")
                    self._pieces.place("city-words", classes="city-words")
        watch(live, self.refresh)

    def _header(self) -> None:
        with ui.element("header"):
            plain("h1", TITLE)
            self._pieces.place("where", "span", "where")
            self._pieces.place("clock", "span", "clock")

    def _actions(self, example: Example) -> None:
        with ui.element("div").classes("actions"):
            for action, words, title in BUTTONS:
                button = ui.element("button").props(f'type="button" title="{title}"').classes(action)
                button.on("click", lambda action=action: example.ask(action))
                with button:
                    plain("span", words)
            self._pieces.place("news", "p", "news").props('role="status" aria-live="polite"')

    def _table(self) -> None:
        with ui.element("table").classes("contract-table"):
            with ui.element("thead"), ui.element("tr"):
                for title in ("contract", *CELLS.values()):
                    plain("th", title)
            self._body = ui.element("tbody")

    def _rows(self, picture: Picture) -> None:
        """Only when there are others than before."""
        names = [row.name for row in picture.contracts]
        if names == self._names:
            return
        self._names = names
        self._pieces.forget("contract/")
        self._body.clear()
        with self._body:
            for row in picture.contracts:
                self._row(row)

    def _row(self, row: ContractRow) -> None:
        with ui.element("tr"):
            with ui.element("td").classes("name"):
                link(row.name, f"/contract/{quote(row.name, safe='')}")
                plain("small", row.topics)
            for cell, title in CELLS.items():
                self._pieces.place(f"contract/{row.name}/{cell}", "td", cell).props(f'data-name="{title}"')

    def refresh(self) -> None:
        picture = self._live.picture
        self._rows(picture)
        said = {"news": escape(self._live.news), "subscriber": escape(self._live.subscriber)}
        self._pieces.show({**self._live.pieces, "clock": picture.at, **said})


class ContractPage:
    """What one contract promises, what happens, and why that can be promised."""

    def __init__(self, live: Live, name: str) -> None:
        self._live = live
        self._name = name
        self._pieces = Pieces()
        with frame():
            with ui.element("nav"):
                link("← All contracts", "/")
            with ui.element("header"):
                plain("h1", name)
                self._pieces.place("promise", "span", "where")
            self._pieces.place("headline").props('role="status" aria-live="polite"')
            with section("Now", "now"):
                self._pieces.place("chart", classes="chart")
                self._pieces.place("chart-words", "p", "legend")
                self._pieces.place("totals", "dl")
            with section("All messages so far", "distribution"):
                self._pieces.place("bars", classes="chart")
                self._pieces.place("bars-words", "p", "legend")
            with section("The bounds, worked out", "worked"):
                self._pieces.place("worked")
        watch(live, self.refresh)

    def refresh(self) -> None:
        row, known = self._live.row(self._name), self._live.board.known(self._name)
        if row is None or known is None:
            self._pieces.show({"headline": NO_SUCH_CONTRACT})
            return
        worked = worked_out(work_out(known.contract, known.deployment))
        self._pieces.show({**contract_page(row), "worked": worked})


NO_SUCH_CONTRACT = (
    '<div class="headline unknown"><i aria-hidden="true">…</i><div>'
    "<strong>No broker has told of this contract</strong><ul>"
    "<li>It may have been renamed, or the brokers have not answered yet.</li></ul></div></div>"
)


def define(live: Live, example: Example | None) -> None:
    @ui.page("/", title=TITLE)
    def front() -> None:
        Front(live, example)

    @ui.page("/contract/{name:path}", title=f"{TITLE}: a contract")
    def contract(name: str) -> None:
        ContractPage(live, name)
