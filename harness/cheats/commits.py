"""Cheats that show in the diff of a pull request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness import git
from harness.cheats import Cheat
from harness.cheats.sandbox import Sandbox
from harness.git import WHO

Edit = Callable[[Sandbox], None]


def tried(edit: Edit, with_candidate: bool = True) -> Callable[[Sandbox], list[str]]:
    """Make the edit, by default together with a change of the candidate, and ask the guard."""

    def attempt(box: Sandbox) -> list[str]:
        if with_candidate:
            box.candidate("1.0", "\n\nNOTE = 'better'\n")
        edit(box)
        return box.guard()

    return attempt


def writes(path: str, text: str) -> Edit:
    return lambda box: box.write(path, text)


def appends(path: str, text: str) -> Edit:
    return lambda box: box.append(path, text)


def replaces(path: str, old: str, new: str) -> Edit:
    return lambda box: box.write(path, (box.root / path).read_text().replace(old, new))


def links(path: str, target: str) -> Edit:
    return lambda box: (box.root / path).symlink_to(target)


def removes(path: str) -> Edit:
    return lambda box: (box.root / path).unlink()


def unchanged(box: Sandbox) -> None:
    return


def amended(box: Sandbox) -> list[str]:
    """The base commit is replaced by another one, and work goes on from there."""
    box.candidate("1.0", "\n\nNOTE = 'better'\n")
    git.git(box.root, "add", "--all", "plow")
    git.git(box.root, "commit", "--quiet", "--amend", "-m", "record the bring-up", env=WHO)
    return box.guard()


THRESHOLDS = "stages/s1_demo/thresholds.toml"
GATE = "stages/s1_demo/gate.py"
honest = tried(unchanged)
new_test = tried(writes("tests/test_more.py", "def test_more() -> None:\n    assert 1 + 1 == 2\n"))

CHEATS = [
    Cheat(
        "threshold edited",
        tried(replaces(THRESHOLDS, "0.001", "0.5")),
        tried(replaces(THRESHOLDS, "0.001", "0.5"), False),
        "error: threshold 0.001 -> 0.5",
    ),
    Cheat("relation weakened", tried(replaces(THRESHOLDS, '"<="', '"info"')), honest, "error: relation <= -> info"),
    Cheat(
        "threshold removed",
        tried(writes(THRESHOLDS, '[tokens]\nrelation = "=="\nthreshold = true\n')),
        honest,
        "error: removed",
    ),
    Cheat(
        "gate edited",
        tried(replaces(GATE, "abs(value - 1.0)", "0.0")),
        tried(appends(GATE, "\n# clearer\n"), False),
        GATE,
    ),
    Cheat(
        "stage definition drops a check",
        tried(replaces("stages/s1_demo/__init__.py", '"error", ', "")),
        honest,
        "s1_demo/__init__.py",
    ),
    Cheat(
        "golden edited",
        tried(writes("tests/golden/tokens.json", "[9]\n")),
        tried(writes("tests/golden/more.json", "[4]\n")),
        "tests/golden/tokens.json",
    ),
    Cheat(
        "oracle edited",
        tried(appends("plow/oracle/__init__.py", "\nTOLERANCE = 9\n")),
        tried(appends("plow/oracle/__init__.py", "\nTOLERANCE = 9\n"), False),
        "plow/oracle",
    ),
    Cheat(
        "test edited",
        tried(writes("tests/test_demo.py", "def test_tokens_are_golden() -> None:\n    assert True\n")),
        new_test,
        "tests/test_demo.py",
    ),
    Cheat("test removed", tried(removes("tests/test_demo.py")), new_test, "protected file removed"),
    Cheat("harness edited", tried(appends("harness/verdict.py", "\nGREEN = 1\n")), honest, "harness/verdict.py"),
    Cheat(
        "path unprotected",
        tried(replaces("harness/protected.toml", '"stages/**",', "")),
        tried(replaces("harness/protected.toml", '"stages/**",', ""), False),
        "harness/protected.toml",
    ),
    Cheat(
        "shared prompt rules edited",
        tried(writes("prompts/_rules.md.j2", "no rules\n")),
        honest,
        "prompts/_rules.md.j2",
    ),
    Cheat(
        "skip mark added",
        tried(writes("tests/test_new.py", "import pytest\n\n\n@pytest.mark.skip\ndef test_x() -> None: ...\n")),
        new_test,
        "skip mark",
    ),
    Cheat(
        "xfail mark added",
        tried(writes("tests/test_new.py", "import pytest\n\n\n@pytest.mark.xfail\ndef test_x() -> None: ...\n")),
        new_test,
        "skip mark",
    ),
    Cheat(
        "conftest added",
        tried(writes("tests/demo/conftest.py", "collected = []\n"), False),
        tried(writes("tests/demo/test_a.py", "def test_a() -> None:\n    assert 1\n"), False),
        "conftest",
    ),
    Cheat(
        "sitecustomize added",
        tried(writes("sitecustomize.py", "VALUE = 1\n"), False),
        honest,
        "runs before every judge",
    ),
    Cheat(
        "usercustomize package added",
        tried(writes("lib/usercustomize/__init__.py", "VALUE = 1\n"), False),
        honest,
        "runs before every judge",
    ),
    Cheat(
        ".pth file added",
        tried(writes("plow/x.pth", "import os\n"), False),
        tried(writes("plow/x.txt", "import os\n")),
        "x.pth",
    ),
    Cheat(
        "pytest options deselect a test",
        tried(replaces("pyproject.toml", '"-q"', '"-q --deselect tests/test_demo.py"')),
        tried(replaces("pyproject.toml", '"demo"', '"demo2"')),
        "[tool.pytest]",
    ),
    Cheat(
        "pytest.ini overrides the settings",
        tried(writes("pytest.ini", "[pytest]\naddopts = -k nothing\n")),
        honest,
        "pytest.ini",
    ),
    Cheat(
        "symbolic link out of the checkout",
        tried(links("plow/data", "../../elsewhere")),
        tried(links("plow/data", "oracle")),
        "out of the checkout",
    ),
    Cheat(
        "absolute symbolic link",
        tried(links("plow/data", str(Path("/etc/hostname")))),
        tried(links("plow/data", "oracle")),
        "out of the checkout",
    ),
    Cheat(
        "standard module shadowed",
        tried(writes("statistics.py", "def median(x):\n    return 0\n")),
        tried(writes("plow/statistics.py", "def median(x):\n    return 0\n")),
        "import statistics would find",
    ),
    Cheat(
        "library shadowed",
        tried(writes("numpy/__init__.py", "")),
        tried(writes("plow/numpy/__init__.py", "")),
        "import numpy would find",
    ),
    Cheat(
        "compiled module added",
        tried(writes("plow/candidate.cpython-311-x86_64-linux-gnu.so", "x")),
        honest,
        "compiled module",
    ),
    Cheat(
        "import hook",
        tried(appends("plow/candidate.py", "\nimport sys\nsys.meta_path.insert(0, None)\n")),
        tried(appends("plow/candidate.py", "\nimport sys\nPATHS = len(sys.path)\n")),
        "sys.meta_path",
    ),
    Cheat(
        "timer patched",
        tried(appends("plow/candidate.py", "\nimport time\ntime.perf_counter = lambda: 0.0\n")),
        tried(appends("plow/candidate.py", "\nimport time\nSTART = time.perf_counter()\n")),
        "time.perf_counter =",
    ),
    Cheat(
        "candidate imports the harness",
        tried(appends("plow/candidate.py", "\nfrom harness import verdict\n")),
        honest,
        "from harness",
    ),
    Cheat("history rewritten", amended, honest, "not in the history"),
]
