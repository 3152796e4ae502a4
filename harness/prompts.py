"""Renders a stage's prompt: what to read, what may change, which command answers what, what is red now."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2

from harness.errors import PromptError
from harness.guard import Rules
from harness.state import State, word
from harness.verdict import show
from stages.base import Stage, Thresholds


def render(folder: Path, stage: Stage, variables: dict[str, Any]) -> str:
    """The prompt of a stage from `folder/sN_*.md.j2`. Raises PromptError: no template, or an undefined variable."""
    found = sorted(p.name for p in folder.glob(f"s{stage.number}_*.md.j2"))
    if len(found) != 1:
        raise PromptError(
            f"stage {stage.number} needs one template, found {len(found)}",
            str(folder),
            f"write s{stage.number}_NAME.md.j2",
        )
    try:
        return _environment(folder).get_template(found[0]).render(stage=stage, **variables)
    except jinja2.TemplateError as e:
        raise PromptError(f"prompt does not render: {e}", f"{folder.name}/{found[0]}", "repair the template") from e


@lru_cache
def _environment(folder: Path) -> jinja2.Environment:
    """Templates of a folder, compiled once and again when their file changes."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["show"] = show
    return environment


def variables(
    state: State,
    stages: list[Stage],
    stage: Stage,
    thresholds: Thresholds,
    rules: Rules,
    where: str,
    evidence: dict[str, Any] | None,
) -> dict[str, Any]:
    """Everything a template may use. where: options that select the bring-up. evidence: of the last verdict, if any."""
    now = state.stage(stage.number)
    checks = list((evidence or {}).get("checks", ()))
    seen = {c["name"] for c in checks}
    rows = {n: thresholds.get(n) for n in (*stage.checks, *thresholds) if n not in seen}
    return {
        "bringup": {
            "arch": state.arch,
            "target": state.target,
            "checkpoint": state.checkpoint,
            "params": dict(state.params),
        },
        "status": word(now),
        "reasons": [r for r in now.reasons if r.partition(":")[0] not in {c["name"] for c in checks if not c["ok"]}],
        "red": [c for c in checks if not c["ok"]],
        "passed": [c for c in checks if c["ok"]],
        "not_run": list((evidence or {}).get("not_run", ())),
        "unjudged": [
            {
                "name": n,
                "relation": t.relation if t else "",
                "threshold": t.threshold if t else "",
                "why": t.why if t else "",
            }
            for n, t in rows.items()
        ],
        "earlier": [
            {"number": s.number, "title": s.title, "status": word(state.stage(s.number))}
            for s in stages
            if s.number < stage.number
        ],
        "sources": list(stage.sources),
        "editable": list(stage.editable or stage.sources),
        "protected": list(rules.protected),
        "excepted": list(rules.excepted),
        "additive": list(rules.additive),
        "commands": commands(stage, where),
    }


def commands(stage: Stage, where: str) -> list[dict[str, str]]:
    """Question -> command."""
    tail = f" {where}" if where else ""
    return [
        {"question": "Is this stage green now?", "command": f"plow-bringup gate {stage.number} --json{tail}"},
        {"question": "Where does the whole bring-up stand?", "command": f"plow-bringup status --json{tail}"},
        {"question": "What is the one thing to run next?", "command": f"plow-bringup next{tail}"},
        {
            "question": "What does this prompt say after my last change?",
            "command": f"plow-bringup prompt {stage.number}{tail}",
        },
        {"question": "Would CI accept my commits?", "command": "plow-bringup ci --base main"},
        {"question": "Can these gates see a fault at all?", "command": "plow-bringup self-test --gates --json"},
        {"question": "Is a tool missing here?", "command": "plow-bringup doctor"},
    ]


def thresholds_of(stage: Stage, root: Path, target: str) -> Thresholds:
    """thresholds.toml of the working tree, for display; verdicts read it from the commit."""
    files = sorted((root / "stages").glob(f"s{stage.number}_*/thresholds.toml"))
    return Thresholds.load(files[0], target) if files else Thresholds({})
