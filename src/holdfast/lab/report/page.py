"""A report as one page: nothing outside it is loaded, and it is well-formed XML besides HTML.

Laws:
- every text is escaped where it is written
- figures are in the page, and beside it as SVG; results.json and README.md stand beside it too
"""

from __future__ import annotations

from html import escape
from importlib.resources import files
from itertools import groupby
from pathlib import Path

import msgspec

from holdfast.lab.analysis.found import Analysis
from holdfast.lab.report import style
from holdfast.lab.report.document import Block, Cell, Column, Part, Plot, Table
from holdfast.lab.report.markdown import write_markdown
from holdfast.lab.report.parts import check_text, facts, parts, report_title
from holdfast.lab.report.results import as_json

PAGE = "index.html"
RESULTS = "results.json"
TEXT = "README.md"


def write_report(analysis: Analysis, out: Path) -> Path:
    """The report and the JSON that it can be made from again, in a folder; gives the path of the page."""
    out.mkdir(parents=True, exist_ok=True)
    (out / RESULTS).write_bytes(msgspec.json.encode(as_json(analysis)) + b"\n")
    return show_report(analysis, out)


def show_report(analysis: Analysis, out: Path) -> Path:
    """The page with its figures, and Markdown, in a folder that there is."""
    found = parts(analysis)
    drawings = {
        plot.name: _save(plot, out) for part in found for plot in part.items if isinstance(plot, Plot)
    }
    (out / TEXT).write_text(write_markdown(analysis), encoding="utf-8")
    page = out / PAGE
    page.write_text(_page(analysis, found, drawings), encoding="utf-8")
    return page


def _save(plot: Plot, out: Path) -> str:
    drawing = style.rendered(plot.draw)
    (out / f"{plot.name}.svg").write_text(drawing, encoding="utf-8")
    return style.inline(drawing, plot.name)


def _page(analysis: Analysis, found: list[Part], drawings: dict[str, str]) -> str:
    title = escape(report_title(analysis))
    css = (files("holdfast.lab.report") / "page.css").read_text(encoding="utf-8")
    links = "".join(f'<li><a href="#{part.name}">{escape(part.title)}</a></li>' for part in found)
    body = "\n".join(_part(part, drawings) for part in found)
    if not found:
        body = "<p>There is nothing to show: no trial was analysed.</p>"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8" />\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1" />\n'
        f"<title>{title}</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        f"<header>\n<h1>{title}</h1>\n{_facts(analysis)}\n{_check(analysis)}\n"
        + (f"<nav><ul>{links}</ul></nav>\n" if links else "")
        + f"</header>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _facts(analysis: Analysis) -> str:
    code = ("run again", "commit")
    lines = []
    for name, value in facts(analysis):
        shown = f"<code>{escape(value)}</code>" if name in code else escape(value)
        lines.append(f"<dt>{escape(name)}</dt><dd>{shown}</dd>")
    return f"<dl>{''.join(lines)}</dl>"


def _check(analysis: Analysis) -> str:
    tone = "trouble" if analysis.check else "fine" if analysis.rows else "plain"
    failed = ""
    if analysis.failed:
        failed = f'<p class="note trouble">{len(analysis.failed):,} of {analysis.trials:,} trials failed.</p>'
    return f'{failed}<p class="note {tone}">{escape(check_text(analysis))}</p>'


def _part(part: Part, drawings: dict[str, str]) -> str:
    text = "".join(f"<p>{escape(each)}</p>\n" for each in part.text if each)
    items = "\n".join(
        _figure(item, drawings[item.name]) if isinstance(item, Plot) else _table(item) for item in part.items
    )
    return f'<section id="{part.name}">\n<h2>{escape(part.title)}</h2>\n{text}{items}\n</section>'


def _figure(plot: Plot, drawing: str) -> str:
    link = f'<a href="{escape(plot.name)}.svg">SVG</a>'
    return (
        f'<figure>\n<div class="scroll">{drawing}</div>\n'
        f"<figcaption>{escape(plot.caption)} {link}</figcaption>\n</figure>"
    )


def _table(table: Table) -> str:
    head = _head(table)
    body = "\n".join(_block(block, table.columns) for block in table.blocks)
    inner = f'<div class="scroll"><table>\n<thead>{head}</thead>\n{body}\n</table></div>'
    if table.folded:
        return f"<details><summary>{escape(table.caption)}</summary>\n{inner}</details>"
    return f'<p class="caption">{escape(table.caption)}</p>\n{inner}'


def _head(table: Table) -> str:
    first = next((row for block in table.blocks for row in block.rows), [])
    left = {index for index, cell in enumerate(first) if cell.tone == "label"}
    left |= {index for index, column in enumerate(table.columns) if column.words}
    if not any(column.group for column in table.columns):
        titles = [_title(column, index in left) for index, column in enumerate(table.columns)]
        return f"<tr>{''.join(titles)}</tr>"
    above, below = [], []
    for group, members in groupby(enumerate(table.columns), key=lambda item: item[1].group):
        columns = list(members)
        if group:
            above.append(f'<th colspan="{len(columns)}" class="group">{escape(group)}</th>')
            below += [_title(column, index in left) for index, column in columns]
        else:
            above += [_title(column, index in left, ' rowspan="2"') for index, column in columns]
    return f"<tr>{''.join(above)}</tr><tr>{''.join(below)}</tr>"


def _title(column: Column, left: bool, span: str = "") -> str:
    side = ' class="left"' if left else ""
    return f"<th{span}{side}>{escape(column.title)}</th>"


def _block(block: Block, columns: list[Column]) -> str:
    title = ""
    if block.title:
        span = f'<th colspan="{len(columns)}"><span>{escape(block.title)}</span></th>'
        title = f'<tr class="block">{span}</tr>\n'
    rows = "\n".join(f"<tr>{''.join(map(_cell, row, columns))}</tr>" for row in block.rows)
    return f"<tbody>{title}{rows}</tbody>"


def _cell(cell: Cell, column: Column) -> str:
    if cell.tone == "label":
        words = ' class="words"' if column.words else ""
        return f'<th scope="row"{words}>{escape(cell.text)}</th>'
    shown = " ".join(filter(None, (cell.tone, "words" if column.words else "")))
    tone = f' class="{shown}"' if shown else ""
    return f"<td{tone}>{escape(cell.text)}</td>"
