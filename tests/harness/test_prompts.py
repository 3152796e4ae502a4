"""A prompt is complete by itself; the rendered pages are kept under review in golden/.

After a change that is meant: `python tests/harness/test_prompts.py` writes the pages anew.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import prompts
from harness.errors import PromptError
from harness.guard import Rules
from harness.registry import no_gate, no_work
from harness.state import StageState, State
from stages.base import Stage, Thresholds

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
NAMES = ["s1_ir", "s2_egglog", "s3_lean", "s4_tuning", "s5_block", "s6_runtime", "s7_campaign"]
STAGES = [
    Stage(
        n,
        name,
        f"Stage {name[3:]}",
        ("plow/**", "kernels/**"),
        no_work,
        no_gate,
        checks=("error", "speed"),
        editable=("plow/models/*.py",),
    )
    for n, name in enumerate(NAMES, start=1)
]
THRESHOLDS = Thresholds.parse(
    '[error]\nrelation = "<="\nthreshold = 0.001\n[speed]\nrelation = ">="\nthreshold = 2.0\n'
    'why = "twice the peer"\n[memory]\nrelation = "info"\n'
)
RULES = Rules(("harness/**", "stages/**"), ("stages/*/work.py",), (), ("tests/**/test_*.py",), (), (), (), ())
CHECK = {
    "name": "error",
    "measured": 0.25,
    "threshold": 0.001,
    "relation": "<=",
    "ok": False,
    "command": "plow-bringup gate 1",
    "detail": "layer.3.q_proj differs first",
}
EVIDENCE = {
    "checks": [
        CHECK,
        {**CHECK, "name": "tokens", "measured": 64, "relation": "==", "threshold": 64, "ok": True, "detail": ""},
    ],
    "not_run": ["certificate G"],
}


def state_of(number: int, judged: bool) -> State:
    stages = {n: StageState(n, "green", exit_code=0) for n in range(1, number)}
    if judged:
        stages[number] = StageState(
            number, "red", exit_code=1, reasons=("error: measured 0.25, must be <= 0.001", "mixed: gate edited")
        )
    return State("llama", "cpu", "checkpoints/llama", stages=stages, params={"max_ctx": 2048})


def page(number: int, judged: bool) -> str:
    stage = STAGES[number - 1]
    table = prompts.variables(
        state_of(number, judged),
        STAGES,
        stage,
        THRESHOLDS,
        RULES,
        "--arch llama --target cpu",
        EVIDENCE if judged else None,
    )
    return prompts.render(ROOT / "prompts", stage, table)


PAGES = [(number, number % 2 == 0) for number in range(1, 8)]


@pytest.mark.parametrize(("number", "judged"), PAGES, ids=NAMES)
def test_the_page_is_the_reviewed_one(number: int, judged: bool) -> None:
    golden = (GOLDEN / f"{NAMES[number - 1]}.md").read_text()
    assert page(number, judged) == golden, "if the change is meant: python tests/harness/test_prompts.py"


@pytest.mark.parametrize("number", range(1, 8))
def test_every_page_says_what_an_agent_must_know(number: int) -> None:
    text = page(number, judged=True)
    for part in (
        "## The job",
        "## Read first",
        "Never weaken a gate",
        "One lever at a time",
        "Both arms",
        "Stuck?",
        "Where you may write",
        "`plow/models/*.py`",
        f"`plow-bringup gate {number} --json --arch llama --target cpu`",
        "| error | 0.25 | <= 0.001 |",
        "layer.3.q_proj differs first",
        "tokens 64 (== 64)",
        "`speed` must be >= 2: twice the peer",
        "certificate G",
        "mixed: gate edited",
        "max_ctx=2048",
        "Exit codes",
    ):
        assert part in text, part
    assert "\n\n\n" not in text and "None" not in text


def test_an_undefined_variable_and_a_missing_template_are_errors(tmp_path: Path) -> None:
    (tmp_path / "s1_ir.md.j2").write_text("{{ stage.title }} {{ nonsense }}")
    with pytest.raises(PromptError, match="nonsense"):
        prompts.render(tmp_path, STAGES[0], {})
    with pytest.raises(PromptError, match="found 0"):
        prompts.render(tmp_path, STAGES[1], {})
    (tmp_path / "s1_ir.md.j2").write_text("{{ stage.titel }}")
    with pytest.raises(PromptError, match="titel"):
        prompts.render(tmp_path, replace(STAGES[0], title="x"), {})


def test_every_file_a_page_sends_the_reader_to_belongs_to_a_known_room() -> None:
    rooms = {"plow", "harness", "stages", "prompts", "kernels", "lean", "perf-data", "docs", "tests"}
    for number, judged in PAGES:
        for line in page(number, judged).splitlines():
            if line.startswith("- `") and "/" in line.split("`")[1] and "checkpoints" not in line:
                assert line.split("`")[1].split("/")[0] in rooms, line


def test_every_command_a_page_names_exists_with_its_options() -> None:
    import typer

    from harness.cli import app as bringup
    from plow.cli.plowc import app as plowc
    from plow.cli.plowrt import app as plowrt

    apps = {
        name: typer.main.get_command(app)
        for name, app in (("plow-bringup", bringup), ("plowc", plowc), ("plowrt", plowrt))
    }
    seen = 0
    for number, judged in PAGES:
        for text in re.findall(r"`((?:plow-bringup|plowc|plowrt) [^`]+)`", page(number, judged)):
            words = text.split()
            command = apps[words[0]].commands[words[1]]  # type: ignore[attr-defined]
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            assert {w for w in words if w.startswith("--")} <= known, text
            seen += 1
    assert seen > 50


def write() -> list[Any]:
    return [(GOLDEN / f"{NAMES[n - 1]}.md").write_text(page(n, judged)) for n, judged in PAGES]


if __name__ == "__main__":
    write()
