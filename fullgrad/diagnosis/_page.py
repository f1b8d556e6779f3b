"""The page of a diagnosis: one file of HTML, without a network, light or dark."""

import math
from collections import defaultdict
from html import escape

import torch

import fullgrad
from fullgrad.diagnosis._diagnose import Diagnosis, Found, Layer

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --card: #f6f7f9; --text: #1c2127; --dim: #5b6570; --line: #d8dde3;
  --mark: #a3330f; --good: #1d6b3a; --bar: #2f6fb2; --code: #fff; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --card: #1e2329; --text: #e6e9ed; --dim: #9aa5b1; --line: #343c45;
  --mark: #ff9a76; --good: #7fd69b; --bar: #6aa9e9; --code: #12151a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1rem 3rem; max-width: 60rem; background: var(--back); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
h3 { font-size: 1rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .4rem 0; overflow-wrap: anywhere; } .dim { color: var(--dim); font-size: .88rem; } .good { color: var(--good); }
article { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--mark); border-radius: 6px;
  padding: .8rem 1rem; margin: .8rem 0; }
article td { overflow-wrap: anywhere; } .kind { color: var(--mark); font-weight: 600; }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 4px; padding: .5rem .7rem; margin: .3rem 0;
  white-space: pre-wrap; overflow-wrap: anywhere; }
code, pre { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: .88rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--dim); font-weight: 500; } .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar { display: inline-block; height: .6rem; background: var(--bar); border-radius: 2px; min-width: 1px; }
td.bars { width: 30%; min-width: 6rem; } details summary { cursor: pointer; color: var(--dim); }
"""
ALL = "the model itself"


def page(name: str, found: Diagnosis) -> str:
    """The HTML of a diagnosis; ``name`` says of which model."""
    count = len(found.findings)
    said = f"{count} finding{'s' * (count != 1)}" if count else '<span class="good">Nothing found</span>'
    cards = "".join(map(_card, found.findings))
    notes = "".join(f"<li>{escape(note)}</li>" for note in found.notes)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Diagnosis of {escape(name)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>Diagnosis of <code>{escape(name)}</code></h1>"
        f'<p class="dim">{said}. The loss was {found.loss:.4g}. fullgrad {escape(fullgrad.__version__)}, '
        f"torch {escape(torch.__version__)}.</p>"
        f"<main>{cards}"
        f"<h2>Layers</h2>{_layers(found)}"
        f"{f'<h2>Notes</h2><ul>{notes}</ul>' if notes else ''}</main></body></html>\n"
    )


def called(layer: str) -> str:
    """The name of a layer in a sentence."""
    return ALL if layer == "(all)" else layer


def _card(found: Found) -> str:
    others = [called(layer) for layer in found.layers if layer != found.layer]
    parts = [
        f'<article><h3><span class="kind">{escape(found.kind)}</span> in <code>{escape(called(found.layer))}</code></h3>',
        f"<p>{escape(found.what)}.</p>",
    ]
    if found.place:
        parts.append(f'<p class="dim">{escape(found.place)}</p>')
    if others:
        parts.append(f'<p class="dim">Also in {escape(", ".join(others))}.</p>')
    if found.fails:
        rows = "".join(f"<tr><td>{escape(ways)}</td><td>{escape(told)}</td></tr>" for told, ways in grouped(found.fails).items())
        parts.append(f'<div class="scroll"><table><tr><th>derivative</th><th>alone</th></tr>{rows}</table></div>')
    if found.line:
        if found.instead_of:
            parts.append(f'<p class="dim">In place of</p><pre>{escape(found.instead_of)}</pre><p class="dim">write</p>')
        else:
            parts.append(f'<p class="dim">{"Around the derivative" if found.line.startswith("with ") else "Write"}</p>')
        parts.append(f'<pre class="mend">{escape(found.line)}</pre>')
    else:
        parts.append('<p class="dim">No line of this package mends it.</p>' if not found.page else "")
    parts.append(f'<p class="dim">Documentation: {escape(found.page)}</p>' if found.page else "")
    return "".join(parts) + "</article>"


def grouped(fails: dict[str, str]) -> dict[str, str]:
    """The ways of differentiating, by what happens in them."""
    found: dict[str, list[str]] = defaultdict(list)
    for way, told in fails.items():
        found[told].append(way)
    return {told: "; ".join(ways) for told, ways in found.items()}


def _layers(found: Diagnosis) -> str:
    if not found.layers:
        return "<p>No layer returned a floating tensor.</p>"
    marked = {name for f in found.findings for name in (f.layer, *f.layers)}
    shown = [g for layer in found.layers if (g := _exponent(layer.gradient)) is not None]
    low, high = (min(shown), max(shown)) if shown else (0.0, 0.0)
    rows = "".join(_row(layer, layer.name.partition("[")[0] in marked, low, high) for layer in found.layers)
    return (
        '<p class="dim">Root mean squares of the output and of its gradient, in the order of execution; bars are logarithmic. '
        "Units, the elements of one sample, that pass no gradient from any sample, of those that one reaches.</p>"
        '<div class="scroll"><table><tr><th>layer</th><th>class</th>'
        '<th class="n">value</th><th class="n">gradient</th><th></th><th class="n">units without</th></tr>'
        f"{rows}</table></div>"
    )


def _row(layer: Layer, is_marked: bool, low: float, high: float) -> str:
    mark = ' class="kind"' if is_marked else ""
    exponent = _exponent(layer.gradient)
    width = 0.0 if exponent is None else 100.0 if high == low else 4 + 96 * (exponent - low) / (high - low)
    bar = f'<span class="bar" style="width:{width:.0f}%"></span>' if width else ""
    units = f"{len(layer.units_without):,} of {layer.units:,}" if layer.units else ""
    return (
        f"<tr><td{mark}>{escape(called(layer.name))}</td><td>{escape(layer.kind)}</td>"
        f'<td class="n">{_number(layer.value)}</td><td class="n">{_number(layer.gradient)}</td><td class="bars">{bar}</td>'
        f'<td class="n">{units}</td></tr>'
    )


def _exponent(scale: float | None) -> float | None:
    return math.log10(scale) if scale and math.isfinite(scale) else None


def _number(scale: float | None) -> str:
    return "none" if scale is None else f"{scale:.3g}"
