"""Every opcode of the numpy interpreter against the operator semantics of the graph."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from handmade import SEGMENT, Handmade, as_f32, bf16

from plow.errors import PacketError
from plow.graph import semantics
from plow.graph.rope import cos_sin
from plow.packet.abi import Domain, Epilogue, Flag, Opcode
from plow.packet.codec import Packet
from plow.runtime.numpy_vm import NumpyBackend
from plow.runtime.step import StepBatch

ROWS = {"row0": 0, "row1": 8, "row_step": 1}
N = 5
"""Rows of the step, fewer than the program's 8."""


@pytest.fixture
def hm(tmp_path: Path) -> Handmade:
    return Handmade(tmp_path / "bundle")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def weight(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return bf16(normal(rng, *shape))


def batch(backend: NumpyBackend, positions=range(N), slots=(0,) * N, samples=(0,), tokens=range(N)) -> StepBatch:
    limits = backend.bundle.limits
    table = np.arange(limits.max_slots * limits.blocks_per_seq, dtype=np.int32).reshape(limits.max_slots, -1)
    return StepBatch.greedy(list(tokens), list(positions), list(slots), list(samples), table)


def put(backend: NumpyBackend, at: int, array: np.ndarray) -> None:
    backend.arena[at : at + array.nbytes] = array.view(np.uint8).reshape(-1)


def get(backend: NumpyBackend, at: int, *shape: int) -> np.ndarray:
    return backend.arena[at : at + 4 * int(np.prod(shape))].view(np.float32).reshape(shape)


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_embed_gathers_scaled_rows(hm: Handmade, rng: np.random.Generator) -> None:
    table = weight(rng, 50, 32)
    y = hm.rows(8, 48)
    op = Packet(
        Opcode.EMBED,
        {"table": hm.units(table), "y": y},
        {**ROWS, "width": 32, "y_stride": 48, "vocab": 50},
        {"scale": 3.0},
    )
    vm = NumpyBackend(hm.bundle([op]))
    vm.run(0, batch(vm, tokens=[0, 49, 17, 16, 33]))
    close(get(vm, y, N, 48)[:, :32], as_f32(table)[[0, 49, 17, 16, 33]] * 3)
    assert not get(vm, y, 8, 48)[N:].any(), "rows beyond the step's count are left alone"


@pytest.mark.parametrize("group", [32, 8])
def test_norm_normalises_groups_and_adds_the_residual(hm: Handmade, rng: np.random.Generator, group: int) -> None:
    x, r, w = normal(rng, 8, 32), normal(rng, 8, 32), normal(rng, group)
    ax, ar, ay = (hm.rows(8, 32) for _ in range(3))
    op = Packet(
        Opcode.NORM,
        {"x": ax, "weight": hm.const(w), "y": ay, "residual": ar},
        {**ROWS, "width": 32, "group": group, "x_stride": 32, "y_stride": 32, "residual_stride": 32},
        {"eps": 1e-5},
        Flag.RESIDUAL,
    )
    vm = NumpyBackend(hm.bundle([op]))
    put(vm, ax, x)
    put(vm, ar, r)
    vm.run(0, batch(vm))
    close(get(vm, ay, N, 32), (semantics.rms_norm(x, w, eps=1e-5)[0] + r)[:N])


def test_linear_covers_only_its_units_and_rows(hm: Handmade, rng: np.random.Generator) -> None:
    x, w, b = normal(rng, 8, 32), weight(rng, 70, 32), normal(rng, 70)
    ax, ay = hm.rows(8, 32), hm.rows(8, 80)
    op = Packet(
        Opcode.LINEAR,
        {"x": ax, "weight": hm.units(w), "bias": hm.const(b), "y": ay},
        {"row0": 1, "row1": 8, "row_step": 2, "unit0": 1, "unit1": 3, "k": 32, "n": 70, "x_stride": 32, "y_stride": 80},
    )
    vm = NumpyBackend(hm.bundle([op]))
    put(vm, ax, x)
    vm.run(0, batch(vm))
    y = get(vm, ay, 8, 80)
    want = semantics.linear(x, as_f32(w), b)[0]
    close(y[[1, 3], 32:70], want[[1, 3], 32:])
    y[[1, 3], 32:70] = 0
    assert not y.any(), "other rows, other units and padding columns are left alone"


def test_linear_with_norm_and_residual_equals_its_parts(hm: Handmade, rng: np.random.Generator) -> None:
    x, w, n, r = normal(rng, 8, 32), weight(rng, 64, 32), normal(rng, 32), normal(rng, 8, 64)
    ax, ay = hm.rows(8, 32), hm.rows(8, 64)
    op = Packet(
        Opcode.LINEAR,
        {"x": ax, "weight": hm.units(w), "norm_weight": hm.const(n), "y": ay, "residual": ay},
        {**ROWS, "unit0": 0, "unit1": 2, "k": 32, "n": 64, "x_stride": 32, "y_stride": 64, "residual_stride": 64},
        {"eps": 1e-6},
        Flag.NORM | Flag.RESIDUAL,
    )
    vm = NumpyBackend(hm.bundle([op]))
    put(vm, ax, x)
    put(vm, ay, r)
    vm.run(0, batch(vm))
    close(get(vm, ay, N, 64), (semantics.norm_linear(x, n, as_f32(w), eps=1e-6)[0] + r)[:N])


def test_bf16_dot_rounds_the_activations(hm: Handmade, rng: np.random.Generator) -> None:
    x, w = normal(rng, 8, 32), weight(rng, 32, 32)
    ax, ay = hm.rows(8, 32), hm.rows(8, 32)
    dims = {**ROWS, "unit0": 0, "unit1": 1, "k": 32, "n": 32, "x_stride": 32, "y_stride": 32}
    op = Packet(Opcode.LINEAR, {"x": ax, "weight": hm.units(w), "y": ay}, dims, flags=Flag.BF16_DOT)
    vm = NumpyBackend(hm.bundle([op]))
    put(vm, ax, x)
    vm.run(0, batch(vm))
    exact = (x @ as_f32(w).T)[:N]
    error = np.abs(get(vm, ay, N, 32) - exact).max()
    assert 1e-4 < error < 0.2


@pytest.mark.parametrize(("epilogue", "act"), [(Epilogue.GATED_SILU, "silu"), (Epilogue.GATED_GELU_TANH, "gelu_tanh")])
def test_gated_linear_multiplies_act_of_gate_by_up(
    hm: Handmade, rng: np.random.Generator, epilogue: Epilogue, act: str
) -> None:
    x, gate, up = normal(rng, 8, 32), weight(rng, 48, 32), weight(rng, 48, 32)
    both = np.stack([gate.reshape(3, 16, 32), up.reshape(3, 16, 32)], 1).reshape(96, 32)
    ax, ay = hm.rows(8, 32), hm.rows(8, 48)
    op = Packet(
        Opcode.LINEAR,
        {"x": ax, "weight": hm.units(both), "y": ay},
        {**ROWS, "unit0": 1, "unit1": 3, "k": 32, "n": 48, "x_stride": 32, "y_stride": 48},
        epilogue=epilogue,
    )
    vm = NumpyBackend(hm.bundle([op]))
    put(vm, ax, x)
    vm.run(0, batch(vm))
    close(get(vm, ay, N, 48)[:, 16:], semantics.gated_linear(x, as_f32(gate), as_f32(up), act=act)[0][:N, 16:])


def qkv_case(hm: Handmade, rng: np.random.Generator, cuts: list[int]) -> tuple[NumpyBackend, dict]:
    """4 q heads and 2 kv heads of 32 with qk-norm, rope and window 6, then attention; QKV is cut at `cuts`."""
    nq, nkv, hd, k = 4, 2, 32, 48
    w = {name: weight(rng, heads * hd, k) for name, heads in (("q", nq), ("k", nkv), ("v", nkv))}
    norm, qn, kn = normal(rng, k), normal(rng, hd), normal(rng, hd)
    cos, sin = cos_sin(np.arange(64), 1e4, hd)
    ax, aq, ay, kv = hm.rows(8, k), hm.rows(8, nq * hd), hm.rows(8, nq * hd), hm.kv(nkv, hd)
    operands = {
        "x": ax,
        "weight": hm.units(np.concatenate(list(w.values()))),
        "norm_weight": hm.const(norm),
        "q_norm": hm.const(qn),
        "k_norm": hm.const(kn),
        "rope": hm.const(np.concatenate([cos, sin], 1)),
        "y": aq,
        "kv": kv,
    }
    dims = {
        **ROWS,
        "k": k,
        "num_heads": nq,
        "num_kv_heads": nkv,
        "head_dim": hd,
        "rotary_dim": hd,
        "x_stride": k,
        "y_stride": nq * hd,
    }
    ops = [
        Packet(
            Opcode.QKV,
            operands,
            {**dims, "head0": a, "head1": b},
            {"eps": 1e-5, "qk_eps": 1e-6},
            Flag.NORM | Flag.QK_NORM | Flag.ROPE,
        )
        for a, b in itertools.pairwise(cuts)
    ]
    for h0, h1 in ((0, 3), (3, 4)):
        ops.append(
            Packet(
                Opcode.ATTENTION,
                {"q": aq, "kv": kv, "y": ay},
                {
                    **ROWS,
                    "head0": h0,
                    "head1": h1,
                    "num_heads": nq,
                    "num_kv_heads": nkv,
                    "head_dim": hd,
                    "window": 6,
                    "q_stride": nq * hd,
                    "y_stride": nq * hd,
                },
                {"scale": 0.2, "softcap": 5.0},
            )
        )
    vm = NumpyBackend(hm.bundle(ops), poison=True)
    return vm, {"w": w, "norm": norm, "qn": qn, "kn": kn, "ax": ax, "ay": ay, "dims": (nq, nkv, hd, k)}


@pytest.mark.parametrize("cuts", [[0, 8], [0, 3, 5, 6, 8]])
def test_qkv_and_attention_over_pages_equal_the_semantics(
    hm: Handmade, rng: np.random.Generator, cuts: list[int]
) -> None:
    vm, c = qkv_case(hm, rng, cuts)
    nq, nkv, hd, k = c["dims"]
    caches: semantics.Caches = {}
    # two sequences, one crossing a page border, in chunks of different sizes
    for slots, positions in (
        ([0, 0, 0, 1], [0, 1, 2, 0]),
        ([0] * 5, range(3, 8)),
        ([0] * 5, range(8, 13)),
        ([0] * 5, range(13, 18)),
        ([1, 0], [1, 18]),
    ):
        x = normal(rng, len(slots), k)
        vm.poison = False
        put(vm, c["ax"], x)
        vm.run(0, batch(vm, positions, slots, tokens=[0] * len(slots)))
        pos, slot = np.array(positions), np.array(slots)
        q, kv = semantics.qkv(
            x,
            c["norm"],
            *(as_f32(c["w"][n]) for n in "qkv"),
            c["qn"],
            c["kn"],
            pos,
            slot,
            num_heads=nq,
            num_kv_heads=nkv,
            head_dim=hd,
            rotary_dim=hd,
            theta=1e4,
            cache="c",
            caches=caches,
            eps=1e-5,
            qk_eps=1e-6,
        )
        want = semantics.attention(
            q,
            kv,
            pos,
            slot,
            num_heads=nq,
            num_kv_heads=nkv,
            head_dim=hd,
            scale=0.2,
            window=6,
            softcap=5.0,
            caches=caches,
        )[0]
        close(get(vm, c["ay"], len(slots), nq * hd), want)


def test_rope_and_kv_append_write_what_qkv_writes(hm: Handmade, rng: np.random.Generator) -> None:
    heads, hd, rd = 2, 16, 8
    x, v, w = normal(rng, 8, heads * hd), normal(rng, 8, heads * hd), normal(rng, hd)
    cos, sin = cos_sin(np.arange(64), 1e4, rd)
    ax, ay, av, kv = hm.rows(8, 32), hm.rows(8, 32), hm.rows(8, 32), hm.kv(heads, hd)
    rope = Packet(
        Opcode.ROPE,
        {"x": ax, "rope": hm.const(np.concatenate([cos, sin], 1)), "y": ay, "norm_weight": hm.const(w)},
        {**ROWS, "num_heads": heads, "head_dim": hd, "rotary_dim": rd, "x_stride": 32, "y_stride": 32},
        {"eps": 1e-5},
        Flag.NORM,
    )
    append = Packet(
        Opcode.KV_APPEND,
        {"k": ay, "v": av, "kv": kv},
        {**ROWS, "num_kv_heads": heads, "head_dim": hd, "k_stride": 32, "v_stride": 32},
    )
    vm = NumpyBackend(hm.bundle([rope, append]))
    put(vm, ax, x)
    put(vm, av, v)
    positions = np.array([20, 3, 15, 16, 0])
    vm.run(0, batch(vm, positions, [1] * N))
    want = semantics.norm_rope(x[:N], w, positions, eps=1e-5, head_dim=hd, rotary_dim=rd, theta=1e4)[0]
    close(get(vm, ay, N, 32), want)
    blocks = get(vm, kv, 12, 2, heads, 16 * hd)
    for t, p in enumerate(positions):
        block = blocks[4 + p // 16]  # slot 1 has blocks 4..7
        close(block[0].reshape(heads, hd, 16)[:, :, p % 16].reshape(-1), want[t])
        close(block[1].reshape(heads, 16, hd)[:, p % 16].reshape(-1), v[t])


UNARY = {
    Epilogue.SILU: lambda a: semantics.activation(a, act="silu"),
    Epilogue.SCALE: lambda a: [a * np.float32(2.5)],
    Epilogue.GELU_TANH: lambda a: semantics.activation(a, act="gelu_tanh"),
    Epilogue.SOFTCAP: lambda a: semantics.softcap(a, cap=2.5),
}
BINARY = {
    Epilogue.ADD: semantics.add,
    Epilogue.MUL: semantics.mul,
    Epilogue.ACT_MUL_SILU: lambda a, b: semantics.act_mul(a, b, act="silu"),
    Epilogue.ACT_MUL_GELU_TANH: lambda a, b: semantics.act_mul(a, b, act="gelu_tanh"),
}


@pytest.mark.parametrize("epilogue", [*UNARY, *BINARY])
def test_elementwise_functions(hm: Handmade, rng: np.random.Generator, epilogue: Epilogue) -> None:
    a, b = normal(rng, 8, 32), normal(rng, 8, 32)
    aa, ab, ay = (hm.rows(8, 32) for _ in range(3))
    op = Packet(
        Opcode.ELEMENTWISE,
        {"a": aa, "y": ay} | ({"b": ab} if epilogue in BINARY else {}),
        {**ROWS, "width": 24, "a_stride": 32, "b_stride": 32, "y_stride": 32},
        {"factor": 2.5},
        epilogue=epilogue,
    )
    vm = NumpyBackend(hm.bundle([op]))
    put(vm, aa, a)
    put(vm, ab, b)
    vm.run(0, batch(vm))
    want = BINARY[epilogue](a, b) if epilogue in BINARY else UNARY[epilogue](a)
    close(get(vm, ay, N, 32)[:, :24], want[0][:N, :24])
    assert not get(vm, ay, N, 32)[:, 24:].any()


def test_select_and_sample_follow_the_sampled_rows(hm: Handmade, rng: np.random.Generator) -> None:
    x = normal(rng, 8, 64)
    x[2, 7] = x[2, 3] = 9.0  # a tie
    x[4, 60] = 99.0  # padding: beyond the valid vocabulary
    x[4, 11] = 8.0
    ax, al = hm.rows(8, 64), hm.rows(8, 64)
    ops = [
        Packet(
            Opcode.SELECT,
            {"x": ax, "y": al},
            {**ROWS, "width": 64, "x_stride": 64, "y_stride": 64},
            domain=Domain.SAMPLES,
        ),
        Packet(Opcode.SAMPLE, {"logits": al}, {**ROWS, "vocab": 60, "logits_stride": 64}, domain=Domain.SAMPLES),
    ]
    vm = NumpyBackend(hm.bundle(ops, logits=al))
    put(vm, ax, x)
    assert vm.run(0, batch(vm, samples=[4, 2])).tolist() == [[11, 3]]
    close(vm.logits(0, 2), x[[4, 2]])


def test_an_operand_outside_the_arena_is_a_typed_error(hm: Handmade) -> None:
    op = Packet(
        Opcode.ELEMENTWISE,
        {"a": 3 * SEGMENT - 64, "y": SEGMENT},
        {**ROWS, "width": 32, "a_stride": 32, "b_stride": 32, "y_stride": 32},
        epilogue=Epilogue.SILU,
    )
    vm = NumpyBackend(hm.bundle([op]))
    with pytest.raises(PacketError, match="outside the arena"):
        vm.run(0, batch(vm))
