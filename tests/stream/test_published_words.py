"""published_words against what the numpy interpreter writes, and the culprit that is found with it."""

from __future__ import annotations

import numpy as np
import pytest
from stream_rig import TOKENS, pages, program_of, step

from plow.packet.abi import Opcode
from plow.packet.codec import decode
from plow.packet.published import UNWRITTEN, published_words
from plow.runtime.cuda_stuck import Published, culprit
from plow.runtime.numpy_vm import NumpyBackend


def copies(vm: NumpyBackend) -> Published:
    at, size = vm.bundle.segments["published"]
    return Published(vm.arena[at : at + size].view(np.uint32).copy(), at, 0)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_after_a_step_exactly_these_words_are_written(model, bundle, rows):
    b = bundle(model)
    vm = NumpyBackend(b, poison=True)
    step(vm, TOKENS[:rows], [0] * rows, range(rows))
    record = b.packets.programs[program_of(b, rows)]
    packets = [p for packets in record.lists for p in packets]
    data = copies(vm)
    half = len(data.words) // 2
    written = np.flatnonzero(data.words != UNWRITTEN)
    copy = int(written[0] // half)
    words = np.unique(np.concatenate([published_words(decode(p), rows) for p in packets]))
    assert set((written % half).tolist()) == set(((words - data.start) // 4).tolist()), "one part a row: no partials"
    assert culprit(record, rows, data, copy) is None
    for opcode in (Opcode.STREAM_EMBED, Opcode.STREAM_LINEAR, Opcode.STREAM_ATTENTION, Opcode.STREAM_HEAD):
        of_kind = [p for p in packets if p["opcode"] == opcode]
        p = of_kind[len(of_kind) // 2]
        mine = published_words(decode(p), rows)
        if not len(mine):
            continue
        lost = Published(data.words.copy(), data.start, 0)
        lost.words[(mine[-1] - data.start) // 4 + half * copy] = UNWRITTEN
        found = culprit(record, rows, lost, copy)
        assert found is not None and mine[-1] in published_words(decode(found), rows)
        assert int(found["seq"]) <= int(p["seq"]) and found["node"] == p["node"]
    assert pages(b).size


def test_a_packet_of_rows_that_the_step_lacks_publishes_nothing(bundle):
    record = bundle("llama").packets.programs[program_of(bundle("llama"), 8)]
    for packets in record.lists:
        for p in map(decode, packets):
            if "row" in p.dims:
                assert len(published_words(p, p.dims["row"])) == 0 < len(published_words(p, p.dims["row"] + 1))
