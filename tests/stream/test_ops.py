"""Each STREAM opcode, as hand-made packets on real bytes, against its formula written out directly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from op_rig import (
    BLOCKS,
    CONST,
    CONSTANTS,
    COPY,
    PLAIN,
    PUBLISHED,
    SLOTS,
    ULP,
    UNWRITTEN,
    Memory,
    Rig,
    bits,
    floats,
    found_vec,
    limits,
)
from stream_layouts import (
    pack_ssq,
    unpack_state,
)

from plow.errors import StuckDependency
from plow.packet.abi import STEP_COUNTER, Epilogue, Flag, Opcode
from plow.packet.codec import Packet, encode
from plow.packet.container import PacketFile, ProgramRecord
from plow.packet.layouts import pack_gated_tiles, pack_tiles
from plow.runtime.bundle import Bundle
from plow.runtime.numpy_published import Race
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.sampler import sample
from plow.runtime.step import Limits, StepBatch


def check_out(rig: Rig, at: dict[str, int], x: np.ndarray, next_norm: np.ndarray, cols: int) -> None:
    """STREAM_OUT of x [rows, k]."""
    n, k = x.shape
    state = rig.arena[at["state"] : at["state"] + 32 * k].view(np.float32)
    np.testing.assert_allclose(unpack_state(state)[:n], x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found_vec(rig, at["y"], k, cols), x * next_norm, rtol=ULP, atol=1e-5)
    ssq = rig.published(at["next_ssq"], (k // 16, cols), np.arange(cols) < n).view(np.float32)[:, :n]
    np.testing.assert_allclose(ssq, pack_ssq(x), rtol=1e-4)


def outputs(rig: Rig, k: int, cols: int, next_norm: np.ndarray) -> dict[str, int]:
    return {"state": rig.plain(8 * k), "y": rig.hole(k * cols // 2), "next_norm": rig.const(next_norm),
            "next_ssq": rig.hole(k // 16 * cols)}


SHAPES = pytest.mark.parametrize(("cols", "n", "step"), [(1, 1, 1), (8, 1, 2), (8, 3, 1), (8, 8, 2)])


def norm_factor(x: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(np.mean(np.square(x), axis=1, keepdims=True) + 1e-5)


@SHAPES
def test_embed(cols, n, step):
    rig = Rig(range(n), tokens=[(5 * i + 17) % 48 for i in range(n)], step=step)
    table, next_norm = floats(48, 64), floats(64, seed=1)
    at = outputs(rig, 64, cols, next_norm)
    operands = {"table": rig.const(pack_tiles(bits(table))), "tokens": rig.hole(cols), **at}
    for tile in (2, 0):  # two packets of two tiles
        dims = {"tile0": tile, "tile1": tile + 2, "k": 64, "cols": cols, "vocab": 48}
        assert rig.run(Packet(Opcode.STREAM_EMBED, operands, dims, {"scale": 3.0})) == []
    check_out(rig, at, table[rig.state.batch.tokens] * 3, next_norm, cols)


def test_a_later_step_embeds_the_tokens_that_the_step_before_published():
    rig = Rig(range(3), tokens=[1, 2, 3], first=False)
    table, at = floats(48, 32), rig.hole(8)
    y = rig.hole(32 * 4)
    packet = Packet(Opcode.STREAM_EMBED, {"table": rig.const(pack_tiles(bits(table))), "tokens": at, "y": y},
                    {"tile0": 0, "tile1": 2, "k": 32, "cols": 8, "vocab": 48}, {"scale": 1.0})
    rig.store(at + rig.other, np.array([47, 5, 0xFFFFFFFF, 9, 9, 9, 9, 9], np.uint32))
    assert rig.run(packet) == ["tokens"], "one of the three is not there"
    rig.store(at + rig.other, np.array([47, 5, 16, *[0xFFFFFFFF] * 5], np.uint32))
    assert rig.run(packet) == []
    assert (found_vec(rig, y, 32, 8) == table[[47, 5, 16]]).all()


@SHAPES
@pytest.mark.parametrize("normed", [False, True])
def test_linear_with_residual_state_and_next_norm(cols, n, step, normed):
    rig = Rig(range(n), step=step)
    x, w, old, next_norm = floats(n, 96), floats(64, 96) / 8, floats(n, 64, seed=3), floats(64, seed=1)
    at = outputs(rig, 64, cols, next_norm)
    operands = {"x": rig.vec(x, cols), "weight": rig.const(pack_tiles(bits(w))), "residual": rig.own(old), **at}
    if normed:
        operands["ssq"] = rig.ssq(2 * x, cols)  # of the input before its norm weight
    for tile0, tile1 in ((3, 4), (0, 3)):
        dims = {"tile0": tile0, "tile1": tile1, "k": 96, "cols": cols, "n": 64}
        assert rig.run(Packet(Opcode.STREAM_LINEAR, operands, dims, {"eps": 1e-5})) == []
    factor = norm_factor(2 * x) if normed else 1
    check_out(rig, at, (x @ w.T) * factor + old, next_norm, cols)


def test_linear_may_write_its_residual_in_place():
    rig = Rig(range(2))
    x, w, old = floats(2, 32), floats(32, 32), floats(2, 32, seed=3)
    state = rig.own(old)
    operands = {"x": rig.vec(x, 8), "weight": rig.const(pack_tiles(bits(w))), "residual": state, "state": state}
    dims = {"tile0": 0, "tile1": 2, "k": 32, "cols": 8, "n": 32}
    assert rig.run(Packet(Opcode.STREAM_LINEAR, operands, dims)) == []
    found = unpack_state(rig.arena[state : state + 32 * 32].view(np.float32))[:2]
    np.testing.assert_allclose(found, x @ w.T + old, rtol=1e-4, atol=1e-5)


@SHAPES
@pytest.mark.parametrize("epilogue", [Epilogue.GATED_SILU, Epilogue.GATED_GELU_TANH])
def test_gated_linear(cols, n, step, epilogue):
    rig = Rig(range(n), step=step)
    x, gate, up = floats(n, 64), floats(32, 64, seed=1) / 4, floats(32, 64, seed=2) / 4
    y = rig.hole(16 * cols)
    operands = {"x": rig.vec(x, cols), "weight": rig.const(pack_gated_tiles(bits(gate), bits(up))), "y": y,
                "ssq": rig.ssq(x, cols)}
    for tile0, tile1 in ((0, 1), (1, 4)):
        dims = {"tile0": tile0, "tile1": tile1, "k": 64, "cols": cols, "n": 32}
        assert rig.run(Packet(Opcode.STREAM_LINEAR, operands, dims, {"eps": 1e-5}, epilogue=epilogue)) == []
    g, u = (x @ w.T * norm_factor(x) for w in (gate, up))
    if epilogue == Epilogue.GATED_SILU:
        act = g / (1 + np.exp(-g))
    else:
        act = g / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))
    np.testing.assert_allclose(found_vec(rig, y, 32, cols), act * u, rtol=ULP, atol=1e-4)


@SHAPES
def test_linear_to_f32_rows(cols, n, step):
    rig = Rig(range(n), step=step)
    x, w = floats(n, 64), floats(48, 64)
    y = rig.hole(cols * 48)
    operands = {"x": rig.vec(x, cols), "weight": rig.const(pack_tiles(bits(w))), "y": y}
    for tile in (1, 0, 2):
        dims = {"tile0": tile, "tile1": tile + 1, "k": 64, "cols": cols, "n": 48, "y_stride": 48}
        assert rig.run(Packet(Opcode.STREAM_LINEAR, operands, dims, flags=Flag.F32_ROWS)) == []
    rows = rig.published(y, (cols, 48), np.arange(cols)[:, None] < n).view(np.float32)[:n]
    np.testing.assert_allclose(rows, x @ w.T, rtol=1e-4, atol=1e-4)


@SHAPES
@pytest.mark.parametrize("residual", [False, True])
def test_norm(cols, n, step, residual):
    rig = Rig(range(n), step=step)
    x, weight, old, next_norm = floats(n, 64), floats(64), floats(n, 64, seed=3), floats(64, seed=1)
    at = outputs(rig, 64, cols, next_norm)
    operands = {"x": rig.own(x), "ssq": rig.ssq(x, cols), "weight": rig.const(weight), **at}
    operands |= {"residual": rig.own(old)} if residual else {}
    for tile in (2, 0):
        dims = {"tile0": tile, "tile1": tile + 2, "k": 64, "cols": cols}
        assert rig.run(Packet(Opcode.STREAM_NORM, operands, dims, {"eps": 1e-5})) == []
    check_out(rig, at, x * norm_factor(x) * weight + (old if residual else 0), next_norm, cols)


def key(logit: float, n: int) -> int:
    u = int(np.float32(logit).view(np.uint32))
    return (u ^ (0xFFFFFFFF if u >> 31 else 0x80000000)) << 32 | (0xFFFFFFFF - n)


@SHAPES
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_head_and_sample(cols, n, step, softcap):
    """48 rows of weights, 40 valid ids; equal logits: the first one wins."""
    rig = Rig(range(n), step=step, vocab=40)
    x, w = floats(n, 64), floats(48, 64) / 4
    w[40:] = 64 * w[0]
    w[39] = w[3]
    logits, keys, tokens = rig.plain(cols * 48), rig.hole(cols * 2 * 2), rig.hole(cols)
    operands = {"x": rig.vec(x, cols), "weight": rig.const(pack_tiles(bits(w))), "ssq": rig.ssq(x, cols),
                "logits": logits, "keys": keys}
    packets = [Packet(Opcode.STREAM_HEAD, operands, {
        "tile0": a, "tile1": b, "k": 64, "cols": cols, "n": 40, "logits_stride": 48, "key": i, "keys": 2,
    }, {"eps": 1e-5, "softcap": softcap}) for i, (a, b) in enumerate(((0, 1), (1, 3)))]
    samples = [Packet(Opcode.STREAM_SAMPLE, {"keys": keys, "logits": logits, "tokens": tokens}, {
        "row": row, "keys": 2, "vocab": 40, "logits_stride": 48, "cols": cols}) for row in range(cols)]
    assert rig.run(packets[0], *samples) == ["keys"] * n, "rows without a column do nothing"
    assert rig.run(packets[1]) == []
    found = rig.arena[logits : logits + 4 * cols * 48].view(np.float32).reshape(cols, 48)
    want = x @ w.T * norm_factor(x)
    want = np.tanh(want / softcap) * softcap if softcap else want
    np.testing.assert_allclose(found[:n], want, rtol=1e-4, atol=1e-5)
    assert not found[n:].any()
    published, armed = (rig.words(keys, cols, 4, other=o).view(np.uint64) for o in (False, True))
    assert (published[n:] == ~np.uint64(0)).all() and (armed == ~np.uint64(0)).all()
    for t in range(n):
        parts = [found[t, :16], found[t, 16:40]]
        want_keys = [max(key(v, 16 * i + j) for j, v in enumerate(part)) for i, part in enumerate(parts)]
        assert published[t].tolist() == want_keys
    assert rig.run(*samples) == []
    picked = found[:n, :40].argmax(axis=1)
    assert rig.state.picked.tolist() == picked.tolist()
    assert rig.words(tokens, cols)[:n].tolist() == picked.tolist()
    assert (rig.words(tokens, cols)[n:] == UNWRITTEN).all()
    assert (rig.words(tokens, cols, other=True)[:n] == UNWRITTEN).all()


def test_a_key_with_one_word_of_ones_is_written():
    rig = Rig([0])
    keys = rig.given(np.array([0x80000000_FFFFFFFF], np.uint64))  # id 0 with the logit 0
    packet = Packet(Opcode.STREAM_SAMPLE, {"keys": keys, "logits": rig.plain(48), "tokens": rig.hole(1)},
                    {"row": 0, "keys": 1, "vocab": 40, "logits_stride": 48, "cols": 1})
    assert rig.run(packet) == [] and rig.state.picked.tolist() == [0]


def test_sample_with_a_temperature_draws_from_the_logits():
    rig = Rig([4, 9], slots=[0, 1])
    b, logits = rig.state.batch, floats(8, 48)
    b.temperature[1], b.seed[1], b.top_k[1] = 3.0, 77, 20
    at = rig.reserve("plain", logits.nbytes)
    rig.store(at, logits)
    rig.state.owner[at // 4 : at // 4 + 2 * 48] = 1
    keys = rig.given(np.array([[key(1, 6)], [key(1, 7)]], np.uint64))
    tokens = rig.hole(8)
    for row in (0, 1):
        rig.run(Packet(Opcode.STREAM_SAMPLE, {"keys": keys, "logits": at, "tokens": tokens},
                       {"row": row, "keys": 1, "vocab": 40, "logits_stride": 48, "cols": 8}))
    want = [6, sample(logits[1, :40], 3.0, 20, 1.0, 0.0, 77, 9)]
    assert want[1] != 7 and rig.state.picked.tolist() == want and rig.words(tokens, 8)[:2].tolist() == want


# -- polling and whole programs ----------------------------------------------------------------------------------------
def test_a_packet_waits_for_every_word_of_the_active_columns_and_for_no_other():
    x, w = floats(3, 64), floats(32, 64)
    dims = {"tile0": 0, "tile1": 2, "k": 64, "cols": 8, "n": 32}
    for operand, words in (("x", (2, 8, 16)), ("ssq", (4, 8))):
        for column in range(8):
            rig = Rig(range(3))
            operands = {"x": rig.vec(x, 8), "ssq": rig.ssq(x, 8), "weight": rig.const(pack_tiles(bits(w)))}
            view = rig.arena[operands[operand] + rig.now :][: 4 * math.prod(words)].view(np.uint32).reshape(words)
            view[(-1, column, -1)[: len(words)]] = UNWRITTEN
            left = rig.run(Packet(Opcode.STREAM_LINEAR, operands | {"y": rig.hole(128)}, dims, {"eps": 1e-5}))
            assert left == ([operand] if column < 3 else []), (operand, column)


def test_a_second_store_to_a_word_is_an_error():
    rig = Rig([0, 1])
    packet = Packet(Opcode.STREAM_LINEAR, {
        "x": rig.vec(floats(2, 32), 8), "weight": rig.const(pack_tiles(bits(floats(32, 32)))), "y": rig.hole(128),
    }, {"tile0": 0, "tile1": 2, "k": 32, "cols": 8, "n": 32})
    assert rig.run(packet) == []
    with pytest.raises(Race, match="written twice"):
        rig.run(packet)


def handmade(tmp_path: Any, drop: int = -1) -> tuple[NumpyBackend, np.ndarray]:
    """Worker 0: embed, head of ids 0..16; worker 1: head of ids 16..32, sample; worker 2: NOP. Also [32, 32] logits."""
    m = Memory()
    table, w = floats(32, 32), floats(32, 32, seed=1)
    x, tokens, keys = (m.reserve("published", size) for size in (64 * 8, 64, 8 * 2 * 8))
    logits = m.reserve("plain", 4 * 8 * 32)
    weight = m.const(pack_tiles(bits(w)))
    tiles = {"k": 32, "cols": 8}
    head = {"n": 32, "logits_stride": 32, "keys": 2} | tiles
    step = {"waits": [(STEP_COUNTER, 3)]}
    lists = [
        [Packet(Opcode.STREAM_EMBED, {"table": m.const(pack_tiles(bits(table))), "tokens": tokens, "y": x},
                {"tile0": 0, "tile1": 2, "vocab": 32} | tiles, {"scale": 1.0}, **step),
         Packet(Opcode.STREAM_HEAD, {"x": x, "weight": weight, "logits": logits, "keys": keys},
                {"tile0": 0, "tile1": 1, "key": 0} | head)],
        [Packet(Opcode.STREAM_HEAD, {"x": x, "weight": weight, "logits": logits, "keys": keys},
                {"tile0": 1, "tile1": 2, "key": 1} | head, **step),
         *(Packet(Opcode.STREAM_SAMPLE, {"keys": keys, "logits": logits, "tokens": tokens},
                  {"row": t, "keys": 2, "vocab": 32, "logits_stride": 32, "cols": 8}) for t in range(3))],
        [Packet(Opcode.NOP, **step)],
    ]  # fmt: skip
    for worker, packets in enumerate(lists):
        packets[-1].signals = [STEP_COUNTER]
        for i, p in enumerate(packets):
            p.worker, p.seq = worker, 10 * i + worker
    if drop >= 0:
        lists[0] = [Packet(Opcode.NOP, **step), lists[0][1]]
        lists[0][1].signals = [STEP_COUNTER]
    record = ProgramRecord(8, 8, [3], [encode(p) for p in lists], logits, 32)
    segments = {"activations": [0, PLAIN], "published": [PUBLISHED, 2 * COPY], "weights": [CONSTANTS, CONST]}
    header = {"target": "h200", "workers": 3, "nodes": ["node0"], "limits": limits(32), "published_bytes": COPY,
              "arena": {"bytes": len(m.arena), "segments": segments}}
    (tmp_path / "weights.bin").write_bytes(m.arena.tobytes())
    bundle = Bundle(tmp_path, {"weights": {"file": "weights.bin"}}, PacketFile(header, [record]),
                    Limits.from_header(header), certified=False)
    return NumpyBackend(bundle, "random:1"), table @ w.T


@pytest.mark.parametrize("n_steps", [1, 2, 5])
def test_a_program_feeds_tokens_back_through_the_two_copies(tmp_path, n_steps):
    vm, logits = handmade(tmp_path)
    table = np.arange(BLOCKS, dtype=np.int32).reshape(SLOTS, -1)
    for call in range(3):  # an odd number of steps begins the next call with the other copy
        vm.arena[PUBLISHED : PUBLISHED + 2 * COPY] = 7
        tokens = [call, 9, 31]
        found = vm.run(0, StepBatch.greedy(tokens, [0] * 3, range(3), range(3), table), n_steps)
        want = []
        for _ in range(n_steps):
            last, tokens = tokens, logits[tokens].argmax(axis=1).tolist()
            want.append(tokens)
        assert found.tolist() == want
        np.testing.assert_allclose(vm.logits(0, 3), logits[last], rtol=1e-4, atol=1e-4)
    used = vm.arena[PUBLISHED + 4096 : PUBLISHED + COPY]
    assert (used == 0xFF).all(), "both copies are filled before a call"


def test_a_program_whose_values_never_come_is_stuck_and_names_the_packet(tmp_path):
    vm, _ = handmade(tmp_path, drop=0)
    table = np.arange(BLOCKS, dtype=np.int32).reshape(SLOTS, -1)
    with pytest.raises(StuckDependency, match="x is not written") as e:
        vm.run(0, StepBatch.greedy([1], [0], [0], [0], table))
    assert "worker 1 packet 1 STREAM_HEAD" in e.value.where
