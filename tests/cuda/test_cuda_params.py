"""The parameter record that both sides read, and what a stopped kernel's notes say to a person."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from plow.packet.abi import Opcode
from plow.runtime.bundle import Bundle
from plow.runtime.cuda_params import DIAG_NOTES, DIAG_WARPS, PARAMS, WAITS, notes, rows_of, stuck
from plow.runtime.step import StepBatch

SOURCES = Path(__file__).parents[2] / "kernels" / "cuda"


def test_the_record_has_the_offsets_of_the_struct() -> None:
    offsets = {name: PARAMS.fields[name][1] for name in PARAMS.names}
    assert PARAMS.itemsize == 240
    assert [offsets[n] for n in ("packets", "counts", "arena", "counters", "page_table")] == [0, 8, 16, 24, 32]
    assert [offsets[n] for n in ("out_tokens", "diag", "trace", "published_offset", "published_bytes")] == [
        40, 48, 56, 64, 72,
    ]  # fmt: skip
    assert [offsets[n] for n in ("max_packets", "workers", "blocks_per_seq", "n_steps", "n_rows")] == [
        80, 84, 88, 92, 96,
    ]  # fmt: skip
    assert [offsets[n] for n in ("step_base", "flags", "inflight")] == [100, 104, 108]
    assert [offsets[n] for n in ("tokens", "positions", "slots", "sample_index")] == [112, 144, 176, 208]


def test_the_record_names_its_fields_as_the_header_does() -> None:
    struct = re.search(r"struct Params \{(.*?)\n\};", (SOURCES / "params.h").read_text(), re.DOTALL)
    assert struct
    lines = [line.split("//")[0] for line in struct[1].splitlines()]
    fields = [name for line in lines for name in re.findall(r"(\w+)(?:\[MAX_ROWS\])?\s*[,;]", line)]
    assert fields == list(PARAMS.names)


def test_every_wait_of_the_kernel_has_words() -> None:
    enum = re.search(r"enum What[^{]*\{([^}]*)\}", (SOURCES / "worker.cuh").read_text())
    assert enum and len(enum[1].split(",")) == len(WAITS) and sorted(WAITS) == list(range(1, len(WAITS) + 1))
    text = (SOURCES / "params.h").read_text()
    assert f"DIAG_NOTES = {DIAG_NOTES}, DIAG_WARPS = {DIAG_WARPS}" in text


def test_rows_of_a_batch() -> None:
    p = np.zeros((), PARAMS)
    rows_of(p, StepBatch.greedy([7, 8, 9], [4, 5, 6], [1, 1, 2], [1, 2], np.zeros((4, 4), np.int32)))
    assert p["n_rows"] == 3 and p["tokens"].tolist() == [7, 8, 9, 0, 0, 0, 0, 0]
    assert p["positions"][:3].tolist() == [4, 5, 6] and p["slots"][:3].tolist() == [1, 1, 2]
    assert p["sample_index"].tolist() == [-1, 0, 1, -1, -1, -1, -1, -1]


def note(diag: np.ndarray, worker: int, warp: int, what: int, packet: int, step: int, have: int, want: int) -> None:
    """As `waiting` in worker.cuh leaves it."""
    entry = diag[DIAG_NOTES:].reshape(-1, DIAG_WARPS, 2)[worker, warp]
    entry[0] = what | packet << 8 | step << 32
    entry[1] = have | want << 32


@pytest.fixture
def diag(gpu_bundle: Bundle) -> np.ndarray:
    words = np.zeros(DIAG_NOTES + gpu_bundle.packets.header["workers"] * DIAG_WARPS * 2, np.uint64)
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
    error = stuck(gpu_bundle.packets, 0, diag)
    packet = lists[0][attention]
    name = gpu_bundle.packets.nodes[packet["node"]]
    assert error.where == f"T=1 worker 0 packet {packet['seq']} STREAM_ATTENTION {name}" and "attention" in name
    assert "consumer 3 waited for q, k or v (have 20, want 21) in step 4" in error.what
    assert "3 warps wait" in error.what and "loader waits for room in the ring" in error.what
    assert error.exit_code == 1 and error.fix


def test_an_earlier_step_is_the_cause_of_a_later_one(gpu_bundle: Bundle, diag: np.ndarray) -> None:
    note(diag, 0, 0, 7, 1, 5, 0, 0)
    note(diag, 3, 8, 12, 2, 4, 0, 0)
    assert "worker 3" in stuck(gpu_bundle.packets, 0, diag).where


def test_a_stop_without_notes_is_still_an_error(gpu_bundle: Bundle, diag: np.ndarray) -> None:
    assert "nobody left a note" in stuck(gpu_bundle.packets, 0, diag).what
