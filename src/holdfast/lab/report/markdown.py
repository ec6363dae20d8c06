"""A report as Markdown: the same parts as the page, figures as links."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.lab.analysis.found import Analysis
from holdfast.lab.report.document import Block, Part, Plot, Table
from holdfast.lab.report.parts import check_text, facts, parts, report_title


def write_markdown(analysis: Analysis, figures: str = "") -> str:
    """`figures` is put before the file name of a figure: where the report is, seen from the text."""
    lines = [f"# {plain_text(report_title(analysis))}", ""]
    lines += ["| | |", "| --- | --- |"]
    lines += [f"| {name} | {plain_text(value)} |" for name, value in facts(analysis)]
    lines += ["", plain_text(check_text(analysis)), ""]
    for part in parts(analysis):
        lines += [f"## {part.title}", "", *part_lines(part, figures)]
    return "\n".join(lines).rstrip() + "\n"


def part_lines(part: Part, figures: str) -> list[str]:
    lines: list[str] = []
    for text in part.text:
        lines += [plain_text(text), ""] if text else []
    for item in part.items:
        if isinstance(item, Plot):
            lines += [f"![{plain_text(item.caption)}]({figures}{item.name}.svg)", ""]
        else:
            lines += [*table_lines(item), ""]
    return lines


def table_lines(table: Table) -> list[str]:
    """A block begins with a line of its title alone; Markdown has no groups, so a column names its own."""
    titles = [f"{column.group} {column.title}".strip() for column in table.columns]
    lines = [f"**{plain_text(table.caption)}**", "", _line(titles), _line(["---"] * len(titles))]
    for block in table.blocks:
        lines += _block_lines(block, len(titles))
    return lines


def _block_lines(block: Block, width: int) -> list[str]:
    title = (
        [_line([f"**{plain_text(block.title)}**", *[""] * (width - 1)], escape=False)] if block.title else []
    )
    return [*title, *(_line([cell.text for cell in row]) for row in block.rows)]


def _line(cells: Iterable[str], escape: bool = True) -> str:
    return "| " + " | ".join(plain_text(cell) if escape else cell for cell in cells) + " |"


def plain_text(text: str) -> str:
    """Text that Markdown takes as it is, on one line."""
    text = " ".join(text.split())
    for sign in ("\\", "`", "*", "_", "[", "]", "|"):
        text = text.replace(sign, f"\\{sign}")
    return text.replace("<", "&lt;").replace(">", "&gt;")
