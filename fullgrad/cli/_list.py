"""``python -m fullgrad list``: families and operators, one line each."""

import argparse
import inspect
import operator
import re

import fullgrad

# ``code`` and :role:`text`.
_MARKUP = r"(?::\w+:)?`+([^`]*)`+"


def run(options: argparse.Namespace) -> int:
    """Print the first line of each public function's docstring, by family."""
    families: dict[str, list[str]] = {}
    packages = {name: getattr(fullgrad, name) for name in fullgrad.__all__ if inspect.ismodule(getattr(fullgrad, name))}
    for name in (*fullgrad.__all__, *[f"{within}.{name}" for within, found in packages.items() for name in found.__all__]):
        function = operator.attrgetter(name)(fullgrad)
        if inspect.isfunction(function) or (inspect.isclass(function) and name.islower()):  # a context is a class
            families.setdefault(inspect.unwrap(function).__module__.split(".")[1], []).append(name)
    width = max(len(name) for names in families.values() for name in names)
    for family, names in families.items():
        print(family)
        for name in names:
            summary = (inspect.getdoc(operator.attrgetter(name)(fullgrad)) or "").splitlines()[0]
            plain = re.sub(_MARKUP, r"\1", summary)
            print(f"  {name:<{width}}  {plain}")
    return 0
