"""The parts of the site that are made from the package: the operators of a family with their pictures, the lists of names, of
checks and of commands, and the table of what was proved.
"""

import argparse
import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import names
import pictures
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

import fullgrad
from fullgrad.cli._arguments import commands, parser
from fullgrad.nn._function_module import FunctionModule
from fullgrad.testing import CHECKS, GROUPS, UPSTREAM_ISSUES

LOGGER = logging.getLogger(__name__)
_SECTION = re.compile(r"^(Args|Returns|Raises|Example|Source):")
# A literal or a role, or text in one backtick, which is neither.
_BACKTICKS = re.compile(r"(``.*?``|:\w+:`[^`]*`)|`([^`<]+)`(?!_)", re.DOTALL)


class FamilyDirective(SphinxDirective):
    """Every public name of modules of fullgrad, functions first: see `names`."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"public": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """Autodoc's directives for the names."""
        family = names.Family(self.env.docname, tuple(self.arguments[0].split()), self.options.get("public"))
        paths = names.listed(family)
        if not paths:
            LOGGER.warning("no public name lives in %s", self.arguments[0], location=self.get_location())
        text, operators = [], [path for path in paths if names.is_operator(path)]
        modules = [path for path in paths if _is_of_function(names.PUBLIC[path])]
        for path in paths:
            if names.is_alias(path) or path in (*operators, *modules):
                continue
            kind = "autoclass" if inspect.isclass(names.PUBLIC[path]) else "autofunction"
            text += [f".. {kind}:: {path}", *["   :members:"] * (kind == "autoclass"), ""]
            for alias in names.aliases(path):
                module, _, name = alias.rpartition(".")
                text += [f".. py:data:: {name}", f"   :module: {module}", f"   :value: {path}", ""]
                text += [f"   Another name of :func:`{path}`.", ""]
        if modules:
            text += _table([_module(path) for path in modules], (), ("class", "arguments"), "modules")
        if operators:
            text += [".. rubric:: Operator classes", ""]
            text += ["The functions call these classes, which take the same arguments, unchecked.", ""]
            text += [line for path in operators for line in (f".. autoclass:: {path}", "")]
        return self.parse_text_to_nodes("\n".join(text))


class NamesDirective(SphinxDirective):
    """Every public name of a package with its first sentence, by the page that documents it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """A table for each page."""
        among, text = names.families(), []
        pages: dict[str, list[str]] = {}
        for family in among:
            pages.setdefault(family.page, []).extend(names.listed(family, among))
        for page, paths in pages.items():
            found = [path for path in paths if path.rpartition(".")[0] == self.arguments[0] and not names.is_operator(path)]
            if found:
                rows = [(f":py:obj:`{path.removeprefix('fullgrad.')} <{path}>`", _summary(path)) for path in found]
                text += [f":doc:`/{page}`", "", *_table(rows, (30, 70), name="names")]
        return self.parse_text_to_nodes("\n".join(text))


class ChecksDirective(SphinxDirective):
    """The checks of the kit, by group."""

    def run(self) -> list[nodes.Node]:
        """A table."""
        rows = []
        for group, members in GROUPS.items():
            for check in members:
                proves = _marked(" ".join((inspect.getdoc(CHECKS[check]) or "").split("\n\n")[0].split()))
                issue = (
                    f" (`#{UPSTREAM_ISSUES[check].rpartition('/')[2]} <{UPSTREAM_ISSUES[check]}>`__)"
                    if check in UPSTREAM_ISSUES
                    else ""
                )
                rows.append((group if check == members[0] else "", f"``{check}``", proves + issue))
        return self.parse_text_to_nodes("\n".join(_table(rows, (12, 24, 64), ("group", "check", "what it proves"))))


class CommandsDirective(SphinxDirective):
    """What ``--help`` says of every command."""

    def run(self) -> list[nodes.Node]:
        """A literal block for each."""
        text = []
        for name, command in commands(parser()).items():
            command.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=88)
            text += [f".. rubric:: {name}", "", ".. code-block:: text", ""]
            text += [*[f"   {line}" for line in command.format_help().splitlines()], ""]
        return self.parse_text_to_nodes("\n".join(text))


class ProvedDirective(SphinxDirective):
    """The table of what ``docs/prove.py`` found: operators down, groups of checks across."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Where and when, the table, and the reasons of what was not applicable."""
        filename = self.env.relfn2path(self.arguments[0])[1]
        self.env.note_dependency(filename)
        found = json.loads(Path(filename).read_text())
        groups = {group: checks for group, checks in found["groups"].items() if checks}
        total, rows, reasons = {"passed": 0, "failed": 0, "not applicable": 0}, [], {}
        for case, rest in found["cases"].items():
            cells = []
            for checks in groups.values():
                states = [rest[check]["status"] if check in rest else "passed" for check in checks]
                for state in states:
                    total[state] += 1
                applicable = len(states) - states.count("not applicable")
                cells.append(f"{states.count('passed')}/{applicable}" if applicable else r"\-")
            rows.append((case, *cells))
            for check, result in rest.items():
                reasons.setdefault((check, result["status"], result["message"]), []).append(case)
        counts = ", ".join(f"{number} {state}" for state, number in total.items())
        text = [f"{len(rows)} cases, {sum(map(len, groups.values()))} of {len(CHECKS)} checks: {counts}; on"]
        text += [f"fullgrad {found['fullgrad']}, torch {found['torch']}, python {found['python']}, {found['devices']},"]
        text += [f"{found['date']}.", "", *_table(rows, (), ("operator", *groups), "proved")]
        told = []
        for (check, state, message), cases in sorted(reasons.items()):
            who = ", ".join(cases) if len(cases) <= 4 else f"{len(cases)} of {len(rows)}"
            told.append((f"``{check}``", _marked(f"failed: {message}" if state == "failed" else message), who))
        if told:
            text += ["Checks that are not applicable or failed, and why:", ""]
            text += _table(told, (30, 45, 25), ("check", "what it said", "operators"))
        return self.parse_text_to_nodes("\n".join(text))


def _table(rows: Iterable[tuple[str, ...]], widths: tuple[int, ...], header: tuple[str, ...] = (), name: str = "") -> list[str]:
    """The lines of a table."""
    lines = [".. list-table::"]
    lines += ["   :header-rows: 1"] * bool(header)
    lines += [f"   :widths: {' '.join(map(str, widths))}"] * bool(widths)
    lines += [f"   :class: {name}"] * bool(name)
    for row in (header, *rows) if header else rows:
        lines += ["", f"   * - {row[0]}", *[f"     - {cell}" for cell in row[1:]]]
    return [*lines, ""]


def _is_of_function(found: Any) -> bool:
    """Whether it is a module that is made of a function, which describes the arguments."""
    return inspect.isclass(found) and issubclass(found, FunctionModule) and found is not FunctionModule


def _module(path: str) -> tuple[str, str]:
    """The row of a module that is made of a function, to which it links: its arguments but for ``learnable``, which all have."""
    found, (module, _, name) = names.PUBLIC[path], path.rpartition(".")
    function = re.search(r":func:`([\w.]+)`", inspect.getdoc(found) or "")
    entry = [f".. py:class:: {name}", f"          :module: {module}", "          :no-typesetting:", ""]
    entry.append(f"       :func:`{name} <{function[1]}>`" if function else f"       ``{name}``")
    return "\n".join(entry), ", ".join([n for n in inspect.signature(found).parameters if n != "learnable"])


def _summary(path: str) -> str:
    """The first sentence, whose references to neighbors become absolute."""
    package = path.rpartition(".")[0]

    def absolute(found: re.Match[str]) -> str:
        target = f"{package}.{found[1]}"
        return f":func:`{found[1]} <{target}>`" if target in names.PUBLIC else found[0]

    return re.sub(r":func:`(\w+)`", absolute, names.summary(path))


def _marked(text: str) -> str:
    """Plain text, in which single backticks mean code, for reStructuredText."""
    return _literal(text).replace("*", r"\*").replace("|", r"\|")


def _literal(text: str) -> str:
    """Single backticks made double."""
    return _BACKTICKS.sub(lambda found: found[1] or f"``{found[2]}``", text)


def complete_docstring(app: Sphinx, what: str, path: str, found: Any, options: Any, lines: list[str]) -> None:
    """The pictures of an operator above its arguments, its source in one paragraph; for a class of it, what to call."""
    if path in names.PUBLIC and names.is_operator(path):
        name, parameters = path.rpartition(".")[2], ", ".join(inspect.signature(found.apply).parameters)
        lines[:] = [f"{names.summary(path)}: ``{name}.apply({parameters})``.", ""]
        return
    lines[:] = _literal("\n".join(lines)).split("\n")
    for i, line in enumerate(lines):
        if line.startswith("Source:"):
            source = " ".join([line.removeprefix("Source:"), *lines[i + 1 :]])
            lines[i:] = [f"*Source*: {' '.join(source.split())}", ""]
            break
    _align(lines)
    if path not in names.PUBLIC:
        return
    position = next((i for i, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    for label, picture in pictures.pictures(path).items():
        drawn = ", ".join(picture.titles) + f" of {path}" + f" with {label}" * bool(label)
        plot = [".. plot::", f"   :alt: {drawn}", *[f"   :caption: {picture.caption}"] * bool(picture.caption), ""]
        plot += ["   import pictures", f"   pictures.draw({path!r}, {label!r})", ""]
        lines[position:position] = plot
        position += len(plot)


def _align(lines: list[str]) -> None:
    """Formulas of several lines, which Sphinx would set to the right, begin at the left."""
    within = False
    for i, line in enumerate(lines):
        within = line.startswith(".. math::") or (within and (not line or line.startswith(" ")))
        if within and lines[i - 1].endswith("\\\\"):
            lines[i - 1 : i + 1] = [f"    & {part.strip().removeprefix('& ')}" for part in lines[i - 1 : i + 1]]


def hide_signature(app: Sphinx, what: str, path: str, found: Any, options: Any, signature: str, returned: str) -> Any:
    """Classes of operators are not instantiated, so they have none."""
    return ("", "") if inspect.isclass(found) and issubclass(found, fullgrad.Function) else None


def trim_examples(app: Sphinx, page: str, source: list[str]) -> None:
    """Takes the empty line away that ends an example for doctest."""
    source[0] = re.sub(r"\n\n```\n", "\n```\n", source[0])


def check_names(app: Sphinx, env: Any) -> None:
    """Every public name has an entry. That none has two is Sphinx's own check."""
    documented = {name for name, *_ in env.get_domain("py").get_objects()}
    for path in names.PUBLIC:
        if path not in documented:
            LOGGER.warning("%s is public, and no page documents it", path)


def spread(app: Sphinx, env: Any, pages: list[str]) -> None:
    """Orders the pages so that the long ones, which are of one folder, are not all read by one of the processes of ``-j``."""
    pages[:] = [page for start in range(4) for page in pages[start::4]]


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx's hook."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_directive("family", FamilyDirective)
    app.add_directive("names", NamesDirective)
    app.add_directive("checks", ChecksDirective)
    app.add_directive("commands", CommandsDirective)
    app.add_directive("proved", ProvedDirective)
    app.connect("autodoc-process-docstring", complete_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-signature", hide_signature)
    app.connect("source-read", trim_examples)
    app.connect("env-before-read-docs", spread)
    app.connect("env-check-consistency", check_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
