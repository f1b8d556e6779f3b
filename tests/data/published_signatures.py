"""The parameters of the published functions that fullgrad replaces: ``python tests/data/published_signatures.py``.

It reads the source of the packages that are installed, runs none of it, and writes published_signatures.json beside itself; the
entries of packages that are not installed stay. A parameter maps to the source text of its default, or to null.
"""

import ast
import importlib.metadata
import importlib.util
import json
from pathlib import Path

FILE = Path(__file__).with_suffix(".json")
# Of each package the modules, and the functions that fullgrad has another name for, or none.
MODULES = {
    "softtorch": ("functions.py", "straight_through.py"),
    "spikingjelly": ("activation_based/quantize.py",),
    "shok": ("utils/functions/pass_round.py", "utils/functions/scale_grad.py", "utils/functions/soft_round.py"),
    "unit_scaling": ("scale.py", "transforms/_track_scales.py", "utils.py"),
}
ELSEWHERE = {
    "spikingjelly": ("multi_level_spike_count",),  # spikes.spike_count
    "unit_scaling": ("analyse_module", "prune_non_float_tensors", "prune_same_scale_tensors", "prune_selected_nodes"),
}


def installed() -> dict[str, dict]:
    """The entries of the packages that are installed here."""
    found = {}
    for package in MODULES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            version = importlib.metadata.version(package.replace("_", "-"))
            found[package] = {"version": version, **_signatures(package, Path(spec.origin).parent)}
    return found


def _signatures(package: str, folder: Path) -> dict[str, dict]:
    """The functions, which take keywords, and the ``torch.autograd.Function`` classes, which are called by position."""
    functions, operators = {}, {}
    for module in MODULES[package]:
        for node in ast.parse((folder / module).read_text()).body:
            if isinstance(node, ast.FunctionDef):
                functions[node.name] = _parameters(node)
            elif isinstance(node, ast.ClassDef) and any("Function" in ast.unparse(base) for base in node.bases):
                forward = next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "forward")
                operators[node.name] = [*_parameters(forward)][1:]
    for name in functions:  # a straight-through version takes what its function does
        if name.endswith("_st") and not name.startswith("_"):
            functions[name] = functions[name.removesuffix("_st")]
    return {
        "functions": {n: p for n, p in sorted(functions.items()) if n[0] != "_" and n not in ELSEWHERE.get(package, ())},
        "operators": {n: p for n, p in sorted(operators.items()) if package == "shok"},
    }


def _parameters(node: ast.FunctionDef) -> dict[str, str | None]:
    names = [a.arg for a in node.args.args]
    defaults = [None] * (len(names) - len(node.args.defaults)) + [ast.unparse(d) for d in node.args.defaults]
    return dict(zip(names, defaults, strict=True))


if __name__ == "__main__":
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    FILE.write_text(json.dumps({**known, **installed()}, indent=1, sort_keys=False) + "\n")
