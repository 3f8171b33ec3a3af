"""The page: one HTML file with its data, scripts and styles, which loads nothing else.

The summary (verdict, tables, bars) needs no script. Commands whose result is not a plan write a
page of lines and tables.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from placewright.core.charges import amount_text
from placewright.core.quantities import counted, format_bytes, format_duration, value_text
from placewright.report.tables import ShownTable

# In this order: each file uses only files before it.
LIBRARIES = (
    "d3-dispatch",
    "d3-selection",
    "d3-drag",
    "d3-color",
    "d3-interpolate",
    "d3-timer",
    "d3-ease",
    "d3-transition",
    "d3-zoom",
    "uplot",
)
EVENT_MODEL = ("event_model", "event_queue", "simulate", "what_if")
VIEWS = (
    "format",
    "state",
    "zoom_canvas",
    "timeline_rows",
    "timeline_draw",
    "timeline",
    "graph_draw",
    "graph",
    "charts",
    "details",
    "moves",
    "main",
)
_LEVEL = 6  # of compression: level 9 takes ten times as long and saves a hundredth
_MOST_ROWS = 40
_LONG = 16  # most characters of a word, or of a number with its unit, that stay on one line
_CAUSE_TEXTS = {
    "input": "waits for an input",
    "channel": "waits for a channel",
    "transfer": "input on its way",
    "processor": "waits for its processor",
    "other": "held by the order",
    "no work left": "no work left",
}
# A page of lines and tables: no script.
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark"><title>{title}: Placewright</title>
<style>{styles}</style></head>
<body><header><h1>{title}</h1></header><main>
{body}
</main></body></html>
"""


def asset(name: str) -> str:
    """Text of a file in `assets`."""
    return (files("placewright.report") / "assets" / name).read_text(encoding="utf-8")


def page_text(document: dict[str, Any]) -> str:
    """The page of a document."""
    libraries = "\n".join(asset(f"vendor/{name}.min.js") for name in LIBRARIES)
    scripts = "\n".join(asset(f"{name}.js") for name in (*EVENT_MODEL, *VIEWS))
    licences = "\n".join(
        asset(f"vendor/{name}") for name in ("LICENSE-d3.txt", "LICENSE-uplot.txt")
    )
    return Template(asset("page.html")).substitute(
        **summary_parts(document),
        styles=asset("vendor/uplot.min.css") + asset("page.css"),
        libraries=_in_script(libraries),
        scripts=_in_script(scripts),
        licences=licences.replace("--", "- -"),
        data=compressed(document),
    )


def compressed(document: dict[str, Any]) -> str:
    """A document in the form of the page: JSON, compressed, in base 64."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), _LEVEL)).decode()


def _in_script(text: str) -> str:
    """Escape the end tag of a script inside a script."""
    return text.replace("</script", "<\\/script")


def summary_parts(document: dict[str, Any]) -> dict[str, str]:
    """Pieces of HTML by their names in the template."""
    plan, counts = document["plan"], document["counts"]
    return {
        "title": escape(str(document["title"])),
        "verdict_class": plan["verdict"]["answer"].replace(" ", "-"),
        "verdict": _prose(plan["verdict"]["sentence"]),
        "next_step": _next_step(plan["verdict"]["next"]),
        "facts": escape(
            f"{counted(counts['ops'], 'op')} in {counted(counts['units'], 'unit')}, "
            f"{counted(counts['edges'], 'edge')}; "
            f"{document['objective']} under '{document['execution_model']}'; placed by "
            f"{plan['search']}"
        ),
        "measured": _measured(plan, document["value_unit"])
        + "".join(f"<p>left out: {_prose(what)}</p>" for what in plan["left_out"]),
        "devices": _devices(document),
        "critical": _critical(document),
        "idle": _idle(document),
        "memory": _memory(document),
        "alternatives": _alternatives(plan, document["value_unit"]),
        "comparison": _comparison(document),
        "what_if_why_not": escape(document["what_if"].get("why_not", "")),
        "legend": _legend(document),
    }


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """An HTML table of text cells; numbers and their headings are right-aligned.

    If a longer text in a column begins with a number, the whole column is text.
    """
    cells = list(zip(*rows, strict=True)) or [()] * len(columns)
    numeric = [all(len(text) <= _LONG for text in column if _is_number(text)) for column in cells]
    over_numbers = [
        one and _are_numbers(column) for one, column in zip(numeric, cells, strict=True)
    ]
    head = "".join(
        f'<th scope="col"{_class(is_number=one)}>{escape(name)}</th>'
        for name, one in zip(columns, over_numbers, strict=True)
    )
    body = "".join("<tr>" + "".join(map(_cell, row, numeric)) + "</tr>" for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="table"><table>{title}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(text: str, is_numeric: bool) -> str:
    is_long = max(map(len, text.split()), default=0) > _LONG
    kind = _class(is_number=is_numeric and _is_number(text), is_long=is_long)
    return f"<td{kind}>{_prose(text)}</td>"


def _is_number(text: str) -> bool:
    """True if a text begins like a number."""
    return text[:1].isdigit() or text[:1] in tuple("+-−")


def _are_numbers(texts: Sequence[str]) -> bool:
    """True if most texts begin like numbers."""
    return 2 * sum(map(_is_number, texts)) > len(texts)


def _class(*, is_number: bool, is_long: bool = False) -> str:
    """The attribute of a cell: a number stays on its line, and a long word may be broken."""
    if is_number:
        return ' class="number"'
    return ' class="long"' if is_long else ""


def _prose(text: str) -> str:
    """Text with commands in backticks, as HTML; no option is broken at its hyphens."""
    shown = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"--[a-z][\w-]*", r'<span class="whole">\g<0></span>', shown)


def _next_step(text: str) -> str:
    return f"<strong>Next:</strong> {_prose(text)}" if text else ""


def _measured(plan: dict[str, Any], unit: str) -> str:
    rows = [["predicted", value_text(plan["value"], unit)]]
    measured = plan["measured"]
    if measured is None:
        command = plan["run"]
        rows.append(["measured", f"not yet: `{command}`" if command else "no"])
    else:
        runs = counted(measured["runs"], "run")
        text = f"{format_duration(measured['median'])} (median of {runs}"
        rows.append(["measured", f"{text}, quartiles {format_duration(measured['iqr'])} apart)"])
        if measured["error"] is not None:
            rows.append(["prediction error", f"{measured['error']:+.1%}"])
    if plan["no_choice"]:
        rows.append(["lower bound", plan["no_choice"]])
    elif plan["lower_bound"] > 0:
        by = f" by {plan['bound_method']}" if plan["bound_method"] else ""
        gap = "" if plan["gap"] is None else f", gap {plan['gap']:.1%}"
        name = f"lower bound of placements{plan['scope']}" if plan["scope"] else "lower bound"
        rows.append([name, f"{value_text(plan['lower_bound'], unit)}{by}{gap}"])
    rows += [[name, amount_text(amount, name)] for name, amount in plan["amounts"].items()]
    return html_table(["", "time" if unit not in ("J", "per run") else "value"], rows)


def _devices(document: dict[str, Any]) -> str:
    plan, unit = document["plan"], document["unit"]
    counts = [plan["device"].count(at) for at in range(len(document["devices"]))]
    busy = plan["idle"]["busy"] if plan["idle"] else plan["loads"]["seconds"]
    what = "busy" if plan["idle"] else plan["loads"]["what"]
    rows = [
        [
            device["name"],
            str(counts[at]),
            value_text(busy[at], unit),
            f"{busy[at] / plan['time']:.0%}" if plan["time"] > 0 else "-",
            format_bytes(plan["peaks"][device["name"]]),
            "no limit" if device["memory"] is None else format_bytes(device["memory"]),
        ]
        for at, device in enumerate(document["devices"])
    ]
    for processor in document["processors"]:
        seconds = sum(busy[at] for at in processor["devices"])
        share = f"{seconds / plan['time']:.0%}" if plan["time"] > 0 else "-"
        units = sum(counts[at] for at in processor["devices"])
        name = f"processor {processor['name']}"
        rows.append([name, str(units), value_text(seconds, unit), share, "-", "-"])
    return html_table(["device", "units", what, "of the time", "peak memory", "limit"], rows)


def _critical(document: dict[str, Any]) -> str:
    plan, unit = document["plan"], document["unit"]
    timeline = plan["timeline"]
    if timeline is None:
        return ""
    steps = [(is_hop, *_step(document, is_hop, index)) for is_hop, index in timeline["critical"]]
    computing = sum(seconds for is_hop, _, _, seconds in steps if not is_hop)
    total = max(plan["time"], 1e-300)
    moving = sum(seconds for is_hop, _, _, seconds in steps if is_hop)
    lines = (
        f"<p>{counted(len(steps), 'step')}: {computing / total:.0%} of the time computing, "
        f"{moving / total:.0%} in transfers. Whatever makes a step shorter makes all of it "
        "faster, until another path is the longest.</p>"
    )
    rows = [
        [what, where, value_text(seconds, unit), f"{seconds / total:.1%}"]
        for _, what, where, seconds in sorted(steps, key=lambda step: -step[3])[:_MOST_ROWS]
    ]
    more = "" if len(steps) <= _MOST_ROWS else f" (the longest {_MOST_ROWS})"
    columns = ["step", "on", "seconds" if unit == "s" else unit, "of the time"]
    return lines + (f"<details><summary>Steps{more}</summary>{html_table(columns, rows)}</details>")


def _step(document: dict[str, Any], is_hop: int, index: int) -> tuple[str, str, float]:
    """A step of the critical path, its device or way, and its seconds."""
    timeline, names = document["plan"]["timeline"], document["units"]["names"]
    if not is_hop:
        device = document["devices"][timeline["device"][index]]["name"]
        return names[index], device, timeline["end"][index] - timeline["start"][index]
    hops, ends = timeline["hops"], timeline["endpoints"]
    producer = document["graph"]["producer"][hops["tensor"][index]]
    what = "graph input" if producer < 0 else names[producer]
    way = f"{ends[hops['source'][index]]} → {ends[hops['target'][index]]}"
    return f"transfer of {what}", way, hops["end"][index] - hops["start"][index]


def _idle(document: dict[str, Any]) -> str:
    idle, plan, unit = document["plan"]["idle"], document["plan"], document["unit"]
    if idle is None:
        return ""
    total = max(plan["time"], 1e-300)
    bars, rows = [], []
    for at, device in enumerate(document["devices"]):
        parts = [("busy", idle["busy"][at]), *zip(idle["causes"], idle["idle"][at], strict=True)]
        pieces = "".join(
            f'<span class="part cause-{name.replace(" ", "-")}" style="width:{part / total:.4%}" '
            f'title="{escape(f"{_CAUSE_TEXTS.get(name, name)}: {value_text(part, unit)}")}"></span>'
            for name, part in parts
            if part > 0
        )
        bars.append(
            f'<div class="bar-row"><span class="bar-name">{escape(device["name"])}</span>'
            f'<span class="bar">{pieces}</span></div>'
        )
        rows.append([device["name"], *(f"{part / total:.1%}" for _, part in parts)])
    legend = "".join(
        f'<span class="key"><span class="swatch cause-{name.replace(" ", "-")}"></span>'
        f"{text}</span>"
        for name, text in (("busy", "computes"), *_CAUSE_TEXTS.items())
    )
    columns = ["device", "computes", *_CAUSE_TEXTS.values()]
    return f'<div class="bars">{"".join(bars)}</div><p>{legend}</p>' + html_table(columns, rows)


def _memory(document: dict[str, Any]) -> str:
    rows = []
    for device in document["devices"]:
        peak, limit = document["plan"]["peaks"][device["name"]], device["memory"]
        share = "-" if not limit else f"{peak / limit:.0%}"
        limit_text = "no limit" if limit is None else format_bytes(limit)
        rows.append([device["name"], format_bytes(peak), limit_text, share])
    counts = document["plan"]["memory_counts"]
    text = html_table(["device", counts, "limit", "of the limit"], rows)
    return text + _pools(document) if document["pools"] else text


def _pools(document: dict[str, Any]) -> str:
    """A row per memory pool that devices share: the sum of their peaks, and its limit."""
    rows = []
    for pool in document["pools"]:
        names = [document["devices"][at]["name"] for at in pool["devices"]]
        peaks = [document["plan"]["peaks"][name] for name in names]
        total = sum(peak * share for peak, share in zip(peaks, pool["shares"], strict=True))
        share = f"{total / pool['bytes']:.0%}" if pool["bytes"] else "-"
        row = [pool["name"], ", ".join(names), format_bytes(total), format_bytes(pool["bytes"])]
        rows.append([*row, share])
    columns = ["pool", "devices", "sum of their peaks", "limit", "of the limit"]
    return html_table(columns, rows)


def _alternatives(plan: dict[str, Any], unit: str) -> str:
    rows = []
    for row in plan["alternatives"]:
        measured = "-" if row["measured"] is None else format_duration(row["measured"])
        predicted = row["predicted"]
        ratio = "-" if predicted is None else f"{predicted / max(plan['value'], 1e-300):.2f}"
        text = value_text(predicted, unit)
        rows.append([row["name"], text, ratio, measured, row["note"]])
    return html_table(["way", "predicted", "to the plan", "measured", ""], rows)


def _comparison(document: dict[str, Any]) -> str:
    other = document["other"]
    if other is None:
        return ""
    lines = "".join(f"<p>{_prose(line)}</p>" for line in other["lines"])
    columns = ["units", "from", "to", "moved alone", "all but it"]
    moved = html_table(columns, other["moved"][:_MOST_ROWS])
    devices = html_table(other["device_columns"], other["device_rows"])
    return lines + devices + moved


def _legend(document: dict[str, Any]) -> str:
    return "".join(
        f'<span class="key"><span class="swatch device" data-device="{at}"></span>'
        f"{escape(device['name'])}</span>"
        for at, device in enumerate(document["devices"])
    )


def tables_page(title: str, shown: Sequence[str | ShownTable]) -> str:
    """A page of printed lines and tables, in their order; the first line is the verdict."""
    parts, has_verdict = [], False
    for item in shown:
        if isinstance(item, ShownTable):
            parts.append(html_table(item.columns, item.rows, item.title))
        elif item and not has_verdict:
            parts.append(f'<p class="verdict">{_prose(item)}</p>')
            has_verdict = True
        elif item:
            parts.append(f"<p>{_prose(item)}</p>")
    return _PAGE.format(title=escape(title), styles=asset("page.css"), body="\n".join(parts))
