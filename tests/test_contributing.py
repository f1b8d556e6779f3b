"""The three changes of CONTRIBUTING.md, applied as written to a copy of the package, are all that an operator takes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SECTIONS = {
    name: re.findall(r"^```python\n# (in )?(\S+)\n(.*?)^```", body, re.DOTALL | re.MULTILINE)
    for name, body in re.findall(
        r"^### `(\w+)`.*?\n(.*?)(?=^##)", ROOT.joinpath("CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE
    )
}
# The section on faster versions: the file of the entry, its imports, and the entry.
ENTRY = re.search(
    r"^## Adding a faster version.*?^```python\n# in (\S+)\n((?:from [^\n]*\n)*)(.*?)^```",
    ROOT.joinpath("CONTRIBUTING.md").read_text(),
    re.DOTALL | re.MULTILINE,
)
# What guards the registry, beside every check of the kit on the new cases.
GUARDS = (
    "tests/test_public.py::test_every_public_operator_has_a_case",
    "tests/test_public.py::test_names_of_cases_are_unique",
    "tests/test_compiled.py::test_the_chains_have_every_elementwise_operator",
    "tests/docs/test_docs.py::test_every_public_name_is_documented_once",
)


def test_each_section_shows_three_changes():
    """Each section has a new file, an edit of the family's ``__init__``, and an edit of its cases."""
    assert "round_even" in SECTIONS
    for blocks in SECTIONS.values():
        assert [edit for edit, _, _ in blocks] == ["", "in ", "in "]


def edited(text: str, change: str) -> str:
    """A module with the lines of a change: entries at the top of a list, the other lines before the first import."""
    for name, items in re.findall(r"^(\w+) = \[\n(.*?)^\]\n", change, re.DOTALL | re.MULTILINE):
        text, found = re.subn(rf"^({name}\b.* = \[\n)", lambda match, items=items: match[1] + items, text, flags=re.MULTILINE)
        assert found == 1
    others = re.sub(r"^(\w+) = \[\n(.*?)^\]\n", "", change, flags=re.DOTALL | re.MULTILINE).strip()
    at = re.search(r"^(from|import) ", text, re.MULTILINE).start()
    return text[:at] + others + "\n" * bool(others) + text[at:]


def touched(name: str, folder: Path, touches: int = 3) -> Path:
    """A copy of the package and its tests with the first changes of a section."""
    for part in ("fullgrad", "tests", "docs"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    for file in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / file, folder)
    for edit, path, code in SECTIONS[name][:touches]:
        file = folder / path
        assert file.exists() == bool(edit)
        file.write_text(edited(file.read_text(), code) if edit else code)
    return folder


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of the copy in their own process."""
    environment = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "--everyday", "-n", "0", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False
    )


def test_every_linter_is_the_same():
    """pre-commit has the ruff that the constraints give to CI and contributors."""
    pinned = re.search(r"^ruff==(.*)$", ROOT.joinpath("constraints.txt").read_text(), re.MULTILINE)[1]
    assert f"rev: v{pinned} " in ROOT.joinpath(".pre-commit-config.yaml").read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SECTIONS)
def test_three_changes_are_all_that_an_operator_needs(name, tmp_path):
    """Every test of the new operator passes in the copy, its own example included; compiled code is left to the suite."""
    folder = touched(name, tmp_path)
    tests = ("test_public.py", "test_compiled.py", "test_transforms.py", "docs/test_docs.py", "dispatch/test_shortcuts.py")
    guards = " or ".join(guard.partition("::")[2] for guard in GUARDS)
    chosen = f"({name} and not compile_ and not keeps) or {name}.{name} or {guards}"
    file = SECTIONS[name][0][1]
    done = pytest_in(folder, "-vv", "-k", chosen, file, *(f"tests/{test}" for test in tests))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    for passed in (*GUARDS, f"{file}::fullgrad.", f"[{name}-func_hessian", f"test_public_function_is_documented[{name}]"):
        assert any(passed in line and "PASSED" in line for line in done.stdout.splitlines()), passed


@pytest.mark.long
def test_an_operator_without_its_case_is_missed(tmp_path):
    """Without its case an operator is missed."""
    folder = touched("round_even", tmp_path, touches=2)
    done = pytest_in(folder, GUARDS[0])
    assert done.returncode == 1
    assert "round_even" in done.stdout


@pytest.mark.exhaustive
def test_an_entry_is_added_in_one_place_and_deleted_there(tmp_path):
    """The tests of faster versions find the entry as written, see one that is wrong, and pass when it is deleted again."""
    folder, (path, imports, entry) = touched("round_even", tmp_path, touches=0), ENTRY.groups()
    file = folder / path
    before = file.read_text()
    code = "import fullgrad.spikes; from fullgrad._core.fast import ENTRIES; print([n for n in ENTRIES if '_s2nn' in n])"
    wrong = entry.replace("return v *", "return 1.001 * v *")
    assert wrong != entry
    for added, known, passes in ((entry, True, True), (wrong, True, False), ("", False, True)):
        file.write_text(before.replace("\nimport torch\n", f"\nimport torch\n{imports}") + added if added else before)
        found = subprocess.run([sys.executable, "-c", code], cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)},
                               capture_output=True, text=True, check=True)  # fmt: skip
        assert ("_s2nn" in found.stdout) == known
        done = pytest_in(folder, "tests/test_fast.py", "-k", "s2nn or reached" if entry is added else "s2nn")
        assert (done.returncode == 0) == passes, done.stdout[-3000:]
        assert passes or "spikes._s2nn" in done.stdout
