"""The host side of the GPU backend on a fake device: what it launches, what it refuses, how it fails."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cupy import DriverError, FakeCupy, LeftHanging, at
from gpu_rig import GEMMA3, LLAMA, WORKERS, interpret, logits_of, lowered
from test_cuda_params import note

from plow.errors import BundleError, RequestError, StuckDependency, ToolMissing
from plow.graph.rope import cos_sin
from plow.packet.abi import PACKET
from plow.runtime import cuda_weights
from plow.runtime.backends import open_backend
from plow.runtime.bundle import Bundle
from plow.runtime.cuda import CudaBackend
from plow.runtime.cuda_device import DeviceError
from plow.runtime.cuda_params import JOB, PARAMS
from plow.runtime.engine import Engine
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.request import Request
from plow.runtime.sampler import SamplingParams, sample
from plow.runtime.step import StepBatch

Open = Callable[..., CudaBackend]


def pages(bundle: Bundle) -> np.ndarray:
    limits = bundle.limits
    return np.arange(limits.num_kv_blocks, dtype=np.int32).reshape(limits.max_slots, limits.blocks_per_seq)


def decode(bundle: Bundle, tokens: list[int], position: int = 3) -> StepBatch:
    n = len(tokens)
    return StepBatch.greedy(tokens, [position] * n, range(n), range(n), pages(bundle))


def program(bundle: Bundle, rows: int) -> int:
    return next(i for i, p in enumerate(bundle.packets.programs) if p.rows == rows)


def said(tokens: list[int], position: int, n_steps: int = 1) -> list[list[int]]:
    """Tokens of the fake kernel, [n_steps][rows]."""
    out = []
    for e in range(n_steps):
        tokens = [int(logits_of(t, position + e, 300).argmax()) for t in tokens]
        out.append(tokens)
    return out


def test_a_step_reaches_the_kernel_and_comes_back(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend = open_fake(gpu_bundle)
    batch = decode(gpu_bundle, [5, 6, 7])
    four = program(gpu_bundle, 4)
    assert backend.run(four, batch).tolist() == said([5, 6, 7], 3)
    expected = np.stack([logits_of(t, 3, 300) for t in (5, 6, 7)])
    assert np.array_equal(backend.logits(four, 3), expected)
    p, params, cp = backend.cp.jobs[0], backend.cp.launched[0], backend.cp
    assert cp.cooperative and cp.grids == [(WORKERS,)] and cp.names == ["plow_interp_c8_d64"]
    backend.run(0, decode(gpu_bundle, [5]))
    assert cp.names[1] == "plow_interp_c1_d64", "one column has a build of its own"
    assert params["workers"] == WORKERS and p["n_rows"] == 3 and p["n_steps"] == 1 and params["trace"] == 0
    assert params["inflight"] == backend.inflight and params["flags"] == 0
    assert np.array_equal(at(p["page_table"], np.int32, 8, 4), pages(gpu_bundle))


def test_lists_are_padded_with_zero_records(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend = open_fake(gpu_bundle)
    backend.run(0, decode(gpu_bundle, [5]))
    p, lists = backend.cp.jobs[0], gpu_bundle.packets.programs[0].lists
    longest = max(map(len, lists))
    table = at(p["packets"], PACKET, WORKERS, longest)
    assert at(p["counts"], np.uint32, WORKERS).tolist() == [len(x) for x in lists]
    for row, packets in zip(table, lists, strict=True):
        assert row[: len(packets)].tobytes() == packets.tobytes() and not any(row[len(packets) :].tobytes())


def test_copies_alternate_by_program_and_steps_are_counted_over_all(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend = open_fake(gpu_bundle)
    assert backend.run(0, decode(gpu_bundle, [5]), 3).tolist() == said([5], 3, 3)
    backend.run(program(gpu_bundle, 2), decode(gpu_bundle, [5, 6]))
    backend.run(0, decode(gpu_bundle, [5]))
    assert [(int(j["step_base"]), int(j["parity"])) for j in backend.cp.jobs] == [(0, 0), (3, 0), (4, 1)]
    assert len({int(p["counters"]) for p in backend.cp.launched}) == 1


def test_the_count_of_steps_wraps_as_the_counters_do(gpu_bundle: Bundle, open_fake: Open) -> None:
    def ignore(cp: FakeCupy, params: np.ndarray, job: np.ndarray) -> None:
        at(job["out_tokens"], np.int32, 1, 8)[:] = 1

    backend = open_fake(gpu_bundle, ignore)
    backend.resident._steps = (1 << 32) + 5
    backend.run(0, decode(gpu_bundle, [5]))
    assert backend.cp.jobs[-1]["step_base"] == 5


def test_a_job_that_comes_as_the_kernel_leaves_is_taken_by_the_next(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend = open_fake(gpu_bundle, slow=2)
    assert backend.run(0, decode(gpu_bundle, [5]), 2).tolist() == said([5], 3, 2)
    assert [int(p["launch"]) for p in backend.cp.launched] == [1, 2, 3] and len(backend.cp.jobs) == 1
    for _ in range(20):  # once round the ring and more
        assert backend.run(0, decode(gpu_bundle, [6])).tolist() == said([6], 3)
    assert [int(p["first_job"]) for p in backend.cp.launched] == [0, 0, 0, *range(1, 21)]


def test_two_models_share_one_interpreter(gpu_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same build, other packets and weights: one resident kernel, whose jobs name the program."""
    other = lowered(tmp_path, GEMMA3)
    bundles = [dataclasses.replace(b, manifest={**b.manifest, "interpreter": {
        **b.manifest["interpreter"], "sha256": "5" * 64}}) for b in (gpu_bundle, other)]  # fmt: skip

    def launch(cp: FakeCupy, params: np.ndarray, job: np.ndarray) -> None:
        at(job["out_tokens"], np.int32, 1, 8)[0, 0] = int(job["arena"]) % 251

    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(launch))
    one, two = (CudaBackend(b) for b in bundles)
    assert one.resident is two.resident and one._kernels[0] is two._kernels[0]
    for backend in (one, two, one):
        assert backend.run(0, decode(backend.bundle, [5]))[0, 0] == backend.device_arena.data.ptr % 251
    assert [int(j["step_base"]) for j in one.cp.jobs] == [0, 1, 2]
    assert [int(j["parity"]) for j in one.cp.jobs] == [0, 0, 1]


def test_bundles_for_other_numbers_of_workers_share_nothing(
    gpu_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same build with another grid: a launch has the workers of its own program."""
    few = lowered(tmp_path, LLAMA, workers=3)
    bundles = [dataclasses.replace(b, manifest={**b.manifest, "interpreter": {
        **b.manifest["interpreter"], "sha256": "5" * 64}}) for b in (gpu_bundle, few)]  # fmt: skip
    runs = {int(b.packets.header["workers"]): interpret(b) for b in bundles}
    cp = FakeCupy(lambda cp, params, job: runs[int(params["workers"])](cp, params, job))
    monkeypatch.setitem(sys.modules, "cupy", cp)
    one, two = (CudaBackend(b) for b in bundles)
    for backend in (one, two):
        assert backend.run(0, decode(backend.bundle, [5])).tolist() == said([5], 3)
    assert cp.grids == [(WORKERS,), (3,)]


def test_more_steps_than_one_job_holds(gpu_bundle: Bundle, open_fake: Open, monkeypatch: Any) -> None:
    monkeypatch.setattr("plow.runtime.cuda.MAX_STEPS", 2)
    assert open_fake(gpu_bundle).run(0, decode(gpu_bundle, [5]), 9).tolist() == said([5], 3, 9)


def test_the_page_table_is_uploaded_when_it_changes(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend = open_fake(gpu_bundle)
    seen: list[np.ndarray] = []
    real = type(backend._page_table).set
    backend._page_table.__class__ = type("Spy", (type(backend._page_table),), {
        "set": lambda self, values, stream=None: (seen.append(values), real(self, values))[1]})  # fmt: skip
    batch = decode(gpu_bundle, [5])
    backend.run(0, batch)
    backend.run(0, batch)
    batch.page_table[7, 3] = -1  # the engine's table changes in place
    backend.run(0, batch)
    assert len(seen) == 2 and seen[1][7, 3] == 0, "no block is block 0: nobody reads it"


def test_sampling_parameters_reach_their_rows(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend = open_fake(gpu_bundle)
    batch = decode(gpu_bundle, [5, 6])
    batch.temperature[1], batch.top_k[1], batch.seed[1] = 0.9, 50, 11
    picked = backend.run(program(gpu_bundle, 2), batch, 3)
    tokens, expected = [5, 6], []
    for e in range(3):
        a, b = (logits_of(t, 3 + e, 300) for t in tokens)
        tokens = [int(a.argmax()), sample(b, float(np.float32(0.9)), 50, 1.0, 0.0, 11, 3 + e)]
        expected.append(tokens)
    assert picked.tolist() == expected and picked[:, 1].tolist() != [s[1] for s in said([5, 6], 3, 3)]
    assert [int(j["n_steps"]) for j in backend.cp.jobs] == [3] and backend.cp.jobs[0]["sampled"] == 2
    assert batch.tokens.tolist() == [5, 6] and batch.positions.tolist() == [3, 3], "the caller's batch is not changed"


def test_a_prompt_chunk_samples_its_last_row_or_none(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend, eight = open_fake(gpu_bundle), program(gpu_bundle, 8)
    chunk = StepBatch.greedy(range(8), range(8), [2] * 8, [7], pages(gpu_bundle))
    assert backend.run(eight, chunk).tolist() == [[int(logits_of(7, 7, 300).argmax())]]
    assert np.array_equal(backend.logits(eight, 1)[0], logits_of(7, 7, 300))
    silent = dataclasses.replace(chunk, **{f: getattr(chunk, f)[:0] for f in (
        "sample_rows", "temperature", "top_k", "top_p", "min_p", "seed")})  # fmt: skip
    assert backend.run(eight, silent).shape == (1, 0)
    with pytest.raises(RequestError, match="no logits of 1 samples"):
        backend.logits(eight, 1)


def test_logits_of_another_program_are_refused(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend = open_fake(gpu_bundle)
    with pytest.raises(RequestError, match="run that program first"):
        backend.logits(0, 1)
    backend.run(0, decode(gpu_bundle, [5]))
    with pytest.raises(RequestError, match="program 1"):
        backend.logits(1, 1)


def test_diagnosis_times_and_traces(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend = open_fake(gpu_bundle)
    backend.flags, backend.inflight = 3, 6
    assert backend.time_steps(0, decode(gpu_bundle, [5]), 24) == pytest.approx(0.5)
    assert [int(j["n_steps"]) for j in backend.cp.jobs] == [5, 24]
    assert all(p["flags"] == 3 and p["inflight"] == 6 for p in backend.cp.launched)
    longest = max(map(len, gpu_bundle.packets.programs[0].lists))
    assert backend.trace(0, decode(gpu_bundle, [5])).shape == (WORKERS, longest, 4)
    assert backend.cp.launched[-1]["trace"] != 0


@pytest.mark.parametrize("call", ["run", "time_steps", "trace"])
def test_no_unchecked_index_reaches_the_kernel(gpu_bundle: Bundle, open_fake: Open, call: str) -> None:
    backend = open_fake(gpu_bundle)
    run = getattr(backend, call)
    bad_ones = [([300], 3), ([5], 64), ([5], 62), ([1, 2], 3)]
    for bad in (decode(gpu_bundle, tokens, position) for tokens, position in bad_ones):
        with pytest.raises(RequestError):
            run(0, bad, 8)
    for index in (-1, 99):
        with pytest.raises(RequestError, match=f"no program {index}"):
            run(index, decode(gpu_bundle, [5]), 1)
    assert backend.cp.launched == []


def test_the_engine_serves_through_it(gpu_bundle: Bundle, open_fake: Open) -> None:
    engine = Engine(open_fake(gpu_bundle), steps_per_call=4)
    prompt = list(range(20))
    engine.add(Request(prompt, max_tokens=6))
    engine.add(Request([9], SamplingParams(temperature=0.5, seed=3), max_tokens=6))
    tokens: dict[int, list[int]] = {0: [], 1: []}
    while engine.has_work:
        for event in engine.step():
            tokens[event.request].append(event.token)
    first = int(logits_of(19, 19, 300).argmax())
    assert tokens[0] == [first, *(s[0] for s in said([first], 20, 5))] and len(tokens[1]) == 6


# -- what does not fit -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("device", "what"),
    [
        ({"capability": "100"}, "compute capability 100, the bundle wants 90"),
        ({"sms": WORKERS - 1}, f"wants {WORKERS} SMs, the device has {WORKERS - 1}"),
        ({"free": 1000}, "the arena needs .* GB are free"),
        ({"blocks": 0}, f"{WORKERS} workers of plow_interp_c1_d64 cannot be resident together"),
        ({"kernels": ("plow_interp_c1_d64",)}, "does not take plow_interp_c8_d64: CUDA_ERROR_NOT_FOUND"),
    ],
)
def test_a_device_that_does_not_fit_is_refused(
    gpu_bundle: Bundle, open_fake: Open, device: dict[str, Any], what: str
) -> None:
    with pytest.raises(DeviceError, match=what):
        open_fake(gpu_bundle, **device)
    assert sys.modules["cupy"].launched == []


@pytest.mark.parametrize(
    ("announced", "what"),
    [((384, 1000, PARAMS.itemsize, JOB.itemsize, 99), "ABI 99"),
     ((384, 1000, 232, 512, 2), f"232 and 512 bytes of param.*{PARAMS.itemsize} and {JOB.itemsize}")],
)
def test_an_interpreter_of_another_shape_is_refused(
    gpu_bundle: Bundle, open_fake: Open, announced: tuple[int, ...], what: str
) -> None:
    with pytest.raises(BundleError, match=what):
        open_fake(gpu_bundle, announced=announced)


def test_a_manifest_without_an_isa_is_refused(gpu_bundle: Bundle, open_fake: Open) -> None:
    manifest = {**gpu_bundle.manifest, "interpreter": {"file": "interp.cubin"}}
    with pytest.raises(BundleError, match="isa is None"):
        open_fake(dataclasses.replace(gpu_bundle, manifest=manifest))


@pytest.mark.parametrize("value", [None, "x", 64, -64])
def test_published_data_that_do_not_fit_their_segment_are_refused(
    gpu_bundle: Bundle, open_fake: Open, value: object
) -> None:
    header = {**gpu_bundle.packets.header, "published_bytes": value}
    packets = dataclasses.replace(gpu_bundle.packets, header=header)
    with pytest.raises(BundleError, match="published_bytes is"):
        open_fake(dataclasses.replace(gpu_bundle, packets=packets))


def test_without_cupy_the_fix_is_named(gpu_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ToolMissing, match=r"pip install plow\[cuda\]"):
        CudaBackend(gpu_bundle)


# -- failures ----------------------------------------------------------------------------------------------------------
def test_a_stuck_launch_names_the_packet_and_ends_the_backend(gpu_bundle: Bundle, open_fake: Open) -> None:
    def stop(cp: FakeCupy, p: np.ndarray, job: np.ndarray) -> None:
        diag = at(p["diag"], np.uint64, 16 + WORKERS * 12 * 4)
        assert not diag.any(), "notes of an earlier launch are gone"
        diag[0] = 1
        note(diag, 2, 8, 7, 1, 0, 0, 1)
        raise LeftHanging

    backend = open_fake(gpu_bundle, stop)
    with pytest.raises(StuckDependency, match="T=1 worker 2 packet") as e:
        backend.run(0, decode(gpu_bundle, [5]))
    assert "epilogue waited for an activation vector" in e.value.what and e.value.exit_code == 1
    for call in (lambda: backend.run(0, decode(gpu_bundle, [5])), lambda: backend.arena):
        with pytest.raises(DeviceError, match=r"runs nothing any more.*worker 2 packet.*recover it"):
            call()
    assert len(backend.cp.launched) == 1
    backend.close()
    assert backend.cp.freed == 1, "the context is whole"


def test_after_a_stop_the_backend_recovers(gpu_bundle: Bundle, open_fake: Open) -> None:
    good, broken = [interpret(gpu_bundle)], [False]

    def launch(cp: FakeCupy, p: np.ndarray, job: np.ndarray) -> None:
        if broken[0]:
            at(p["diag"], np.uint64, 1)[0] = 1
            at(int(job["arena"]) + gpu_bundle.segments["published"][0], np.uint8, 64)[:] = 3
            at(p["counters"], np.uint32, 1)[0] = 7
            raise LeftHanging
        assert at(p["counters"], np.uint32, 1)[0] == 0
        good[0](cp, p, job)

    backend = open_fake(gpu_bundle, launch)
    backend.run(0, decode(gpu_bundle, [5]))
    broken[0] = True
    with pytest.raises(StuckDependency):
        backend.run(0, decode(gpu_bundle, [5]))
    broken[0], good[0] = False, interpret(gpu_bundle)
    assert backend.recover() and backend.recover()
    backend._programs[0].steps = 0  # the fake starts to count anew
    assert backend.run(0, decode(gpu_bundle, [5])).tolist() == said([5], 3)


def test_a_stop_leaves_the_other_models_of_the_device_good(gpu_bundle: Bundle, open_fake: Open) -> None:
    """Before the failed backend has recovered: the counters that they share are those of a fresh start."""
    seen: list[tuple[int, int]] = []

    def launch(cp: FakeCupy, p: np.ndarray, job: np.ndarray) -> None:
        counter = at(p["counters"], np.uint32, 1)
        seen.append((int(job["step_base"]), int(counter[0])))
        counter[0] += 3  # of WORKERS
        if len(seen) == 1:
            at(p["diag"], np.uint64, 1)[0] = 1
            raise LeftHanging
        at(job["out_tokens"], np.int32, 1, 8)[:] = 1

    backend, beside = open_fake(gpu_bundle, launch), CudaBackend(gpu_bundle)
    assert beside.resident is backend.resident
    with pytest.raises(StuckDependency):
        backend.run(0, decode(gpu_bundle, [5]))
    beside.run(0, decode(gpu_bundle, [5]))
    assert seen == [(0, 0), (0, 0)]


def test_a_launch_that_fails_without_notes_is_a_device_error(gpu_bundle: Bundle, open_fake: Open) -> None:
    def fail(cp: FakeCupy, p: np.ndarray, job: np.ndarray) -> None:
        raise DriverError("CUDA_ERROR_ILLEGAL_ADDRESS:\n an illegal access")

    backend = open_fake(gpu_bundle, fail)
    with pytest.raises(DeviceError, match="the device failed: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal access") as e:
        backend.run(0, decode(gpu_bundle, [5]))
    assert e.value.exit_code == 1 and backend.lost
    with pytest.raises(DeviceError, match="start a fresh process"):
        backend.recover()
    backend.close()
    assert backend.cp.freed == 0, "a lost context is not asked for its memory"


def test_an_allocation_that_does_not_fit_does_not_end_the_backend(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend = open_fake(gpu_bundle)
    backend.run(0, decode(gpu_bundle, [5]))
    backend.cp.full = True
    with pytest.raises(DeviceError, match="out of device memory"):
        backend.trace(0, decode(gpu_bundle, [5]))
    backend.cp.full = False
    assert backend.run(0, decode(gpu_bundle, [5])).tolist() == said([5], 3)


def test_a_closed_backend_gives_memory_back_and_says_so(gpu_bundle: Bundle, open_fake: Open) -> None:
    backend = open_fake(gpu_bundle)
    backend.close()
    backend.close()
    assert backend.cp.freed == 1
    with pytest.raises(DeviceError, match="closed"):
        backend.run(0, decode(gpu_bundle, [5]))


# -- weights -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk", [1 << 20, 1000])
def test_the_image_is_uploaded_whole(
    gpu_bundle: Bundle, open_fake: Open, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_weights, "CHUNK", chunk)
    arena, image = open_fake(gpu_bundle).arena, gpu_bundle.weights()
    assert len(arena) == gpu_bundle.arena_bytes and np.array_equal(arena[: len(image)], image)
    kv, size = gpu_bundle.segments["kv"]
    assert not arena[kv : kv + size].any(), "keys and values are finite from the start"


def test_a_shape_bundle_draws_its_weights(tmp_path: Path, open_fake: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = lowered(tmp_path, LLAMA, synthetic=True)
    monkeypatch.setattr(cuda_weights, "CHUNK", 4096)
    arena = open_fake(bundle).arena
    assert np.array_equal(arena, open_fake(bundle).arena), "a seed is a set of weights"
    seen = set()
    for r in bundle.manifest["weights"]["regions"]:
        part = arena[r["offset"] : r["offset"] + r["bytes"]]
        seen.add(r["layout"])
        if r["layout"] == "rope":
            p = json.loads(r["sources"][0])
            cos, sin = cos_sin(np.arange(64), p["theta"], p["rotary_dim"], p["scaling"])
            assert np.array_equal(part.view(np.float32).reshape(64, -1), np.concatenate([cos, sin], axis=1))
        elif r["layout"] == "vector":
            values = part.view(np.float32)
            assert (values > 0).all() and abs(values.mean() - 1) < 0.1 and 0.05 < values.std() < 0.15
        else:
            values = (part.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
            assert np.isfinite(values).all() and values.std() == pytest.approx(0.02, rel=0.05)
    assert seen == {"tiles", "gated_tiles", "vector", "rope"}


def test_bf16_bits_are_rounded_to_nearest_even() -> None:
    import ml_dtypes

    values = np.concatenate([np.random.default_rng(0).standard_normal(4096).astype(np.float32),
                             np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0], np.float32)])  # fmt: skip
    assert np.array_equal(cuda_weights.bf16_bits(np, values), values.astype(ml_dtypes.bfloat16).view(np.uint16))


def test_an_unknown_layout_is_refused(tmp_path: Path, open_fake: Open) -> None:
    bundle = lowered(tmp_path, LLAMA, synthetic=True)
    bundle.manifest["weights"]["regions"][0]["layout"] = "units"
    with pytest.raises(BundleError, match="'units' cannot be drawn"):
        open_fake(bundle)


# -- which backend -----------------------------------------------------------------------------------------------------
def test_the_target_chooses_the_backend_and_nothing_falls_back(
    gpu_bundle: Bundle, open_fake: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(interpret(gpu_bundle)))
    assert isinstance(open_backend(gpu_bundle), CudaBackend)
    assert isinstance(open_backend(gpu_bundle, "numpy"), NumpyBackend)
    with pytest.raises(RequestError, match=r"backend cpu does not run a bundle for 'h200'.*--backend cuda"):
        open_backend(gpu_bundle, "cpu")
    header = {**gpu_bundle.packets.header, "target": "cpu"}
    other = dataclasses.replace(gpu_bundle, packets=dataclasses.replace(gpu_bundle.packets, header=header))
    with pytest.raises(RequestError, match=r"backend cuda does not run a bundle for 'cpu'.*--gpu h200"):
        open_backend(other, "cuda")
    with pytest.raises(RequestError, match="unknown backend 'tpu'"):
        open_backend(gpu_bundle, "tpu")
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ToolMissing):
        open_backend(gpu_bundle)
