"""The speed campaign: interleaved rounds of our bundle and its peers on the same processor, ratios within a round.

    python -m stages.s7_campaign.campaign --assets BUNDLE --checkpoint DIR --hf float32 --llama-cpp PYTHON:GGUF

Every round probes the machine first (read bandwidth, counter hop): these machines change mode within minutes, and only
numbers of one round may be divided. Every timed call returns tokens; arms with fp32 arithmetic must agree on them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

from plow.cli.common import console
from plow.tune.machine import machine_mode
from stages.arms.plow_arm import command
from stages.arms.protocol import Arm

HERE = Path(__file__).parent
WORKLOADS: dict[str, dict[str, Any]] = {
    "decode_1": {"what": "decode", "sequences": 1, "prompt": 32, "steps": 96},
    "decode_8": {"what": "decode", "sequences": 8, "prompt": 32, "steps": 32},
    "prompt_512": {"what": "prompt", "sequences": 1, "prompt": 512, "steps": 1},
}


def arms(
    assets: dict[str, Path], checkpoint: Path | None, hf_dtypes: list[str], llama_cpp: str, threads: int
) -> dict[str, Arm]:
    """Start the arms. assets: arm name -> bundle; hf_dtypes: transformers arms; llama_cpp: "PYTHON:GGUF" or ""."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    found = {name: Arm(name, command(path)) for name, path in assets.items()}
    for dtype in hf_dtypes:
        found[f"transformers_{dtype}"] = Arm(
            dtype, [sys.executable, "-m", "stages.arms.hf_arm", str(checkpoint), dtype, str(threads)], env
        )
    if llama_cpp:
        python, _, gguf = llama_cpp.partition(":")
        found["llama_cpp"] = Arm(
            "llama_cpp", [python, str(HERE.parent / "arms" / "llama_cpp_arm.py"), gguf, str(threads)], env
        )
    return found


def prompts(rng: np.random.Generator, workload: dict[str, Any], vocab: int) -> list[list[int]]:
    return rng.integers(100, vocab - 100, (workload["sequences"], workload["prompt"])).tolist()


def run(
    found: dict[str, Arm], rounds: int, vocab: int, workloads: list[str], seed: int, slow_rounds: int = 2
) -> list[dict[str, Any]]:
    """One record a round and workload: tokens/s of every arm, the machine's probes, whether fp32 arms agreed.

    transformers arms run in the first `slow_rounds` only: they take most of the time and vary least.
    """
    rng = np.random.default_rng(seed)
    records = []
    for r in range(rounds):
        mode = machine_mode()
        for name in workloads:
            w = WORKLOADS[name]
            request = {"what": w["what"], "prompts": prompts(rng, w, vocab), "steps": w["steps"]}
            units = w["sequences"] * w["steps"] if w["what"] == "decode" else w["prompt"]
            speeds, tokens = {}, {}
            order = list(found) if r % 2 == 0 else list(found)[::-1]
            for arm in order:
                if arm.startswith("transformers") and r >= slow_rounds:
                    continue
                seconds, tokens[arm] = found[arm].timed(request)
                speeds[arm] = units / seconds
            records.append({"round": r, "workload": name, "tok_s": speeds, "mode": mode, "agree": agreement(tokens)})
            console.print(f"round {r} {name}: " + "  ".join(f"{k} {v:.1f}" for k, v in speeds.items()))
    return records


def agreement(tokens: dict[str, list[list[int]]]) -> dict[str, float]:
    """Share of tokens equal to the fp32 transformers arm's, up to the first difference of each sequence."""
    base = tokens.get("transformers_float32")
    if base is None:
        return {}
    return {
        arm: float(np.mean([_prefix(a, b) / len(b) for a, b in zip(got, base, strict=True)]))
        for arm, got in tokens.items()
    }


def _prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(b))


def summary(records: list[dict[str, Any]], base: str) -> dict[str, Any]:
    """Medians of tokens/s, and the median, smallest and largest ratio base / arm within rounds, a workload."""
    out: dict[str, Any] = {}
    for name in dict.fromkeys(r["workload"] for r in records):
        rows = [r for r in records if r["workload"] == name]
        peers = dict.fromkeys(a for r in rows for a in r["tok_s"])
        out[name] = {
            "tok_s": {a: statistics.median([r["tok_s"][a] for r in rows if a in r["tok_s"]]) for a in peers},
            "ratio": {},
        }
        for a in peers:
            q = [r["tok_s"][base] / r["tok_s"][a] for r in rows if a in r["tok_s"] and base in r["tok_s"]]
            out[name]["ratio"][a] = {"median": statistics.median(q), "min": min(q), "max": max(q), "n": len(q)}
    return out


def bandwidth_share(records: list[dict[str, Any]], arm: str, bytes_per_token: float) -> float:
    """(bytes a token * tokens/s) / read bandwidth of batch-1 decode, both the best of the rounds: what others do on the
    machine only ever makes either slower, so the best round is the least disturbed one."""
    rows = [r for r in records if r["workload"] == "decode_1"]
    return max(r["tok_s"][arm] for r in rows) * bytes_per_token / max(r["mode"]["read_bytes_per_s"] for r in rows)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--assets", action="append", required=True, help="BUNDLE or NAME=BUNDLE; the first is the base of the ratios"
    )
    p.add_argument("--checkpoint", type=Path)
    p.add_argument("--hf", default="", help="transformers dtypes, e.g. float32,bfloat16")
    p.add_argument("--llama-cpp", default="", help="PYTHON:GGUF")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    p.add_argument("--workloads", default=",".join(WORKLOADS))
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, help="append one JSON line to this file")
    a = p.parse_args()
    bundles = dict(x.split("=", 1) if "=" in x else ("plow", x) for x in a.assets)
    manifest = json.loads((Path(next(iter(bundles.values()))) / "manifest.json").read_text())
    found = arms(
        {k: Path(v) for k, v in bundles.items()},
        a.checkpoint,
        [d for d in a.hf.split(",") if d],
        a.llama_cpp,
        a.threads,
    )
    try:
        records = run(found, a.rounds, manifest["model"]["vocab_size"], a.workloads.split(","), a.seed)
    finally:
        for arm in found.values():
            arm.close()
    base = next(iter(bundles))
    result = {
        "schema": "plow.campaign/1",
        "summary": summary(records, base),
        "base": base,
        "info": {k: v.info for k, v in found.items()},
        "weight_bytes": manifest["weights"]["bytes"],
        "records": records,
    }
    if any(r["workload"] == "decode_1" for r in records):
        result["bandwidth_share"] = bandwidth_share(records, base, manifest["weights"]["bytes"])
    print(json.dumps(result))
    if a.out:
        with a.out.open("a") as f:
            f.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
