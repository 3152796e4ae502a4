"""Where things are: the checkout that is judged, and the bring-ups under a root."""

from __future__ import annotations

from pathlib import Path

from harness import git
from harness.errors import BringUpError, GitError


def find(root: Path, arch: str = "", target: str = "") -> list[Path]:
    """Homes of the bring-ups under a root, optionally of one architecture and target."""
    homes = sorted(p.parent for p in root.glob("*/*/ledger.jsonl"))
    return [h for h in homes if arch in ("", h.parent.name) and target in ("", h.name)]


def only(root: Path, arch: str = "", target: str = "") -> Path:
    """The one bring-up that is meant. Raises BringUpError for none or several."""
    homes = find(root, arch, target)
    if len(homes) == 1:
        return homes[0].absolute()
    if not homes:
        raise BringUpError("no bring-up here", str(root), "start with: plow-bringup new ARCH --checkpoint DIR")
    raise BringUpError(
        f"{len(homes)} bring-ups here",
        str(root),
        "choose with --arch and --target: " + ", ".join(f"{h.parent.name}/{h.name}" for h in homes),
    )


def repository() -> Path:
    """The checkout this harness runs from: the only tree it judges. Raises BringUpError when it is in none."""
    here = Path(__file__).resolve().parents[1]
    try:
        top = git.toplevel(here)
    except GitError:
        raise BringUpError(
            "the harness is not in a git checkout", str(here), "clone the repository and `make venv` there"
        ) from None
    if top.resolve() != here:
        raise BringUpError(
            "the harness lies inside another repository", str(top), "clone it as a repository of its own"
        )
    return here
