"""EMBED, NORM, ELEMENTWISE and SELECT, and the dynamic row counts that every row loop obeys."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rig import POISON, Lib, Rig, Rng, bf16, step, stride, widen

from plow.packet.abi import Domain, Epilogue, Flag, Opcode
from plow.packet.codec import Packet
from plow.packet.layouts import pack_units

WIDTHS = [1, 15, 16, 17, 100]
FUNCTIONS = {
    Epilogue.ADD: lambda a, b, f: a + b, Epilogue.MUL: lambda a, b, f: a * b, Epilogue.SCALE: lambda a, b, f: a * f,
    Epilogue.SILU: lambda a, b, f: silu(a), Epilogue.GELU_TANH: lambda a, b, f: gelu_tanh(a),
    Epilogue.SOFTCAP: lambda a, b, f: np.tanh(a / f) * f, Epilogue.ACT_MUL_SILU: lambda a, b, f: silu(a) * b,
    Epilogue.ACT_MUL_GELU_TANH: lambda a, b, f: gelu_tanh(a) * b,
}


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rows(t: int, **strides: int) -> dict[str, int]:
    return {"row0": 0, "row1": t, "row_step": 1} | {f"{k}_stride": stride(w) for k, w in strides.items()}


def elementwise(rig: Rig, function: Epilogue, a: np.ndarray, b: np.ndarray, factor: float) -> np.ndarray:
    t, width = a.shape
    operands = {"a": rig.rows(a), "b": rig.rows(b), "y": rig.empty(t, width)}
    dims = rows(t, a=width, b=width, y=width) | {"width": width}
    rig.run([Packet(Opcode.ELEMENTWISE, operands, dims, {"factor": factor}, epilogue=function)], step(t))
    return rig.view(operands["y"], t, width)


@pytest.mark.parametrize("scale", [1.0, math.sqrt(640)])
def test_embed_gathers_rows_of_the_unit_layout(lib: Lib, rng: Rng, scale: float) -> None:
    rig, vocab, width = Rig(lib), 70, 48
    table = widen(bf16(rng.standard_normal((vocab, width))))
    batch = step(5)
    batch.tokens[:] = [0, 15, 16, 33, 69]
    operands = {"table": rig.put(pack_units(bf16(table))), "y": rig.empty(5, width)}
    dims = rows(5, y=width) | {"width": width, "vocab": vocab}
    rig.run([Packet(Opcode.EMBED, operands, dims, {"scale": scale})], batch)
    assert np.array_equal(rig.view(operands["y"], 5, width), table[batch.tokens] * np.float32(scale))


@pytest.mark.parametrize(("width", "group"), [(16, 16), (100, 100), (192, 64), (240, 80), (576, 576)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_norm_divides_by_the_rms_of_each_group(lib: Lib, rng: Rng, width: int, group: int, with_residual: bool) -> None:
    rig, t = Rig(lib), 3
    x, residual = (rng.standard_normal((t, width)).astype(np.float32) for _ in range(2))
    weight = rng.standard_normal(group).astype(np.float32)
    operands = {"x": rig.rows(x), "weight": rig.put(weight), "y": rig.empty(t, width), "residual": rig.rows(residual)}
    dims = rows(t, x=width, y=width, residual=width) | {"width": width, "group": group}
    flags = Flag.RESIDUAL if with_residual else Flag(0)
    rig.run([Packet(Opcode.NORM, operands, dims, {"eps": 1e-3}, flags)], step(t))
    z = x.reshape(t, -1, group).astype(np.float64)
    z = (z / np.sqrt((z**2).mean(-1, keepdims=True) + 1e-3) * weight).reshape(t, width) + with_residual * residual
    y = rig.view(operands["y"], t, width)
    np.testing.assert_allclose(y[:, :width], z, atol=5e-6)
    assert (y[:, width:] == POISON).all()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("function", list(FUNCTIONS))
def test_elementwise_functions_match_float64(lib: Lib, rng: Rng, function: Epilogue, width: int) -> None:
    a, b = (rng.standard_normal((3, width)).astype(np.float32) * 3 for _ in range(2))
    y = elementwise(Rig(lib), function, a, b, 2.5)
    expected = FUNCTIONS[function](a.astype(np.float64), b.astype(np.float64), 2.5)
    np.testing.assert_allclose(y[:, :width], expected, rtol=1e-6, atol=1e-6)
    assert (y[:, width:] == POISON).all()


@pytest.mark.parametrize("function", [Epilogue.SILU, Epilogue.GELU_TANH, Epilogue.SOFTCAP])
def test_activations_are_accurate_over_their_whole_range(lib: Lib, function: Epilogue) -> None:
    extremes = [-1e30, -200, -88, 0, 88, 200, 1e30]
    a = np.concatenate([np.linspace(-30, 30, 4001), extremes, np.geomspace(1e-30, 1e-3, 50)]).astype(np.float32)[None]
    with np.errstate(over="ignore"):
        expected = FUNCTIONS[function](a.astype(np.float64), None, 30.0)
    y = elementwise(Rig(lib), function, a, a, 30.0)[:, :a.shape[1]]
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("function", [Epilogue.SILU, Epilogue.GELU_TANH, Epilogue.SOFTCAP, Epilogue.ADD])
def test_nan_passes_through(lib: Lib, function: Epilogue) -> None:
    a = np.full((1, 16), np.nan, np.float32)
    assert np.isnan(elementwise(Rig(lib), function, a, a, 1.0)).all()


def test_select_copies_the_sampled_rows(lib: Lib, rng: Rng) -> None:
    rig, width = Rig(lib), 20
    x = rng.standard_normal((6, width)).astype(np.float32)
    batch = step(6, 3)
    batch.sample_rows[:] = [5, 0, 2]
    operands = {"x": rig.rows(x), "y": rig.empty(4, width)}
    dims = rows(4, x=width, y=width) | {"width": width, "x_rows": 6}
    rig.run([Packet(Opcode.SELECT, operands, dims, domain=Domain.SAMPLES)], batch)
    y = rig.view(operands["y"], 4, width)
    assert np.array_equal(y[:3, :width], x[[5, 0, 2]])
    assert (y[3] == POISON).all() and (y[:, width:] == POISON).all()


@pytest.mark.parametrize(("n_rows", "written"), [(1, []), (3, [2]), (6, [2, 5]), (9, [2, 5])])
def test_row_loops_stop_at_the_steps_rows(lib: Lib, rng: Rng, n_rows: int, written: list[int]) -> None:
    rig = Rig(lib)
    a = rng.standard_normal((9, 16)).astype(np.float32)
    operands = {"a": rig.rows(a), "y": rig.empty(9, 16)}
    dims = {"row0": 2, "row1": 7, "row_step": 3, "width": 16, "a_stride": 16, "y_stride": 16}
    rig.run([Packet(Opcode.ELEMENTWISE, operands, dims, {"factor": 1.0}, epilogue=Epilogue.SCALE)], step(n_rows))
    y = rig.view(operands["y"], 9, 16)
    assert np.array_equal(y[written], a[written])
    assert (np.delete(y, written, axis=0) == POISON).all()


@pytest.mark.parametrize("function", list(FUNCTIONS))
def test_elementwise_gives_the_same_bits_in_all_widths(libs: dict[str, Lib], rng: Rng, function: Epilogue) -> None:
    a, b = (rng.standard_normal((2, 300)).astype(np.float32) * 5 for _ in range(2))
    first, *others = (elementwise(Rig(lib), function, a, b, 2.5).copy() for lib in libs.values())
    assert all(np.array_equal(first.view(np.uint32), y.view(np.uint32)) for y in others)
