"""LINEAR: every output is one chain of fused multiply-adds, whatever the tile, the tail and the vector width."""

from __future__ import annotations

import ctypes
import ctypes.util
from typing import Any

import numpy as np
import pytest
from rig import POISON, Lib, Rig, Rng, bf16, step, stride, widen

from plow.packet.abi import Epilogue, Flag, Opcode
from plow.packet.codec import Packet
from plow.packet.layouts import num_units, pack_gated, pack_units

NO_FLAG = Flag(0)
libm = ctypes.CDLL(ctypes.util.find_library("m"))
libm.fmaf.restype, libm.fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3


def fma_chain(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """f32 [T, N] of x [T, K] and w [N, K]: fmaf over ascending k, one scalar at a time."""
    out = np.zeros((len(x), len(w)), np.float32)
    for t, row in enumerate(x.tolist()):
        for n, weights in enumerate(w.tolist()):
            total = 0.0
            for a, b in zip(row, weights, strict=True):
                total = libm.fmaf(b, a, total)
            out[t, n] = total
    return out


def linear(rig: Rig, x: np.ndarray, w: np.ndarray, *, rows: tuple[int, int, int] | None = None,
           units: tuple[int, int] | None = None, bias: np.ndarray | None = None, residual: np.ndarray | None = None,
           norm: np.ndarray | None = None, flags: Flag = NO_FLAG, gate: np.ndarray | None = None,
           epilogue: Epilogue = Epilogue.STORE, n_rows: int | None = None, eps: float = 1e-5) -> np.ndarray:
    """Run one packet; y with its padding columns, f32 [T, stride]. w: f32 [N, K] that bf16 represents."""
    (t, k), n = x.shape, len(w)
    packed = pack_units(bf16(w)) if gate is None else pack_gated(bf16(gate), bf16(w))
    operands = {"x": rig.rows(x), "weight": rig.put(packed), "y": rig.empty(t, n)}
    dims = dict(zip(("row0", "row1", "row_step"), rows or (0, t, 1), strict=True))
    unit0, unit1 = units or (0, num_units(n) if gate is None else -(-n // 16))
    dims |= {"unit0": unit0, "unit1": unit1, "k": k, "n": n, "x_stride": stride(k), "y_stride": stride(n)}
    if bias is not None:
        operands["bias"] = rig.put(bias)
    if residual is not None:
        operands["residual"], dims["residual_stride"], flags = rig.rows(residual), stride(n), flags | Flag.RESIDUAL
    if norm is not None:
        operands["norm_weight"], flags = rig.put(norm), flags | Flag.NORM
    packet = Packet(Opcode.LINEAR, operands, dims, {"eps": eps}, flags, epilogue)
    rig.run([packet], step(t if n_rows is None else n_rows))
    return rig.view(operands["y"], t, n)


def data(rng: Rng, t: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.standard_normal((t, k)).astype(np.float32), widen(bf16(rng.standard_normal((n, k)) / np.sqrt(k)))


@pytest.mark.parametrize(("t", "n", "k"), [(1, 32, 16), (2, 40, 48), (3, 17, 32), (13, 20, 16)])
def test_an_output_is_one_fma_chain_over_ascending_k(lib: Lib, rng: Rng, t: int, n: int, k: int) -> None:
    x, w = data(rng, t, n, k)
    y = linear(Rig(lib), x, w)
    assert np.array_equal(y[:, :n].view(np.uint32), fma_chain(x, w).view(np.uint32))


def test_the_chain_check_can_tell_another_order(rng: Rng) -> None:
    x, w = data(rng, 2, 8, 64)
    assert not np.array_equal(fma_chain(x, w), fma_chain(x[:, ::-1], w[:, ::-1]))


@pytest.mark.parametrize("t", [*range(1, 15), 16, 23, 24, 25, 37, 100])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(lib: Lib, rng: Rng, t: int) -> None:
    x, w = data(rng, t, 96, 64)
    norm = rng.standard_normal(64).astype(np.float32)
    together = linear(Rig(lib), x, w, norm=norm).copy()
    for i in {0, t // 2, t - 1}:
        alone = linear(Rig(lib), x[i:i + 1], w, norm=norm)[0]
        assert np.array_equal(alone.view(np.uint32), together[i].view(np.uint32))


def test_a_prompt_of_several_blocks_has_the_bits_of_its_rows(lib: Lib, rng: Rng) -> None:
    """k is so large that the panels of all rows do not fit one block."""
    x, w = data(rng, 50, 32, 4096)
    together = linear(Rig(lib, bytes=1 << 25), x, w).copy()
    alone = np.concatenate([linear(Rig(lib, bytes=1 << 25), x[i:i + 1], w) for i in (0, 20, 49)])
    assert np.array_equal(alone.view(np.uint32), together[[0, 20, 49]].view(np.uint32))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 31, 33, 100])
def test_columns_beyond_n_are_never_written(lib: Lib, rng: Rng, n: int) -> None:
    x, w = data(rng, 3, n, 32)
    y = linear(Rig(lib), x, w)
    np.testing.assert_allclose(y[:, :n], x @ w.T, atol=1e-5)
    assert (y[:, n:] == POISON).all()


def test_rows_beyond_the_step_and_off_the_row_step_are_not_written(lib: Lib, rng: Rng) -> None:
    x, w = data(rng, 9, 64, 32)
    y = linear(Rig(lib), x, w, rows=(1, 9, 3), n_rows=6)
    written = [1, 4]
    np.testing.assert_allclose(y[written], x[written] @ w.T, atol=1e-5)
    assert (np.delete(y, written, axis=0) == POISON).all()


def test_a_packet_without_live_rows_does_nothing(lib: Lib, rng: Rng) -> None:
    x, w = data(rng, 4, 32, 16)
    assert (linear(Rig(lib), x, w, rows=(2, 4, 1), n_rows=2) == POISON).all()


@pytest.mark.parametrize("t", [1, 2, 5])
def test_unit_ranges_write_their_own_columns_only(lib: Lib, rng: Rng, t: int) -> None:
    x, w = data(rng, t, 160, 32)
    y = linear(Rig(lib), x, w, units=(1, 4))
    np.testing.assert_allclose(y[:, 32:128], x @ w[32:128].T, atol=1e-5)
    assert (y[:, :32] == POISON).all() and (y[:, 128:] == POISON).all()


def test_bias_then_residual_are_added(lib: Lib, rng: Rng) -> None:
    x, w = data(rng, 5, 40, 32)
    bias, residual = rng.standard_normal(40).astype(np.float32), rng.standard_normal((5, 40)).astype(np.float32)
    y = linear(Rig(lib), x, w, bias=bias, residual=residual)
    assert np.array_equal(y[:, :40], linear(Rig(lib), x, w)[:, :40] + bias + residual)


@pytest.mark.parametrize("t", [1, 4, 13])
@pytest.mark.parametrize("k", [16, 80, 576])
def test_the_norm_before_is_rms(lib: Lib, rng: Rng, t: int, k: int) -> None:
    x, w = data(rng, t, 32, k)
    weight = rng.standard_normal(k).astype(np.float32)
    z = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-2) * weight
    np.testing.assert_allclose(linear(Rig(lib), x, w, norm=weight, eps=1e-2), z @ w.T, atol=2e-5)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(("epilogue", "act"), [(Epilogue.GATED_SILU, silu), (Epilogue.GATED_GELU_TANH, gelu_tanh)])
@pytest.mark.parametrize(("t", "n"), [(1, 16), (2, 24), (7, 40)])
def test_gated_projections_store_act_of_gate_times_up(lib: Lib, rng: Rng, epilogue: Epilogue, act: Any, t: int,
                                                      n: int) -> None:
    x, up = data(rng, t, n, 32)
    gate = widen(bf16(rng.standard_normal((n, 32)) * 2))
    y = linear(Rig(lib), x, up, gate=gate, epilogue=epilogue)
    x64 = x.astype(np.float64)
    np.testing.assert_allclose(y[:, :n], act(x64 @ gate.T) * (x64 @ up.T), atol=2e-5, rtol=1e-5)
    assert (y[:, n:] == POISON).all()


@pytest.mark.parametrize("t", [1, 2, 3, 12, 17])
def test_the_dot_class_rounds_activations_to_bf16_and_nothing_else(lib: Lib, rng: Rng, t: int) -> None:
    x, w = data(rng, t, 48, 96)
    y = linear(Rig(lib), x, w, flags=Flag.BF16_DOT)[:, :48]
    np.testing.assert_allclose(y, widen(bf16(x)).astype(np.float64) @ w.T, atol=2e-5)
    assert np.abs(y - x @ w.T).max() > 1e-4, "this data must tell rounded from unrounded activations"


def test_all_widths_give_the_same_bits(libs: dict[str, Lib], rng: Rng) -> None:
    x, w = data(rng, 29, 70, 80)
    gate, norm = widen(bf16(rng.standard_normal(w.shape))), rng.standard_normal(80).astype(np.float32)
    first, *others = (linear(Rig(lib), x, w, gate=gate, norm=norm, epilogue=Epilogue.GATED_SILU).copy()
                      for lib in libs.values())
    assert all(np.array_equal(first.view(np.uint32), y.view(np.uint32)) for y in others)
