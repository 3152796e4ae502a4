"""The comparison of a device's logits with fp32 on real text: it passes what is exact and finds what is not."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_backend import FakeBackend, next_logits

from plow.compile import Options, compile_checkpoint
from plow.errors import ConfigError, PlowError, RequestError
from plow.oracle.metrics import kl, log_softmax
from plow.runtime.backends import open_backend
from plow.runtime.bundle import load
from stages.s6_runtime import text_on_device as subject
from stages.s6_runtime.text_on_device import Reading, Reference, bounds, distances, holds

ROOT = Path(__file__).parents[2]
VOCAB, WINDOW = 320, 24
Logits = Callable[[list[int]], np.ndarray]


# -- metrics -----------------------------------------------------------------------------------------------------------
def test_codes_keep_a_distribution_far_better_than_float16() -> None:
    logits = np.random.default_rng(0).standard_normal((8, 50000)) * 4
    logp = log_softmax(logits)
    codes, best, step = subject.encode(logp)
    assert codes.dtype == np.uint16 and step.max() < 1e-3
    error = kl(subject.decode(codes, best, step), logits)
    assert error.max() < 1e-7
    assert kl(logp.astype(np.float16).astype(np.float64), logits).mean() > 20 * error.mean()


def test_codes_of_equal_words_are_exact() -> None:
    logp = log_softmax(np.zeros((2, 7)))
    assert subject.decode(*subject.encode(logp)) == pytest.approx(logp, abs=1e-6)


RNG = np.random.default_rng(1)
NLL, TOP = RNG.uniform(0, 8, 2000), RNG.integers(0, 99, 2000)
ALL, KEPT = np.ones(2000, bool), np.ones(100, bool)
SIZE = 0.05
"""Of bf16's errors."""


def reading(noise: float = SIZE, bias: float = 0.0, lost: int = 80, worst: float = 6e-3, mean: float = 1e-3) -> Reading:
    """A model with errors of these sizes: of nll (random, one-sided), best tokens lost, KL (mean of the rest)."""
    errors = np.random.default_rng(2).standard_normal(2000)
    top = np.where(np.arange(2000) < lost, TOP + 1, TOP)
    return Reading(NLL + noise * (errors - errors.mean()) + bias, top, np.append(np.linspace(0, 2 * mean, 99), worst))


def failed(value: Reading) -> set[str]:
    """Names of the bounds of `reading()` that do not hold."""
    bf16 = distances(NLL, TOP, reading(), ALL, KEPT)
    held = holds(distances(NLL, TOP, value, ALL, KEPT), bounds(bf16, 2000))
    return {name for name, good in held.items() if not good}


def test_what_is_exact_has_no_distance() -> None:
    exact = distances(NLL, TOP, Reading(NLL.copy(), TOP.copy(), np.zeros(100)), ALL, KEPT)
    assert exact == {"kl_mean": 0, "kl_max": 0, "nll_difference": 0, "nll_rms": 0, "top1_agreement": 1}
    assert failed(Reading(NLL, TOP, np.zeros(100))) == set()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (reading(), set()),
        (reading(noise=SIZE / 3, lost=20, worst=1e-3, mean=3e-4), set()),
        (reading(noise=1.3 * SIZE), {"nll_rms"}),
        (reading(noise=SIZE / 3, bias=SIZE / 10), {"nll_difference"}),
        (reading(noise=SIZE / 3, bias=-SIZE / 10), {"nll_difference"}),
        (reading(lost=100), {"top1_agreement"}),
        (reading(worst=7e-3, mean=5e-4), {"kl_max"}),
        (reading(worst=5e-3, mean=1.1e-3), {"kl_mean"}),
    ],
)
def test_each_kind_of_error_is_found_by_the_measure_for_it(value: Reading, expected: set[str]) -> None:
    assert failed(value) == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_or_not_read_fail_everything_that_reads_them(bad: float) -> None:
    one = reading(noise=0, lost=0)
    one.nll[77] = bad
    assert failed(one) == {"kl_mean", "kl_max", "nll_difference", "nll_rms"}
    assert failed(Reading.empty(2000, 100)) == {"kl_mean", "kl_max", "nll_difference", "nll_rms", "top1_agreement"}


def test_logits_that_are_not_finite_are_infinitely_wrong() -> None:
    found = Reading.empty(2, 1)
    logits = next_logits([1])
    subject.note(found, 0, logits, 3, log_softmax(logits), 0)
    assert found.nll[0] == pytest.approx(-log_softmax(logits)[3]) and found.top[0] == logits.argmax()
    assert abs(found.kl[0]) < 1e-9
    logits[5] = np.nan
    subject.note(found, 1, logits, 3, log_softmax(next_logits([1])), 0)
    assert math.isinf(found.nll[1]) and found.top[1] == -1 and math.isinf(found.kl[0])


# -- the text ----------------------------------------------------------------------------------------------------------
def test_prose_is_what_a_page_says_in_sentences() -> None:
    page = "# Title\n\nOne `two`\n**three**.\n\n    code\n\n| a | b |\n\n```\nfour\n```\n\n<!-- x -->\n- five\n"
    assert subject.prose(page) == "One two three.\n\n- five"


def test_every_window_starts_with_the_special_tokens_and_the_text_goes_on() -> None:
    ids = subject.windows_of(list(range(10, 40)), [2], 3, 8)
    assert ids.shape == (3, 9) and ids[:, 0].tolist() == [2, 2, 2]
    assert ids[:, 1:].ravel().tolist() == list(range(10, 34))
    assert subject.windows_of(list(range(18)), [], 2, 8).ravel().tolist() == list(range(18))
    with pytest.raises(ConfigError, match=r"30 tokens, 32 are needed"):
        subject.windows_of(list(range(10, 40)), [2], 4, 8)


def test_distributions_are_kept_from_the_first_row_to_the_last_as_room_allows() -> None:
    rows = subject.select(2048, 262144, 30)
    assert rows[0] == 0 and rows[-1] == 2047 and len(rows) == 57 and np.all(np.diff(rows) > 30)
    assert len(subject.select(2048, 49152, 30)) == 256 and len(subject.select(100, 320, 30)) == 100
    with pytest.raises(ConfigError, match="hold 1 rows"):
        subject.select(2048, 262144, 1)


# -- the device --------------------------------------------------------------------------------------------------------
CONFIG = "c" * 64


def reference(logits_of: Logits = next_logits, noise: float = 0.02, windows: int = 8) -> Reference:
    """What `make` would write for a model, whose bf16 has errors of the size of `noise`."""
    rng, window = np.random.default_rng(5), WINDOW
    ids = rng.integers(0, VOCAB, (windows, window + 1)).astype(np.int32)
    rows = windows * window
    exact = np.array([logits_of(text[: i + 1].tolist()) for text in ids for i in range(window)])
    kept = subject.select(rows, VOCAB, 30, most=40)
    codes = subject.encode(log_softmax(exact[kept]))
    place = {int(r): i for i, r in enumerate(kept)}
    readings = []
    for logits in (exact, exact + noise * rng.standard_normal(exact.shape)):
        readings.append(Reading.empty(rows, len(kept)))
        for row in range(rows):
            subject._note(readings[-1], row, logits[row], ids, place, *codes)
    about = np.array(json.dumps({"model": "fake", "config_sha256": CONFIG}))
    a, b = readings
    margin = np.zeros(rows, np.float32)
    return Reference(ids, a.nll, a.top, margin, b.nll, b.top, kept, *codes, b.kl, about)


class Device(FakeBackend):
    """spoil: changes the logits of row number n of a step."""

    def __init__(self, spoil: Callable[[np.ndarray, int], np.ndarray] = lambda x, n: x, **limits: Any) -> None:
        super().__init__(**{"max_slots": 8, **limits})
        self.bundle.manifest["files"]["config.json"] = CONFIG
        self.spoil = spoil

    def logits(self, program: int, n_samples: int) -> np.ndarray:
        found = np.array(super().logits(program, n_samples))
        return np.array([self.spoil(x, n) for n, x in enumerate(found)], np.float32)


def test_an_exact_device_passes_by_every_program_and_every_row_is_read_at_its_place() -> None:
    device = Device()
    report = subject.check(device, reference())
    assert report["ok"] and {a: v["rows"] for a, v in report["arms"].items()} == {
        "chunks": 8 * WINDOW, "batch": 8 * WINDOW, "single": 2 * WINDOW}  # fmt: skip
    for arm in report["arms"].values():
        assert arm["measured"]["kl_max"] < 1e-6 and arm["measured"]["top1_agreement"] == 1 and arm["failed"] == []
        assert arm["bf16"]["kl_mean"] > 1e-5
    shapes = {(len(set(b.slots.tolist())), len(set(b.positions.tolist()))) for b in device.batches}
    assert shapes == {(1, 8), (8, 1), (1, 1)}, "neighbours of one sequence, many sequences, single rows"
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_a_smaller_bundle_is_read_in_smaller_pieces() -> None:
    device = Device(max_slots=3, rows=(1, 2, 4))
    assert subject.check(device, reference())["ok"]
    assert max(len(b.tokens) for b in device.batches) == 3


NOISE = np.random.default_rng(9).standard_normal(VOCAB).astype(np.float32)


def _nan(x: np.ndarray, n: int) -> np.ndarray:
    return np.where(np.arange(VOCAB) == 7, np.nan, x) if n == 0 else x


@pytest.mark.parametrize(
    ("spoil", "arms"),
    [
        (lambda x, n: x + 0.05 * NOISE, {"chunks", "batch", "single"}),
        (lambda x, n: x * 1.1, {"chunks", "batch", "single"}),
        (_nan, {"chunks", "batch", "single"}),
        (lambda x, n: x + 0.1 * NOISE if n == 7 else x, {"chunks", "batch"}),
        (lambda x, n: x + 0.01 * NOISE, set()),
    ],
)
def test_a_wrong_device_is_found_in_the_programs_in_which_it_is_wrong(
    spoil: Callable[[np.ndarray, int], np.ndarray], arms: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Device.run

    def consistent(self: Device, program: int, batch: Any, n_steps: int = 1) -> np.ndarray:
        run(self, program, batch, n_steps)
        return self.logits(program, batch.n_samples).argmax(axis=1)[None].astype(np.int32)

    monkeypatch.setattr(Device, "run", consistent)
    report = subject.check(Device(spoil), reference())
    assert {name for name, arm in report["arms"].items() if not arm["ok"]} == arms and report["ok"] == (not arms)
    json.dumps(report, allow_nan=False)


def test_a_device_that_forgets_the_context_is_found() -> None:
    short = reference(lambda context: next_logits(context[-12:]))
    report = subject.check(Device(), short)
    assert not report["ok"] and "kl_max" in report["arms"]["chunks"]["failed"]


def test_tokens_that_are_not_the_best_of_the_logits_are_no_verdict() -> None:
    with pytest.raises(PlowError, match=r"not the best of its logits.*row 0"):
        subject.check(Device(lambda x, n: -x), reference())


def test_bundle_and_reference_must_belong_together() -> None:
    made, device = reference(), Device()
    device.bundle.manifest["files"]["config.json"] = "d" * 64
    for other, why in (
        (device, "of another model"),
        (Device(vocab=VOCAB + 1), "do not fit a reference of 320"),
        (Device(max_ctx=16), "context 16 do not fit a reference of 320 and 24"),
    ):
        with pytest.raises(RequestError, match=why):
            subject.check(other, made)


def test_a_reference_survives_its_file_and_other_files_are_refused(tmp_path: Path) -> None:
    made = reference()
    made.save(tmp_path / "r.npz")
    again = Reference.load(tmp_path / "r.npz")
    for f in dataclasses.fields(made):
        assert np.array_equal(getattr(made, f.name), getattr(again, f.name)), f.name
    np.savez(tmp_path / "other.npz", ids=made.ids)
    (tmp_path / "text.npz").write_text("hello")
    for name in ("other.npz", "text.npz", "absent.npz"):
        with pytest.raises(ConfigError, match="no reference"):
            Reference.load(tmp_path / name)


# -- the commands ------------------------------------------------------------------------------------------------------
ALONE = """
import importlib.abc, runpy, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pydantic", "typer", "rich", "torch", "transformers", "tokenizers", "httpx",
                                  "ml_dtypes", "egglog", "safetensors", "jinja2"}:
            raise ImportError(name + " is not on the device machine")
sys.meta_path.insert(0, Absent())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def alone(*args: object) -> tuple[int, dict[str, Any]]:
    """Exit code and report of the script where nothing but numpy is installed."""
    script = ROOT / "stages" / "s6_runtime" / "text_on_device.py"
    command = [sys.executable, "-c", ALONE, str(script), *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_check_needs_numpy_only_and_its_exit_code_is_the_verdict(
    tiny_bundles: dict[str, Path], tmp_path: Path
) -> None:
    path = tiny_bundles["llama"]
    bundle = load(path, allow_uncertified=True)
    empty = reference()
    about = np.array(json.dumps({"model": "tiny", "config_sha256": bundle.digests["config.json"]}))
    exact = Reading.empty(empty.rows, len(empty.selected))
    kept = {}
    backend = open_backend(bundle)
    for row, logits in subject.chunks(backend, empty.ids):
        w, i = divmod(row, WINDOW)
        subject.note(exact, row, logits, int(empty.ids[w, i + 1]))
        kept[row] = log_softmax(logits)
    backend.close()
    codes, best, step = subject.encode(np.array([kept[int(r)] for r in empty.selected]))
    made = dataclasses.replace(empty, nll=exact.nll, top=exact.top, codes=codes, best=best, step=step, about=about)
    off = {"bf16_nll": exact.nll + 1e-3, "bf16_top": exact.top, "bf16_kl": np.full(len(codes), 1e-6)}
    made = dataclasses.replace(made, **off)
    made.save(tmp_path / "good.npz")
    code, report = alone("check", path, tmp_path / "good.npz")
    assert (code, report["ok"], report["target"]) == (0, True, "cpu")
    dataclasses.replace(made, nll=exact.nll + 0.1, bf16_nll=exact.nll + 0.1).save(tmp_path / "bad.npz")
    code, report = alone("check", path, tmp_path / "bad.npz")
    assert (code, report["ok"]) == (1, False) and "nll_rms" in report["arms"]["single"]["failed"]
    code, report = alone("check", path, tmp_path / "absent.npz")
    assert (code, report["schema"], report["error"]) == (2, "plow.error/1", "ConfigError")


@pytest.mark.real
@pytest.mark.oracle
def test_a_bundle_of_a_real_model_is_closer_to_fp32_than_bf16_and_a_blurred_one_is_not(
    demo_smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = subject.make(demo_smollm2, [ROOT / "README.md"], windows=4, window=64, megabytes=5)
    bf16 = distances(made.nll, made.top, made.bf16, np.ones(256, bool), np.ones(len(made.selected), bool))
    assert 1e-4 < bf16["kl_mean"] < 1e-2 and made.codes.nbytes < 5e6
    compile_checkpoint(demo_smollm2, tmp_path / "bundle", Options(max_ctx=128, rows=(1, 8)))
    backend = open_backend(load(tmp_path / "bundle", allow_uncertified=True))
    report = subject.check(backend, made)
    assert report["ok"] and all(a["measured"]["kl_mean"] < bf16["kl_mean"] / 100 for a in report["arms"].values())
    whole = backend.logits
    monkeypatch.setattr(backend, "logits", lambda program, n: whole(program, n) * np.float32(0.9))
    assert "kl_mean" in subject.check(backend, made)["arms"]["batch"]["failed"]
    backend.close()
