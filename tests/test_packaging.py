"""What an index shows of the package, and what `pip install` of the documented commands finds in pyproject.toml."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
tomllib = pytest.importorskip("tomllib")  # Python 3.11
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = "https://github.com/fullgrad/fullgrad"


def test_links_of_the_long_description_are_absolute():
    """The README of an index links to files of its version; each is in the repository, and the picture is one that shows."""
    text = (ROOT / "README.md").read_text()
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", text)
    assert len(links) > 20
    assert [link for _, link in links if not link.startswith("https://")] == []
    raw = "https://raw.githubusercontent.com/fullgrad/fullgrad"
    own = [(raw if picture else f"{REPOSITORY}/blob", link) for picture, link in links if "/v$HFPR_VERSION/" in link]
    assert any(start == raw for start, _ in own)
    for start, link in own:
        before, _, path = link.partition("/v$HFPR_VERSION/")
        assert before == start
        assert (ROOT / path.partition("#")[0]).exists(), path


def test_the_index_has_links_and_versions():
    """The places of the project, and the versions of Python from the oldest supported."""
    urls = PROJECT["project"]["urls"]
    assert {"Documentation", "Source", "Changelog", "Issues"} <= urls.keys()
    assert all(url.startswith(REPOSITORY) for url in urls.values())
    python = "Programming Language :: Python :: "
    minors = [c.removeprefix(python) for c in PROJECT["project"]["classifiers"] if re.fullmatch(python + r"3\.\d+", c)]
    assert minors[0] == PROJECT["project"]["requires-python"].removeprefix(">=")
    assert minors == [f"3.{n}" for n in range(10, 10 + len(minors))]
    assert f"3.{sys.version_info.minor}" in minors


def test_extras_and_groups_of_the_commands_exist():
    """Every ``.[EXTRAS]`` and ``--group NAME`` in a command that the project documents or runs."""
    files = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.py"), ROOT / ".ci" / "run"]
    files += [ROOT / ".ci" / "packages", *(ROOT / ".github" / "workflows").glob("*.yml")]
    text = "\n".join(file.read_text() for file in files if file.exists() and "_build" not in file.parts)
    extras = {name for found in re.findall(r'"\.\[([a-z,]+)\]"', text) for name in found.split(",")}
    assert {"test", "dev"} <= extras <= PROJECT["project"]["optional-dependencies"].keys()
    assert {*re.findall(r"--group (\w+)", text)} == PROJECT["dependency-groups"].keys()


def test_ci_tests_the_oldest_torch_that_is_supported():
    """The script of CI reads the lower bound of pyproject.toml, and runs what the README says with it and with the newest."""
    script = (ROOT / ".ci" / "run").read_text()
    (line,) = [line for line in script.splitlines() if line.startswith("oldest=")]
    found = subprocess.run(
        ["bash", "-c", f"{line}; echo $oldest"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert PROJECT["project"]["dependencies"] == [f"torch>={found}"]
    assert "for end in oldest newest; do" in script
    assert "- run: .ci/run\n" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def test_what_is_released_is_what_ci_tests():
    """One script makes the files of a release and those that CI checks; only publishing has a credential."""
    workflows = {name: (ROOT / ".github" / "workflows" / f"{name}.yml").read_text() for name in ("ci", "release")}
    assert all("- run: .ci/packages\n" in text for text in workflows.values())
    build, publish = workflows["release"].split("  publish:\n")
    assert "needs: build" in publish
    assert "pypa/gh-action-pypi-publish" in publish
    assert publish.count("write") == 1
    assert "id-token: write" in publish
    assert "write" not in build
    assert not any(word in workflows["release"] for word in ("secrets.", "password:", "api-token"))
