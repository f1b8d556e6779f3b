"""The site's lists agree with the package. CI's last step checks that the pages build without a warning."""

import importlib.util
import inspect
import json
import pkgutil
import re
from pathlib import Path

import pytest

from fullgrad._suite.cases import CASES
from fullgrad.testing import CHECKS, GROUPS

DOCS = Path(__file__).parents[2] / "docs"


def load(path):
    """A module of the site."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


names = load(DOCS / "_ext" / "names.py")
FUNCTIONS = [path for path, found in names.PUBLIC.items() if inspect.isfunction(found) and not names.is_alias(path)]


def test_every_public_name_is_documented_once():
    """Each public name is documented on one page, and no page documents a name that is not public."""
    assert {path: pages for path, pages in names.pages().items() if len(pages) != 1} == {}
    assert {*names.pages()} == {*names.PUBLIC}


def test_a_name_is_found_missing_and_found_twice(monkeypatch):
    """The check above fails for a family that lists nothing, and for a name that a page documents by itself."""
    rounding = next(family for family in names.families() if family.modules == ("fullgrad.rounding",))
    others = [family for family in names.families() if family != rounding]
    monkeypatch.setattr(names, "families", lambda: others)
    assert names.pages()["fullgrad.round"] == []
    monkeypatch.setattr(names, "families", lambda: [*others, rounding, names.Family("twice", ("fullgrad.rounding",), None)])
    assert names.pages()["fullgrad.round"] == ["families/rounding", "twice"]


def test_every_page_is_in_the_contents():
    """The index lists every page but itself, and no page that does not exist; the build makes the examples' page."""
    listed = re.findall(r"^((?:cookbook/|families/|guides/)?[\w-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in names.sources()}
    assert {*listed} == pages - {"index"}
    assert len(listed) == len({*listed})


@pytest.mark.parametrize("path", FUNCTIONS)
def test_every_parameter_is_described(path):
    """``Args:`` has the parameters of the signature, in their order."""
    section = re.search(r"\nArgs:\n((?:    .*\n|\n)*)", (inspect.getdoc(names.PUBLIC[path]) or "") + "\n")
    described = re.findall(r"^    (\w+): ", section[1], re.MULTILINE) if section else []
    assert described == [*inspect.signature(names.PUBLIC[path]).parameters]


@pytest.mark.parametrize("project", ["torch", "python"])
def test_names_of_others_exist(project):
    """Every name in the lists of torch and Python exists."""
    for line in (DOCS / f"{project}-names.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            assert pkgutil.resolve_name(line.split()[0]) is not None


# Words that people search for, of papers, packages and other frameworks.
SOUGHT = ["JumpReLU", "BitNet", "router", "REINFORCE", "Gumbel", "NaN", "perturbed", "SPO", "JAX", "checkpoint", "kernel", "DEQ"]
SOUGHT += ["ghost clipping", "per-sample norm", "gradient noise scale", "Fisher", "EWC", "influence"]
SOUGHT += ["jet", "Taylor", "Laplacian", "PINN", "divergence", "Hutchinson", "MeanFlow", "Sophia", "sparse Jacobian"]


@pytest.mark.short
@pytest.mark.parametrize("word", SOUGHT)
def test_words_that_people_search_for_are_on_the_page_of_tasks(word):
    """Each word stands in a row that names an operator."""
    rows = [line for line in (DOCS / "which.md").read_text().splitlines() if line.startswith("|") and word in line]
    assert any("`" in row for row in rows)


def test_tables_of_operators_link_to_them():
    """Every row of the tables of `which.md` has a link to an operator or a page, in the column of operators."""
    package, column, without, links = "", None, [], 0
    for line in (DOCS / "which.md").read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if line.startswith("#"):
            package = names.PACKAGES.get(line.strip("# "), "")
        elif not cells:
            column = None
        elif column is None:
            column = next((i for i, cell in enumerate(cells) if names.OPERATORS.match(cell)), len(cells))
        elif column < len(cells) and not cells[column].startswith("---"):
            found = [path for code in re.findall(r"`([^`]+)`", cells[column]) for _, path in names.linked(code, package) if path]
            links += len(found)
            if not found and "](" not in cells[column]:
                without.append(cells[column])
    assert links > 200
    assert without == []


def test_a_name_in_code_is_found():
    """Names of calls, arguments and packages; none is a keyword or a name of torch."""
    words = names.linked("k_bit_quantize(clamp(x, 0.0, 1.0), k=torch.round(x))")
    assert [path for _, path in words if path] == ["fullgrad.k_bit_quantize", "fullgrad.clamp"]
    assert "".join(word for word, _ in words) == "k_bit_quantize(clamp(x, 0.0, 1.0), k=torch.round(x))"
    arguments = names.linked("pact(x, scale, codes)", "fullgrad.quantizers")  # not `fullgrad.scale`
    assert [path for _, path in arguments if path] == ["fullgrad.quantizers.pact"]
    assert names.linked("sigmoid(v)", "fullgrad.spikes")[0] == ("sigmoid", "fullgrad.spikes.sigmoid")
    assert names.linked("fullgrad.round(x)") == [("fullgrad.round", "fullgrad.round"), ("(x)", None)]


@pytest.mark.short
@pytest.mark.parametrize(
    ("text", "style", "expected"),
    [
        ('<script defer src="https://a.org/x.js"></script>', False, ["https://a.org/x.js"]),
        ('<link rel="stylesheet" href="//a.org/x.css">', False, ["//a.org/x.css"]),
        ("@font-face { src: url('https://a.org/x.woff') }", True, ["https://a.org/x.woff"]),
        ('@import "https://a.org/x.css";', True, ["https://a.org/x.css"]),
        ('<a href="https://a.org">a</a><img src="x.svg"><link rel="canonical" href="https://b.org">', False, []),
        ("a { background: url(x.svg) }", True, []),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(text, style, expected):
    """Scripts, stylesheets, pictures and fonts, but no link that a reader follows; the build warns about each."""
    assert load(DOCS / "_ext" / "loads.py").external(text, style) == expected


def test_the_table_of_the_proof_is_of_cases_and_checks_that_exist():
    """Renamed or removed cases leave the table when ``python docs/prove.py`` runs again; new ones may be missing until then."""
    found = json.loads((DOCS / "data" / "check.json").read_text())
    assert {name.partition(" on ")[0] for name in found["cases"]} <= {case.name for case in CASES}
    assert {*found["groups"]} <= {*GROUPS}
    assert {check for checks in found["groups"].values() for check in checks} <= {*CHECKS}
    failed = [(case, check) for case, rest in found["cases"].items() for check, r in rest.items() if r["status"] == "failed"]
    assert failed == []


def test_the_table_of_versions_is_that_of_its_numbers(tmp_path, monkeypatch, capsys):
    """The table has a row for each environment that ran or is not available; all rows can be asked for."""
    versions = load(DOCS / "versions.py")
    kept, known = json.loads(versions.DATA.read_text()), versions.known_rows()
    committed = versions.TABLE.read_text()
    for name in ("DATA", "TABLE"):
        monkeypatch.setattr(versions, name, tmp_path / name)
    versions.write(kept)
    assert (tmp_path / "TABLE").read_text() == committed
    versions.write({**kept, "torch2.11-python3.11-fallback": {"unavailable": "no such version", "date": "2026-01-01"}})
    assert "| 2.11 | 3.11 | fallback | none: no such version |" in (tmp_path / "TABLE").read_text()
    assert {*kept} <= {*known}
    monkeypatch.setattr("sys.argv", ["versions.py", "--list"])
    assert versions.main() == 0
    assert capsys.readouterr().out.split() == [*known]


def test_every_thread_of_the_tests_is_in_the_proof():
    """The page on what torch loses names each public issue in `tests/test_upstream_issues.py`."""
    held, told = (
        {*re.findall(r"pytorch/issues/(\d+)", page.read_text())}
        for page in (DOCS.parent / "tests" / "test_upstream_issues.py", DOCS / "proof.md")
    )
    assert held <= told
