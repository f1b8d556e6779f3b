"""``python -m fullgrad``: its names, files and exit statuses, what Ctrl-C leaves, and what a failure prints."""

import json
import re
import signal
import subprocess
import sys

import pytest
import torch

import fullgrad
from fullgrad._suite import torch_samples
from fullgrad._suite.cases import CASES
from fullgrad._suite.fuzz import LAWS
from fullgrad._suite.published import PUBLISHED
from fullgrad.cli import _adopt, _arguments, _check, _names, _torch, main
from fullgrad.cli._output import Stoppable
from fullgrad.testing import GROUPS, check_operator

pytest.importorskip("rich")


class Off(fullgrad.Elementwise):
    """A product whose second derivative is a little off."""

    reads = {0: (0, 1), 1: (0, 1)}

    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def vjp_term(i, v, x, w):
        return v * w if i == 0 else v * x * (1 + 1e-7)


def product(x, w):
    """The surrogate of `Off`."""
    return x * w


def doubled(x, times=2):
    """Its inputs may be a tensor and a number."""
    return x * times


def inputs():
    """A tensor, and a number that is constant."""
    return torch.tensor([0.5, -2.0]), 3


def branching(x):
    """torch's compilers refuse it."""
    return x * 2 if x.sum() > 0 else x * 3


OFF = ["check", f"{__name__}:Off", "--surrogate", f"{__name__}:product", "--shape", "4,3", "--shape", "3"]


# --- Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.short
@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["chek", "round"], "did you mean check?"),
        (["nothing"], "the commands are adopt, audit,"),
        (["check", "rond"], "did you mean round?"),
        (["check", "sort"], "soft.sort?"),
        (["check", "round", "--checks", "func_gard"], "did you mean func_grad"),
        (["plot", "clmp"], "did you mean clamp?"),
        (["bench", "target"], "did you mean targets?"),
        (["bench", "clamp with tensor bound"], "did you mean clamp with tensor bounds"),
        (["fuzz", "round", "clmp"], "did you mean clamp?"),
        (["fuzz", "--laws", "valu"], "did you mean value?"),
        (["adopt", "snntorhc"], "did you mean snntorch?"),
    ],
)
def test_close_names_are_suggested(arguments, suggested, capsys):
    """One line on standard error, with the names of commands, operators, cases, checks, laws and packages that are close."""
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert suggested in told
    assert told.count("\n") == 1


WRONG = [
    ["nothing"],
    [],
    *([command, "--nothing"] for command in ("adopt", "bench", "check", "fuzz", "list", "plot", "torch")),
    *([command, "nothing"] for command in ("adopt", "audit", "bench", "check", "fuzz", "list", "plot", "torch")),
    ["check", "nothing:f"],
    ["check", "round", "--checks", "nothing"],
    ["check", "round", "--shape", "3"],
    ["check", "math:cos", "--shape", "x"],
    ["fuzz", "--laws", "nothing"],
    ["bench", "--sizes", "many"],
    ["bench", "--ways", "nothing"],
    ["check", "--json", "no/folder/file.json"],
    ["diagnose", "nothing:model", "--batch", "nothing:batch"],
    ["diagnose", "nothing.py:model", "--batch", "nothing.py:batch"],
]


def test_a_wrong_argument_is_refused_before_torch_is_imported():
    """Which takes seconds: of every command, names, options, files and modules that are not there."""
    code = (
        "import sys\n"
        "from fullgrad.cli import main\n"
        f"for arguments in {WRONG!r}:\n"
        "    try:\n"
        "        status = main(arguments)\n"
        "    except SystemExit as error:\n"
        "        status = error.code\n"
        "    assert status == 2, arguments\n"
        "    assert 'torch' not in sys.modules, arguments\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_names_that_are_read_are_those_that_are_registered():
    """Of operators, of variants and other cases, of checks, of laws and of published classes: none of them is refused."""
    _names.check_operators([name for case in CASES for name in (*case.covers, case.name)], "operator")
    assert {group: {*checks} for group, checks in _names.checks().items()} == {group: {*c} for group, c in GROUPS.items()}
    assert set(_names.laws()) == set(LAWS)
    names = {name for p in PUBLISHED for full in (p.package, p.name) for name in full.split(".")}
    assert names <= {*_names.words("_suite/published/_functions.py")}


def test_a_quick_check_has_one_case_of_each_operator():
    """So that it takes minutes; names that are given have all of their cases."""

    def cases(*arguments):
        return [name for name, _ in _check._subjects(_arguments.parsed(["check", "--device", "cpu", *arguments]))]

    quick = {*cases("--quick")}
    assert {name for c in CASES if c.name in quick for name in c.covers} == {name for case in CASES for name in case.covers}
    assert len(quick) < len(CASES) / 4
    assert cases("--quick", "soft.sort") == cases("soft.sort") == [c.name for c in CASES if "soft.sort" in c.covers]


@pytest.mark.long
def test_operators_of_torch_are_known_by_their_first_word():
    """None of those that the command judges is refused before."""
    pytest.importorskip("expecttest")
    known = {*_names.of_torch()}
    assert [op.name for op in torch_samples.operators() if re.split("[.,]", op.name)[0] not in known] == []


# --- Files ------------------------------------------------------------------------------------------------------------

SMALL = {
    "check": ["check", "ceil", "--checks", "func_jvp"],
    "fuzz": ["fuzz", "round", "--laws", "value", "--cases", "3"],
    "bench": ["bench", "round", "--sizes", "4", "--ways", "no gradient", "--seconds", "0.0001"],
    "adopt": ["adopt", "snntorch"],
    "audit": ["audit", "torch.utils.checkpoint"],
}


@pytest.mark.long(but=4)
@pytest.mark.parametrize("name", SMALL)
def test_json_is_a_file_or_the_standard_output(name, tmp_path, capsys, monkeypatch):
    """``--json FILE`` writes a file next to the tables; ``--json -`` prints it, and the tables go to the standard error."""
    monkeypatch.setattr(_adopt, "results_of", lambda published: {"before": 0, "after": 0, "checks": 0})
    monkeypatch.setattr(_adopt, "page_table", lambda kept: "")
    file = tmp_path / "found.json"
    status = main([*SMALL[name], "--json", str(file)])
    written, printed = json.loads(file.read_text()), capsys.readouterr().out
    assert printed.strip() == "" or not printed.startswith(("{", "["))
    assert main([*SMALL[name], "--json", "-"]) == status
    assert type(json.loads(capsys.readouterr().out)) is type(written)
    assert main([*SMALL[name], "--json", str(tmp_path / "nowhere" / "found.json")]) == 2


def test_a_table_is_not_wrapped_where_there_is_no_terminal(tmp_path, capsys):
    """A long path is in one line with the name and the replacement."""
    folder = tmp_path / ("a_long_name_of_a_folder_" * 8)
    folder.mkdir()
    (folder / "own.py").write_text("y = x + (q - x).detach()\n")
    assert main(["audit", str(folder)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "own.py" in line]
    assert f"{folder / 'own.py'}:1" in line
    assert "replace_grad(q, x)" in line


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def interrupted_after(count, function):
    """The function, and Ctrl-C at a later call."""
    calls = []

    def call(*args, **kwargs):
        if len(calls) == count:
            raise KeyboardInterrupt
        calls.append(args)
        return function(*args, **kwargs)

    return call


def interrupts(monkeypatch):
    """Ctrl-C in the middle of each command."""
    from fullgrad._suite.fuzz import _search
    from fullgrad.cli import _audit, _bench

    nothing = _torch.Found(1, {}, {})
    monkeypatch.setattr(_check, "run_check", interrupted_after(2, _check.run_check))
    monkeypatch.setattr(_search, "check", interrupted_after(2, _search.check))
    monkeypatch.setattr(_bench, "measure", interrupted_after(0, _bench.measure))
    monkeypatch.setattr(_adopt, "_measure", interrupted_after(1, lambda published, kept: None))
    monkeypatch.setattr(_adopt, "page_table", lambda kept: "")
    monkeypatch.setattr(_torch, "judged", interrupted_after(1, lambda op, samples: nothing))
    monkeypatch.setattr(_audit, "audit_tree", interrupted_after(3, _audit.audit_tree))


@pytest.mark.short
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["check", "round", "ceil", "--checks", "forward"], "stopped after 2 of "),
        (["fuzz", "round", "--laws", "value", "--cases", "9"], "stopped after 3 of 9 programs"),
        (["bench", "round", "--sizes", "4", "--ways", "no gradient"], "stopped after 0 of "),
        (["adopt"], "stopped after 1 of "),
        (["torch", "sin", "cos", "exp"], "stopped after 1 of "),
        (["audit", "torch.utils"], "stopped after 3 of "),
    ],
    ids=lambda v: v[0] if isinstance(v, list) else "",
)
def test_an_interrupt_keeps_what_is_done(arguments, told, monkeypatch, tmp_path, capsys):
    """What is done is printed and written, one line says how much that is, and the exit status is 130."""
    if arguments[0] == "torch":
        pytest.importorskip("expecttest")
    interrupts(monkeypatch)
    file = tmp_path / "found.json"
    assert main([*arguments, "--json", str(file)]) == 130
    err = capsys.readouterr().err
    assert told in err
    assert "Traceback" not in err
    if arguments[0] == "check":
        assert len(json.loads(file.read_text())["results"]["round"]) == 2
    if arguments[0] == "fuzz":
        assert json.loads(file.read_text())["laws"] == {"value": 3}


def test_an_interrupt_elsewhere_is_told_in_one_line(monkeypatch, capsys):
    """Such as while a command begins."""
    monkeypatch.setattr(_check, "_subjects", interrupted_after(0, None))
    assert main(["check"]) == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.long
def test_ctrl_c(tmp_path):
    """A signal ends the process with the partial table and one line."""
    code = (
        "import os, signal, sys, threading\n"
        "from fullgrad.cli import _output, main\n"
        "count = _output.Stoppable.count\n"
        "def counted(work):\n"
        "    count(work)\n"
        "    if work.done == 9:\n"
        "        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "_output.Stoppable.count = counted\n"
        f"sys.exit(main(['check', '--json', {str(tmp_path / 'found.json')!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    out, err = done.stdout, done.stderr
    assert done.returncode == 130
    assert "Traceback" not in out + err
    assert err.strip().splitlines()[-1].startswith("stopped after ")
    assert json.loads((tmp_path / "found.json").read_text())["results"]


@pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_where_python_drops_exceptions(capsys):
    """The work ends with the piece in which the signal came."""

    class Dropping:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with Stoppable(9, "pieces") as work:
        for i in range(9):
            if i == 3:
                Dropping()
            work.count()
    assert work.status(0) == 130
    assert capsys.readouterr().err.endswith("stopped after 4 of 9 pieces\n")
    assert signal.getsignal(signal.SIGINT) is before


# --- Your own operators, and failures ---------------------------------------------------------------------------------


def test_operators_of_several_inputs(capsys):
    """``--shape`` is repeated for each tensor, ``--inputs`` names a function that returns any inputs."""
    right = ["check", f"{__name__}:product", *OFF[2:], "--checks", "reverse"]
    assert main(right) == 0
    assert "6/6" in capsys.readouterr().out
    assert main(["check", f"{__name__}:doubled", "--inputs", f"{__name__}:inputs", "--checks", "reverse"]) == 0
    assert main(["check", f"{__name__}:product"]) == 2
    assert "does not take 1 input: missing a required argument: 'w'; repeat --shape" in capsys.readouterr().err


def test_a_failure_shows_the_elements_that_differ(capsys):
    """The item of a structure, its positions, and numbers with the digits that differ."""
    assert main([*OFF, "--checks", "backward"]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "failed backward" in line]
    expected, got = (line.partition(word)[2].partition("]")[0].split(", ") for word in ("expected [", "got ["))
    assert len(expected) == len(got) == 3
    assert all(a != b and abs(float(a) / float(b) - 1) < 2e-7 for a, b in zip(expected, got, strict=True))
    assert "at [0], [1], [2] in item [1]" in line


def test_elements_are_shown_for_every_kind_of_difference():
    """Shapes, dtypes, 0-dimensional tensors, a zero of the wrong sign, complex numbers."""
    from fullgrad.testing._subject import close, equal

    one = torch.ones(2, dtype=torch.float64)
    for compare, actual, expected, told in [
        (close, [one, one[:1]], [one, one], r"expected \[1, 1\] of shape \(2,\).* got \[1\] of shape \(1,\).* in item \[1\]"),
        (close, one.float(), one, r"torch.float64, got \[1, 1\] of shape \(2,\) and torch.float32"),
        (
            close,
            one[0] + 1e-8,
            one[0],
            r"expected \[1\] of shape \(\) and torch.float64, got \[1.00000001\]\. Absolute",
        ),
        (close, one + 1e-15, one * float("nan"), r"expected \[nan, nan\].* got \[1, 1\] at \[0\], \[1\]"),
        (close, one * 1j, one * 2j, r"expected \[0\+2j, 0\+2j\]"),
        (equal, -0.0 * one, 0.0 * one, r"a zero has the wrong sign: expected \[0, 0\].* got \[-0, -0\]"),
    ]:
        with pytest.raises(AssertionError, match=told):
            compare(actual, expected)


def test_an_error_is_one_line_with_its_place(capsys):
    """The kind, the beginning and the place in the user's code, once for all checks that fail by it; ``-v`` has the rest."""
    checks = ["--checks", "vmap_equals_loop", "--checks", "nested_vmap"]
    assert main(["check", f"{__name__}:branching", *checks]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "failed" in line and ": RuntimeError: vmap: " in line]
    assert "failed vmap_equals_loop, nested_vmap: RuntimeError: vmap: " in line
    assert f"{__file__}:" in line
    assert line.endswith(" in branching]")
    assert main(["check", f"{__name__}:branching", *checks, "-v"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().out


def test_the_place_is_found_in_compiled_code():
    """Of code that torch's compiler traced, whose frames are in the message alone."""
    report = check_operator(branching, torch.randn(3), checks=["compile_forward_and_backward"], raise_exception=False)
    result = report["compile_forward_and_backward"]
    assert result.message.endswith(" in branching]")
    assert "\n" not in result.message
    assert "from user code" in result.details


def test_options_for_own_operators_are_refused_for_others(capsys):
    """A surrogate that is not compared, or a shape that is not used, would be believed to be."""
    for option in (["--surrogate", "net:f"], ["--inputs", "net:f"], ["--shape", "3"]):
        assert main(["check", "round", *option]) == 2
        assert f"{option[0]} is for a callable of your own" in capsys.readouterr().err
    assert main(["check", "math:cos", "--shape", "-1"]) == 2
    assert "--shape must be sizes" in capsys.readouterr().err


def test_commands_import_no_compiler_of_extensions():
    """It is slow to import, and warns before the output on a machine with CUDA's tools and no GPU."""
    code = "import sys; from fullgrad import cli; cli.main(['list']); sys.exit('torch.utils.cpp_extension' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_a_reader_may_stop_early():
    """As ``head`` does: no trace, and no error."""
    command = f"{sys.executable} -m fullgrad list | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
