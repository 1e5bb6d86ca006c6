"""One HTML page with every reproduced table, its figure, command, versions and time."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from unmask.io import atomic_text

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: 0.25rem 0.8rem; border-bottom: 1px solid #e6e9ed; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; } code { background: #f3f5f7; padding: 0.1rem 0.3rem; } .note { color: #727b85; }
@media (prefers-color-scheme: dark) {
  body { background: #15181c; color: #e6e9ed; } code { background: #252a31; } th, td { border-color: #333a42; }
}
"""


def write_report(folder: Path, names: Sequence[str]) -> Path:
    """Write report.html from the tables in a workspace's folder."""
    sections = [_section(folder / name) for name in names]
    title = "unmask: reproduced tables"
    contents = " ".join(f'<a href="#{name}">{name}</a>' for name in names)
    page = (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style>\n<h1>{title}</h1>\n'
        f"<nav>{contents}</nav>\n{''.join(sections)}</html>\n"
    )
    path = folder / "report.html"
    atomic_text(path, page)
    return path


def _section(folder: Path) -> str:
    report: dict[str, Any] = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    header, *lines = report["text"]
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>\n" for line in lines)
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in report["notes"])
    picture = base64.b64encode((folder / "figure.png").read_bytes()).decode()
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return (
        f'<h2 id="{folder.name}">{folder.name}: {escape(report["title"])}</h2>\n'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table>\n"
        f'{notes}<img alt="{escape(report["title"])}" src="data:image/png;base64,{picture}">\n'
        f'<p><code>{escape(report["command"])}</code></p>\n<p class="note">Data: {escape(report["protocol"])}. '
        f"Training and measurements took {sum(report['seconds_by_part'].values()):.0f} s. {escape(versions)}.</p>\n"
    )
