"""The parameter record that both sides read, and what a stopped kernel's notes say to a person."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from plow.packet.abi import Opcode
from plow.runtime.bundle import Bundle
from plow.runtime.cuda_entries import entry_defines, kernel_name
from plow.runtime.cuda_params import JOB, JOB_WORDS, PARAMS, rows_of
from plow.runtime.cuda_stuck import DIAG_NOTES, DIAG_WARPS, DIAG_WORDS, WAITS, notes, stuck
from plow.runtime.step import StepBatch

SOURCES = Path(__file__).parents[2] / "kernels" / "cuda"


def test_the_records_have_the_offsets_of_the_structs() -> None:
    """Offsets by hand from the C rules: pointers are aligned to 8, nothing else is padded."""
    assert PARAMS.itemsize == 80 and JOB.itemsize == 4 * JOB_WORDS == 512
    params = {name: PARAMS.fields[name][1] for name in PARAMS.names}
    assert [params[n] for n in ("posted", "report", "counters", "trace", "workers", "idle_us", "inflight")] == [
        0, 24, 32, 48, 56, 68, 76,
    ]  # fmt: skip
    job = {name: JOB.fields[name][1] for name in JOB.names}
    assert [job[n] // 4 for n in ("n_steps", "arena", "packets", "counts", "page_table", "published", "sampled")] == [
        0, 4, 6, 8, 10, 12, 15,
    ]  # fmt: skip
    assert [job[n] // 4 for n in ("positions", "slots", "tokens", "sample_index", "seed", "out_tokens", "number")] == [
        16, 24, 32, 40, 80, 96, 127,
    ]  # fmt: skip


@pytest.mark.parametrize(("struct", "record"), [("Params", PARAMS), ("Job", JOB)])
def test_the_records_name_their_fields_as_the_header_does(struct: str, record: np.dtype) -> None:
    found = re.search(rf"struct {struct} \{{(.*?)\n\}};", (SOURCES / "params.h").read_text(), re.DOTALL)
    assert found
    lines = [line.split("//")[0] for line in found[1].splitlines()]
    fields = [name for line in lines for name in re.findall(r"(\w+)(?:\[\w+\])?\s*[,;]", line)]
    assert fields == list(record.names)


def test_the_words_of_a_job_have_their_numbers() -> None:
    """enum JobWord of params.h against JOB: what a warp keeps in its lanes."""
    enum = re.search(r"enum JobWord[^{]*\{([^}]*)\}", (SOURCES / "params.h").read_text())
    assert enum
    number, found = -1, {}
    for item in enum[1].replace("\n", " ").split(","):
        name, _, value = (x.strip() for x in item.partition("="))
        number = int(value) if value else number + 1
        found[name.removeprefix("JOB_").lower()] = number
    assert found == {name: JOB.fields[name][1] // 4 for name in found} and len(found) == 14


def test_every_wait_of_the_kernel_has_words() -> None:
    enum = re.search(r"enum What[^{]*\{([^}]*)\}", (SOURCES / "worker.cuh").read_text())
    assert enum and len(enum[1].split(",")) == len(WAITS) and sorted(WAITS) == list(range(1, len(WAITS) + 1))
    text = (SOURCES / "params.h").read_text()
    assert f"DIAG_NOTES = {DIAG_NOTES}, DIAG_WARPS = {DIAG_WARPS}, DIAG_WORDS = {DIAG_WORDS}" in text


def test_rows_of_a_batch() -> None:
    p = np.zeros((), JOB)
    batch = StepBatch.greedy([7, 8, 9], [4, 5, 6], [1, 1, 2], [1, 2], np.zeros((4, 4), np.int32))
    batch.temperature[1], batch.top_k[1], batch.seed[1] = 0.5, 40, (1 << 64) - 1
    rows_of(p, batch)
    assert p["sampled"] == 4 and p["temperature"].tolist()[:3] == [0, 0, 0.5]
    assert p["top_k"][2] == 40 and p["seed"][2] == (1 << 64) - 1 and p["top_p"][:3].tolist() == [0, 1, 1]
    assert p["n_rows"] == 3 and p["tokens"].tolist() == [7, 8, 9, 0, 0, 0, 0, 0]
    assert p["positions"][:3].tolist() == [4, 5, 6] and p["slots"][:3].tolist() == [1, 1, 2]
    assert p["sample_index"].tolist() == [-1, 0, 1, -1, -1, -1, -1, -1]


def note(diag: np.ndarray, worker: int, warp: int, what: int, packet: int, step: int, have: int, want: int) -> None:
    """As `waiting` in worker.cuh leaves it."""
    entry = diag[DIAG_NOTES:].reshape(-1, DIAG_WARPS, DIAG_WORDS)[worker, warp]
    entry[0] = what | packet << 8 | step << 32
    entry[1] = have | want << 32


@pytest.fixture
def diag(gpu_bundle: Bundle) -> np.ndarray:
    words = np.zeros(DIAG_NOTES + gpu_bundle.packets.header["workers"] * DIAG_WARPS * DIAG_WORDS, np.uint64)
    words[0] = 1
    return words


def test_notes_are_decoded(diag: np.ndarray) -> None:
    note(diag, 2, 8, 7, 70000, 3, 5, 0xFFFFFFFF)
    note(diag, 4, 9, 1, 0, 0, 0, 1)
    found = notes(diag)
    assert [(n.worker, n.warp, n.what, n.packet, n.step, n.have, n.want) for n in found] == [
        (2, 8, 7, 70000, 3, 5, 0xFFFFFFFF), (4, 9, 1, 0, 0, 0, 1)]  # fmt: skip
    assert [n.role for n in found] == ["epilogue", "loader"]


def test_the_culprit_is_the_wait_of_the_earliest_packet(gpu_bundle: Bundle, diag: np.ndarray) -> None:
    lists = gpu_bundle.packets.programs[0].lists
    late = len(lists[1]) - 1
    attention = next(i for i, p in enumerate(lists[0]) if p["opcode"] == Opcode.STREAM_ATTENTION)
    note(diag, 1, 2, 7, late, 4, 10, 11)
    note(diag, 0, 3, 9, attention, 4, 20, 21)
    note(diag, 0, 9, 2, attention + 1, 4, 0, 1)
    error = stuck(gpu_bundle.packets, 0, 1, diag)
    packet = lists[0][attention]
    name = gpu_bundle.packets.nodes[packet["node"]]
    assert error.where == f"T=1 worker 0 packet {packet['seq']} STREAM_ATTENTION {name}" and "attention" in name
    assert "consumer 3 waited for q, k or v in step 4" in error.what and "(have 20, want 21)" in error.what
    assert "3 warps wait" in error.what and "1 for room in the ring in" in error.what
    assert error.exit_code == 1 and error.fix


def test_an_earlier_step_is_the_cause_of_a_later_one(gpu_bundle: Bundle, diag: np.ndarray) -> None:
    note(diag, 0, 0, 7, 1, 5, 0, 0)
    note(diag, 3, 8, 12, 2, 4, 0, 0)
    assert "worker 3" in stuck(gpu_bundle.packets, 0, 1, diag).where


def test_a_stop_without_notes_is_still_an_error(gpu_bundle: Bundle, diag: np.ndarray) -> None:
    assert "nobody left a note" in stuck(gpu_bundle.packets, 0, 1, diag).what


def test_a_bundle_builds_what_its_programs_need(gpu_bundle: Bundle) -> None:
    programs = gpu_bundle.packets.programs
    assert [kernel_name(p) for p in programs] == ["plow_interp_c1_d64", *["plow_interp_c8_d64"] * 3]
    assert entry_defines(programs) == ("-DPLOW_ONLY", "-DPLOW_C1_D64", "-DPLOW_C8_D64")
    assert entry_defines(programs[:1]) == ("-DPLOW_ONLY", "-DPLOW_C1_D64")
    text = (SOURCES / "interp.cu").read_text()
    for c, d in ((c, d) for c in (1, 8) for d in (64, 128, 256)):
        assert f"defined(PLOW_C{c}_D{d})\nENTRY({c}, {d})\n" in text
