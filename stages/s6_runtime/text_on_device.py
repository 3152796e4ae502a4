"""Logits of a served bundle on real text, against fp32, bounded by what PyTorch's own bf16 gets wrong on that text.

    python stages/s6_runtime/text_on_device.py make REFERENCE.npz --checkpoint DIR     where the oracle extra is
    python stages/s6_runtime/text_on_device.py check BUNDLE REFERENCE.npz              where the device is

(with PYTHONPATH=. where plow is not installed). `check` needs numpy, and CuPy for a GPU bundle; it prints one JSON
object and exits with 0 (all bounds hold), 1 (one does not) or 2 (no verdict).

The text is cut into windows of WINDOW positions, which are fed token by token as they are, never as predicted:

    ids [windows, WINDOW + 1]: row (w, i) has read ids[w, :i + 1] and predicts ids[w, i + 1]

Three arms read it by different programs: `chunks` (rows are neighbours in one sequence, as in a prompt), `batch` (every
row is another sequence, as in decode), `single` (one row a step). For each row the negative log likelihood of the next
token and the best token are compared; for `selected` rows the whole distribution. How far bf16 is off was measured on
the same rows when the reference was made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from plow.errors import ConfigError, PlowError, RequestError
from plow.oracle.metrics import kl, log_softmax, margins
from plow.runtime import bundle as bundles
from plow.runtime.backends import open_backend
from plow.runtime.kv import BlockManager
from plow.runtime.step import Backend, StepBatch

SCHEMA = "plow.text_on_device/1"
WINDOW, WINDOWS, SINGLE_WINDOWS = 256, 8, 2
ROWS = 8
MEGABYTES = 30
"""Of the distributions in a reference: it travels to the device."""
LEVELS = 65535
ROOT = Path(__file__).parents[2]
TEXTS = ("docs/verification.md", "docs/harness.md", "docs/architecture.md", "README.md")
CHANCE = 3.0
"""Standard errors that a mean difference of likelihoods may be off by the luck of the text."""
Array = np.ndarray


# -- metrics -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reading:
    """What a model made of the text. nll: f64 [rows] of the next token, nats; top: i32 [rows], the best token;
    kl: f64 [selected], KL(fp32 || model), nats. Rows that were not read are NaN and -1."""

    nll: Array
    top: Array
    kl: Array

    @classmethod
    def empty(cls, rows: int, selected: int) -> Reading:
        return cls(np.full(rows, np.nan), np.full(rows, -1, np.int32), np.full(selected, np.nan))


def encode(logp: Array) -> tuple[Array, Array, Array]:
    """f64 [rows, vocab] log probabilities -> u16 codes, and f32 [rows] best and step: logp = best - code * step. A step
    is below 1e-3 nats, which adds less than 1e-7 to a KL; float16 would add tens of times as much."""
    best = logp.max(axis=-1).astype(np.float32)
    step = ((best - logp.min(axis=-1)) / LEVELS).astype(np.float32)
    codes = np.rint((best[:, None].astype(np.float64) - logp) / np.maximum(step, 1e-30)[:, None].astype(np.float64))
    return np.clip(codes, 0, LEVELS).astype(np.uint16), best, step


def decode(codes: Array, best: Array, step: Array) -> Array:
    """f64 [rows, vocab], see `encode`; normalised only up to the rounding."""
    return best[:, None].astype(np.float64) - codes.astype(np.float64) * step[:, None].astype(np.float64)


def note(reading: Reading, row: int, logits: Array, target: int, reference: Array | None = None, at: int = 0) -> None:
    """Enter the f32 [vocab] logits of a row; reference: log probabilities of selected row number `at`. Logits that are
    not finite are infinitely wrong."""
    if not np.isfinite(logits).all():
        reading.nll[row], reading.top[row] = math.inf, -1
    else:
        reading.nll[row] = -log_softmax(logits)[target]
        reading.top[row] = int(logits.argmax())
    if reference is not None:
        reading.kl[at] = float(kl(reference[None], logits[None])[0])


def distances(nll: Array, top: Array, value: Reading, rows: Array, selected: Array) -> dict[str, float]:
    """How far a reading is from fp32 (nll, top) on the rows and selected rows that are true in the masks."""
    off = value.nll[rows] - nll[rows]
    finite = bool(np.isfinite(off).all() and np.isfinite(value.kl[selected]).all())
    return {
        "kl_mean": float(value.kl[selected].mean()) if finite else math.inf,
        "kl_max": float(value.kl[selected].max()) if finite else math.inf,
        "nll_difference": float(off.mean()) if finite else math.inf,
        "nll_rms": float(np.sqrt(np.mean(off**2))) if finite else math.inf,
        "top1_agreement": float(np.mean(value.top[rows] == top[rows])),
    }


def bounds(bf16: dict[str, float], rows: int) -> dict[str, float]:
    """What a device may be off by: no more than PyTorch's bf16 on the same rows. A mean difference of likelihoods can
    be small by luck, so it may also be what independent errors of bf16's size make of that many rows; lost best tokens
    are few, and may be one standard error more."""
    disagreements = (1 - bf16["top1_agreement"]) * rows
    return {
        "kl_mean": bf16["kl_mean"],
        "kl_max": bf16["kl_max"],
        "nll_difference": max(abs(bf16["nll_difference"]), CHANCE * bf16["nll_rms"] / math.sqrt(rows)),
        "nll_rms": bf16["nll_rms"],
        "top1_agreement": 1 - (disagreements + math.sqrt(disagreements)) / rows,
    }


def holds(measured: dict[str, float], bound: dict[str, float]) -> dict[str, bool]:
    """Every comparison is false for NaN."""
    return {
        name: value >= bound[name] if name == "top1_agreement" else abs(value) <= bound[name]
        for name, value in measured.items()
    }


# -- the reference -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Reference:
    """fp32's and bf16's reading of a text. rows = windows * window, in order.

    ids: i32 [windows, window + 1]; nll: f64 [rows], top: i32 [rows], margin: f32 [rows] (best minus second logit) of
    fp32; bf16_nll, bf16_top: the same of bf16; selected: i32 [k], rows whose distribution is kept, as codes: u16
    [k, vocab], best, step: f32 [k] (see `encode`); bf16_kl: f64 [k]; about: what it was made of, JSON.
    """

    ids: Array
    nll: Array
    top: Array
    margin: Array
    bf16_nll: Array
    bf16_top: Array
    selected: Array
    codes: Array
    best: Array
    step: Array
    bf16_kl: Array
    about: Array

    @property
    def window(self) -> int:
        return self.ids.shape[1] - 1

    @property
    def rows(self) -> int:
        return int(self.ids.shape[0]) * self.window

    @property
    def vocab(self) -> int:
        return int(self.codes.shape[1])

    @property
    def bf16(self) -> Reading:
        return Reading(self.bf16_nll, self.bf16_top, self.bf16_kl)

    def place(self) -> dict[int, int]:
        """Selected row -> its number."""
        return {int(r): i for i, r in enumerate(self.selected)}

    def save(self, path: Path) -> None:
        np.savez_compressed(path, **{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: Path) -> Reference:
        """Raises ConfigError for a file that is not there or is no reference."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(**{f.name: arrays[f.name] for f in fields(cls)})
        except (OSError, ValueError, KeyError) as e:
            raise ConfigError(f"no reference: {e}", str(path), "write it with text_on_device.py make") from None


def prose(markdown: str) -> str:
    """The sentences of a page: paragraphs and list items without tables, code, headings, comments and emphasis."""
    kept: list[str] = []
    fenced = False
    for line in markdown.splitlines():
        fenced ^= line.startswith("```")
        plain = not fenced and not line.startswith(("#", "|", "    ", "<", "```"))
        kept.append(line.strip().replace("**", "").replace("`", "") if plain else "")
    blocks = "\n".join(kept).split("\n\n")
    return "\n\n".join(" ".join(b.split()) for b in blocks if b.strip())


def windows_of(ids: list[int], specials: list[int], windows: int, window: int) -> Array:
    """i32 [windows, window + 1]: every window starts with the tokenizer's special tokens. Raises ConfigError."""
    each = window + 1 - len(specials)
    if len(ids) < windows * each:
        raise ConfigError(f"the text has {len(ids)} tokens, {windows * each} are needed", "--text", "name more files")
    return np.array([specials + ids[w * each : (w + 1) * each] for w in range(windows)], np.int32)


def select(rows: int, vocab: int, megabytes: float, most: int = WINDOW) -> Array:
    """i32: as many rows as fit, evenly spread, the first and the last among them."""
    count = min(most, rows, int(megabytes * 1e6) // (2 * vocab))
    if count < 2:
        raise ConfigError(f"{megabytes} MB hold {count} rows of {vocab} words", "--megabytes", "allow more")
    return np.unique(np.linspace(0, rows - 1, count).round().astype(np.int32))


def make(checkpoint: Path, texts: list[Path], windows: int = WINDOWS, window: int = WINDOW,
         megabytes: float = MEGABYTES) -> Reference:  # fmt: skip
    """Read the text by transformers in fp32 and bf16, one after the other. Raises ToolMissing without the oracle."""
    from plow.oracle.client import HFOracle
    from plow.runtime.text import Tokenizer

    tokenizer = Tokenizer(checkpoint)
    text = "\n\n".join(prose(p.read_text("utf-8")) for p in texts)
    ids = windows_of(tokenizer.encode(text, add_special_tokens=False), tokenizer.encode(""), windows, window)
    rows = windows * window
    exact = Reading.empty(rows, 0)
    margin = np.zeros(rows, np.float32)
    kept: list[tuple[Array, Array, Array]] = []
    selected = np.zeros(0, np.int32)
    about: dict[str, Any] = {}
    with HFOracle(checkpoint, "float32") as oracle:
        for w in range(windows):
            logits = oracle.logits(ids[w, :-1].tolist())
            selected = select(rows, logits.shape[1], megabytes)
            inside = selected[(selected >= w * window) & (selected < (w + 1) * window)] - w * window
            kept.append(encode(log_softmax(logits[inside])))
            margin[w * window : (w + 1) * window] = margins(logits)
            for i in range(window):
                note(exact, w * window + i, logits[i], int(ids[w, i + 1]))
        about = {k: v for k, v in oracle.info.items() if k != "threads"}
    codes, best, step = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    place = {int(r): i for i, r in enumerate(selected)}
    half = Reading.empty(rows, len(selected))
    with HFOracle(checkpoint, "bfloat16") as oracle:
        for w in range(windows):
            logits = oracle.logits(ids[w, :-1].tolist())
            for i in range(window):
                _note(half, w * window + i, logits[i], ids, place, codes, best, step)
    about |= {
        "schema": SCHEMA,
        "model": checkpoint.name,
        "config_sha256": _sha256(checkpoint / "config.json"),
        "texts": [p.name for p in texts],
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    return Reference(ids, exact.nll, exact.top, margin, half.nll, half.top, selected, codes, best, step, half.kl,
                     np.array(json.dumps(about)))  # fmt: skip


def _note(reading: Reading, row: int, logits: Array, ids: Array, place: dict[int, int], codes: Array, best: Array,
          step: Array) -> None:  # fmt: skip
    w, i = divmod(row, ids.shape[1] - 1)
    at = place.get(row)
    truth = None if at is None else decode(codes[at : at + 1], best[at : at + 1], step[at : at + 1])[0]
    note(reading, row, logits, int(ids[w, i + 1]), truth, at or 0)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -- the device --------------------------------------------------------------------------------------------------------
Rows = Iterator[tuple[int, Array]]
"""(row of the reference, its logits f32 [vocab]), in the order in which they are computed."""


def program_for(backend: Backend, rows: int) -> tuple[int, int]:
    """(index, rows) of the smallest program that samples `rows` rows, or of the one that samples the most."""
    programs = backend.bundle.packets.programs
    width = [min(p.rows, p.samples) for p in programs]
    wanted = min(rows, max(width))
    return min((p.rows, i) for i, p in enumerate(programs) if width[i] >= wanted)[1], wanted


def chunks(backend: Backend, ids: Array, rows: int = ROWS) -> Rows:
    """Sequence after sequence, in pieces of neighbouring positions; rows = 1: by the program of single rows."""
    index, width = program_for(backend, rows)
    window = ids.shape[1] - 1
    kv = BlockManager(backend.bundle.limits)
    for w, text in enumerate(ids):
        slot = kv.allocate(window)
        for at in range(0, window, width):
            n = min(width, window - at)
            batch = StepBatch.greedy(text[at : at + n], range(at, at + n), [slot] * n, range(n), kv.page_table)
            yield from _run(backend, index, batch, [w * window + at + i for i in range(n)])
        kv.free(slot)


def together(backend: Backend, ids: Array, rows: int = ROWS) -> Rows:
    """Several sequences side by side, one position of each in a step."""
    index, width = program_for(backend, min(rows, backend.bundle.limits.max_slots))
    window = ids.shape[1] - 1
    for first in range(0, len(ids), width):
        group = ids[first : first + width]
        kv = BlockManager(backend.bundle.limits)
        slots = [kv.allocate(window) for _ in group]
        for at in range(window):
            n = len(group)
            batch = StepBatch.greedy(group[:, at], [at] * n, slots, range(n), kv.page_table)
            yield from _run(backend, index, batch, [(first + i) * window + at for i in range(n)])


def _run(backend: Backend, index: int, batch: StepBatch, rows: list[int]) -> Rows:
    """Every row's logits of one step. Its greedy tokens must be theirs: what is judged is what would be served."""
    tokens = backend.run(index, batch)[0]
    logits = backend.logits(index, len(rows))
    for i, row in enumerate(rows):
        if np.isfinite(logits[i]).all() and logits[i, tokens[i]] != logits[i].max():
            raise PlowError(f"token {tokens[i]} is not the best of its logits", f"row {row} of the text", "report this")
        yield row, logits[i]


def arms() -> dict[str, tuple[Callable[[Backend, Array], Rows], int]]:
    """Name -> (how the text is read, of how many windows)."""
    return {
        "chunks": (chunks, WINDOWS),
        "batch": (together, WINDOWS),
        "single": (lambda backend, ids: chunks(backend, ids, 1), SINGLE_WINDOWS),
    }


def check(backend: Backend, reference: Reference) -> dict[str, Any]:
    """The report; its `ok` is the verdict. Raises RequestError when bundle and reference do not belong together."""
    _belongs(backend.bundle, reference)
    found = {}
    for name, (read, windows) in arms().items():
        ids = reference.ids[:windows]
        reading = Reading.empty(reference.rows, len(reference.selected))
        place = reference.place()
        for row, logits in read(backend, ids):
            _note(reading, row, logits, reference.ids, place, reference.codes, reference.best, reference.step)
        found[name] = verdict(reference, reading, len(ids) * reference.window)
    about = json.loads(str(reference.about))
    bundle = backend.bundle
    return {
        "schema": SCHEMA,
        "model": about["model"],
        "target": bundle.target,
        "packets_sha256": bundle.packet_digest,
        "reference": about,
        "arms": found,
        "ok": all(arm["ok"] for arm in found.values()),
    }


def verdict(reference: Reference, reading: Reading, rows: int) -> dict[str, Any]:
    """Of an arm that has read the first `rows` rows: measured values, their bounds, and whether each holds."""
    mask = np.arange(reference.rows) < rows
    selected = reference.selected < rows
    measured = distances(reference.nll, reference.top, reading, mask, selected)
    bf16 = distances(reference.nll, reference.top, reference.bf16, mask, selected)
    bound = bounds(bf16, rows)
    held = holds(measured, bound)
    wrong = mask & (reading.top != reference.top)
    return {
        "rows": rows,
        "distributions": int(selected.sum()),
        "nll_fp32": float(reference.nll[mask].mean()),
        "measured": {k: _finite(v) for k, v in measured.items()},
        "thresholds": bound,
        "bf16": bf16,
        "largest_margin_lost": float(reference.margin[wrong].max()) if wrong.any() else 0.0,
        "failed": [k for k, good in held.items() if not good],
        "ok": all(held.values()),
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None


def _belongs(bundle: bundles.Bundle, reference: Reference) -> None:
    about, limits = json.loads(str(reference.about)), bundle.limits
    if bundle.digests.get("config.json") != about["config_sha256"]:
        raise RequestError(f"the reference is of another model ({about['model']})", str(bundle.path), "make its own")
    if limits.vocab_size != reference.vocab or limits.max_ctx < reference.window:
        raise RequestError(
            f"vocabulary {limits.vocab_size} and context {limits.max_ctx} do not fit a reference of {reference.vocab} "
            f"and {reference.window}",
            str(bundle.path),
            "compile the bundle with a larger --max-ctx",
        )


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = p.add_subparsers(dest="command", required=True)
    m = commands.add_parser("make", help="write a reference")
    m.add_argument("reference", type=Path)
    m.add_argument("--checkpoint", type=Path, required=True)
    m.add_argument("--text", type=Path, nargs="+", default=[ROOT / t for t in TEXTS], help="Markdown or plain text")
    m.add_argument("--windows", type=int, default=WINDOWS)
    m.add_argument("--megabytes", type=float, default=MEGABYTES)
    c = commands.add_parser("check", help="judge a bundle")
    c.add_argument("bundle", type=Path)
    c.add_argument("reference", type=Path)
    c.add_argument("--backend", default="", help="default: the one that the bundle was built for")
    a = p.parse_args()
    try:
        if a.command == "make":
            made = make(a.checkpoint, a.text, a.windows, megabytes=a.megabytes)
            made.save(a.reference)
            bf16 = distances(made.nll, made.top, made.bf16, np.ones(made.rows, bool), np.ones(len(made.selected), bool))
            print(json.dumps({"about": json.loads(str(made.about)), "rows": made.rows, "bf16": bf16}))
            return
        backend = open_backend(bundles.load(a.bundle, allow_uncertified=True), a.backend)
        report = check(backend, Reference.load(a.reference))
        backend.close()
    except PlowError as e:
        print(json.dumps(e.as_dict()))
        sys.exit(2)
    print(json.dumps(report))
    sys.exit(0 if report["ok"] else 1)


if __name__ == "__main__":
    main()
