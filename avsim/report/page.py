"""The frame of the HTML report: style sheet, page and table helpers. Every helper escapes the text that it is given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["MISSING", "chip", "definitions", "page", "paragraph", "section", "table", "td", "th"]

MISSING = "–"

_CSS = """
:root { color-scheme: light dark;
  --bg: #ffffff; --card: #f5f6f8; --ink: #1b1f24; --muted: #59636e; --grid: #d5dae0; --zebra: #f9fafb;
  --gain: #00628a; --loss: #a83a00; --withheld: #7d5a00; --none: #59636e; --mark: #fff3d6; --mark-edge: #c98a00;
  --s0: #c94f00; --s1: #0072b2; --s2: #008060; --s3: #a8438a; --s4: #8a6d00; --s5: #3f3fae;
  --fixed: #6f8196; --bound: #8a5fbf; }
@media (prefers-color-scheme: dark) { :root {
  --bg: #14171b; --card: #1d2127; --ink: #e5e8eb; --muted: #9ea8b3; --grid: #363d46; --zebra: #181b20;
  --gain: #62c4ea; --loss: #ff9f70; --withheld: #e6b94a; --none: #9ea8b3; --mark: #3a2e10; --mark-edge: #d9a32b;
  --s0: #ff8f52; --s1: #5ab4e8; --s2: #45c9a3; --s3: #e394c8; --s4: #d8b945; --s5: #a3a3f5;
  --fixed: #8497ad; --bound: #b594e0; } }
@media print { :root { color-scheme: light;
  --bg: #ffffff; --card: #f5f6f8; --ink: #1b1f24; --muted: #59636e; --grid: #d5dae0; --zebra: #f9fafb;
  --gain: #00628a; --loss: #a83a00; --withheld: #7d5a00; --none: #59636e; --mark: #fff3d6; --mark-edge: #c98a00;
  --s0: #c94f00; --s1: #0072b2; --s2: #008060; --s3: #a8438a; --s4: #8a6d00; --s5: #3f3fae;
  --fixed: #6f8196; --bound: #8a5fbf; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 24px 20px 48px; }
h1 { font-size: 1.45rem; line-height: 1.3; margin: 8px 0 12px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 40px 0 10px; padding-bottom: 4px; border-bottom: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 22px 0 6px; }
p, li { max-width: 78ch; overflow-wrap: anywhere; }
p { margin: 8px 0; }
nav { font-size: .9rem; margin: 14px 0 0; }
nav a { color: var(--s1); margin-right: 14px; display: inline-block; }
.badge { display: inline-block; font-size: .75rem; font-weight: 700; letter-spacing: .04em; padding: 2px 8px;
  margin: 0 6px 4px 0; border: 1px solid var(--muted); border-radius: 4px; color: var(--muted); }
.badge.warn { color: var(--ink); background: var(--mark); border-color: var(--mark-edge); }
.warning { background: var(--mark); border-left: 4px solid var(--mark-edge); padding: 8px 14px; margin: 8px 0;
  max-width: none; }
.small, figcaption, .legend { font-size: .85rem; color: var(--muted); }
.finding { background: var(--card); border-left: 4px solid var(--grid); padding: 10px 14px; max-width: none; }
.scroll { overflow-x: auto; margin: 10px 0; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; line-height: 1.35; }
.caption { font-size: .86rem; color: var(--muted); margin: 16px 0 0; max-width: none; }
.caption + .scroll { margin-top: 4px; }
th, td { padding: 4px 6px; text-align: right; vertical-align: top; border-bottom: 1px solid var(--grid); }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--muted); font-weight: 600; }
thead th.span { text-align: center; border-bottom: 1px solid var(--muted); }
th.left, td.left { text-align: left; }
th[scope=row] { text-align: left; white-space: nowrap; }
th[scope=row] { font-weight: 600; position: sticky; left: 0; background: var(--bg); }
th[scope=rowgroup] { text-align: left; background: var(--card); }
th[scope=rowgroup] span { position: sticky; left: 10px; }
td { white-space: nowrap; }
td.best { font-weight: 700; background: var(--card); }
tr.judged > * { background: var(--zebra); font-weight: 600; }
td.edge, th.edge { border-left: 2px solid var(--grid); }
.chip { font-weight: 600; white-space: nowrap; }
.chip.gain { color: var(--gain); } .chip.loss { color: var(--loss); }
.chip.withheld { color: var(--withheld); } .chip.none { color: var(--none); }
figure { margin: 18px 0 26px; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif !important; }
figcaption { max-width: 100ch; margin-top: 6px; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 2px 16px; font-size: .88rem;
  margin: 8px 0; }
dt { color: var(--muted); } dd { margin: 0; overflow-wrap: anywhere; }
code, pre { font: .84rem/1.5 ui-monospace, SFMono-Regular, Consolas, "Liberation Mono", monospace; }
pre { background: var(--card); padding: 10px 14px; white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 600px) { main { padding: 14px 12px 32px; } h1 { font-size: 1.2rem; }
  dl { grid-template-columns: minmax(0, 1fr); } dd { margin-bottom: 6px; } }
@media print { @page { size: A4 landscape; margin: 12mm; } body { font-size: 10pt; }
  main { max-width: none; padding: 0; } nav { display: none; } .scroll { overflow: visible; }
  table { font-size: 7.5pt; } th, td { padding: 2px 6px; } h2, h3, .caption { break-after: avoid; }
  figure, tr, tbody, .finding, .warning { break-inside: avoid; }
  figure svg { min-width: 0 !important; max-height: 145mm; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def page(title: str, body: str) -> str:
    """Return the whole document; its security policy lets nothing load and no script run."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def section(name: str, title: str, body: str) -> str:
    """Return a section with a heading and an anchor; the body is HTML."""
    return f'<section id="{name}">\n<h2>{escape(title)}</h2>\n{body}</section>\n'


def paragraph(text: str, cls: str = "", lead: str = "") -> str:
    """Return a paragraph that may start with a bold lead."""
    bold = f"<strong>{escape(lead)}</strong> " if lead else ""
    return f"<p{_cls(cls)}>{bold}{escape(text)}</p>\n"


def td(text: str, cls: str = "") -> str:
    """Return a cell."""
    return f"<td{_cls(cls)}>{escape(text)}</td>"


def th(text: str, cls: str = "", *, scope: str = "col", colspan: int = 1, rowspan: int = 1) -> str:
    """Return a header cell."""
    spans = f' colspan="{colspan}"' * (colspan > 1) + f' rowspan="{rowspan}"' * (rowspan > 1)
    text = f"<span>{escape(text)}</span>" if scope == "rowgroup" else escape(text)
    return f'<th scope="{scope}"{spans}{_cls(cls)}>{text}</th>'


def chip(text: str, cls: str, where: str = "") -> str:
    """Return a cell with a coloured word."""
    return f'<td class="{escape(f"left {where}".strip())}"><span class="chip {escape(cls)}">{escape(text)}</span></td>'


def table(caption: str, head: Sequence[str], groups: Iterable[Sequence[str]]) -> str:
    """Return a table that scrolls inside its own box.

    Args:
        caption: plain text.
        head: header rows, as HTML cells.
        groups: row groups; each row is its HTML cells, or a whole `<tr>`.
    """
    bodies = "".join(f"<tbody>\n{''.join(_row(row) for row in rows)}</tbody>\n" for rows in groups)
    label = f' tabindex="0" role="region" aria-label="{escape(caption)}"'
    # The caption stands outside the box, so that it wraps in a narrow window instead of scrolling away.
    return (
        f'{paragraph(caption, "caption")}<div class="scroll"{label}>\n<table>\n'
        f"<thead>\n{''.join(_row(row) for row in head)}</thead>\n{bodies}</table>\n</div>\n"
    )


def definitions(items: Iterable[tuple[str, object]]) -> str:
    """Return a definition list; what is None or empty is left out."""
    lines = (
        f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>\n" for name, value in items if value not in (None, "")
    )
    return f"<dl>\n{''.join(lines)}</dl>\n"


def _row(cells: str) -> str:
    return cells + "\n" if cells.startswith("<tr") else f"<tr>{cells}</tr>\n"


def _cls(cls: str) -> str:
    return f' class="{escape(cls)}"' if cls else ""
