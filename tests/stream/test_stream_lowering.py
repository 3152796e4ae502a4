"""What STREAM programs look like: lists, shares, owners, buffers, weights; and what has no STREAM form."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import defaultdict

import ml_dtypes
import numpy as np
import pytest
from stream_rig import MODELS, OPTIONS, VOCAB, compiled

from plow import compile as driver
from plow.checkpoint import Checkpoint
from plow.compile import Options, compile_checkpoint, compile_config, lower
from plow.errors import ConfigError, LoweringError, PacketError, VerifyError
from plow.graph.rope import cos_sin
from plow.models import build
from plow.oracle import tiny
from plow.packet import container
from plow.packet.abi import OPCODES, STEP_COUNTER, Epilogue, Flag, Opcode
from plow.packet.codec import Packet, decode
from plow.packet.effects import effects
from plow.packet.layouts import unpack_tiles
from plow.rewrite import RULES
from plow.schedule.arena import align
from plow.verify import payload_d


def result_bytes(p: Packet, rows: int) -> int:
    d = p.dims
    if p.flags & Flag.F32_ROWS:
        return d["cols"] * d["y_stride"] * 4
    if p.opcode == Opcode.STREAM_ATTENTION:
        return d["num_heads"] * d["head_dim"] * d["cols"] * 2
    return d["tile1"] * (16 if p.epilogue == Epilogue.STORE else 8) * d["cols"] * 2


def partial_bytes(p: Packet, rows: int) -> int:
    d = p.dims
    words = d["num_heads"] // d["num_kv_heads"] * (d["head_dim"] + 2)
    return rows * d["num_kv_heads"] * d["splits"] * words * 4


PUBLISHED = {
    "y": result_bytes,
    "next_ssq": lambda p, rows: p.dims["tile1"] * p.dims["cols"] * 4,
    "keys": lambda p, rows: p.dims["cols"] * p.dims["keys"] * 8,
    "tokens": lambda p, rows: p.dims["cols"] * 4,
    "partials": partial_bytes,
}
"""Published operand -> bytes that a packet's dims give it at least."""
TILED = (Opcode.STREAM_EMBED, Opcode.STREAM_LINEAR, Opcode.STREAM_NORM, Opcode.STREAM_HEAD)


@pytest.fixture(params=[3, 8, 132])
def workers(request):
    return request.param


def decoded(program: container.ProgramRecord) -> list[list]:
    return [[decode(r) for r in packets] for packets in program.lists]


def test_lists_follow_the_contract(model, checkpoint, workers):
    for program in compiled(checkpoint(model), workers=workers).packets.programs:
        assert program.counter_totals == [workers] and len(program.lists) == workers
        for w, packets in enumerate(decoded(program)):
            assert all(a.seq < b.seq and a.node <= b.node for a, b in itertools.pairwise(packets))
            assert packets[0].waits == [(STEP_COUNTER, workers)] and packets[-1].signals == [STEP_COUNTER]
            assert not any(p.waits for p in packets[1:]) and not any(p.signals for p in packets[:-1])
            assert packets[-1].opcode in (Opcode.STREAM_HEAD, Opcode.STREAM_SAMPLE, Opcode.NOP)
            cols = 1 if program.rows == 1 else 8
            assert all(p.worker == w and (p.opcode == Opcode.NOP or p.dims["cols"] == cols) for p in packets)


def test_shares_are_balanced_and_cover_every_tile_once(model, checkpoint, workers):
    for program in compiled(checkpoint(model), workers=workers).packets.programs:
        nodes = defaultdict(list)
        for p in itertools.chain(*decoded(program)):
            nodes[p.node, p.opcode].append(p)
        for (_, op), packets in nodes.items():
            if op in TILED:
                spans = sorted((p.dims["tile0"], p.dims["tile1"]) for p in packets)
                total = spans[-1][1]
                assert spans[0][0] == 0 and all(a[1] == b[0] for a, b in itertools.pairwise(spans))
                assert max(b - a for a, b in spans) <= -(-total // workers)
                assert len({p.worker for p in packets}) == len(packets)
            elif op == Opcode.STREAM_ATTENTION:
                d = packets[0].dims
                units = {(p.dims["row"], p.dims["kv_head"], p.dims["split"]) for p in packets}
                assert len(units) == len(packets) == program.rows * d["num_kv_heads"] * d["splits"]
                assert max(sum(p.worker == w for p in packets) for w in range(workers)) <= -(-len(packets) // workers)
                assert d["splits"] == 1 or len(packets) <= workers


def test_a_state_tile_stays_with_one_worker(model, checkpoint, workers):
    program = compiled(checkpoint(model), workers=workers).packets.programs[-1]
    owner = {}
    for p in itertools.chain(*decoded(program)):
        states = {"state", "residual"} | ({"x"} if p.opcode == Opcode.STREAM_NORM else set())
        for name in states & set(p.operands):
            for t in range(p.dims["tile0"], p.dims["tile1"]):
                assert owner.setdefault((p.operands[name], t), p.worker) == p.worker
    assert owner


def test_published_buffers_do_not_overlap_and_lie_in_the_segment(model, checkpoint):
    c = compiled(checkpoint(model), workers=8)
    start, size = c.packets.header["arena"]["segments"]["published"]
    one = c.packets.header["published_bytes"]
    assert size == 2 * one and one % 256 == 0 and start % 256 == 0
    for program in c.packets.programs:
        ends: dict[int, int] = {}
        for p in itertools.chain(*decoded(program)):
            for name, address in p.operands.items():
                if name in PUBLISHED and "w" in OPCODES[p.opcode].operands[name][0]:
                    ends[address] = max(ends.get(address, 0), address + PUBLISHED[name](p, program.rows))
        spans = sorted(ends.items())
        assert spans[0][0] >= start and spans[-1][1] <= start + one
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


def test_a_tied_head_reads_the_embeddings_tiles(checkpoint):
    packets = list(itertools.chain(*decoded(compiled(checkpoint("llama_tied"), workers=4).packets.programs[0])))
    table = {p.operands["table"] for p in packets if p.opcode == Opcode.STREAM_EMBED}
    assert table == {p.operands["weight"] for p in packets if p.opcode == Opcode.STREAM_HEAD}


def test_the_default_is_the_machines_workers_and_up_to_eight_rows(checkpoint):
    c = compiled(checkpoint("llama"))
    assert c.machine.name == "h200" and c.packets.header["workers"] == c.machine.workers
    assert [p.rows for p in c.packets.programs] == [1, 2, 4, 8]


def config(**changes):
    return {**MODELS["llama"], **changes}


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"head_dim": 32}, {}, "head_dim 32"),
        ({"num_attention_heads": 18, "num_key_value_heads": 2}, {}, "9 query heads"),
        ({"head_dim": 128, "num_attention_heads": 5, "num_key_value_heads": 1}, {}, "head_dim 128 with 5"),
        ({"hidden_size": 72}, {}, "no whole tiles|multiple"),
        ({"intermediate_size": 72}, {}, "multiple of 32"),
        ({"vocab_size": 330}, {}, "no whole tiles"),
        ({"attention_bias": True}, {}, "bias has no STREAM form"),
        ({}, {"rows": (1, 16)}, "16 rows"),
        ({}, {"disabled_rules": tuple(RULES)}, "no STREAM form|cannot read"),
        ({}, {"disabled_rules": tuple(r for r in RULES if r.startswith("qkv"))}, "no STREAM form|cannot read|qkv"),
    ],
)
def test_what_has_no_stream_form_is_a_typed_error(changes, options, message):
    graph = build(config(**changes))
    with pytest.raises(LoweringError, match=message) as e:
        lower(graph, Options(**{**OPTIONS, "workers": 4, **options}), graph.meta["vocab_size"])
    assert e.value.where


def test_an_unknown_target_is_a_typed_error(checkpoint):
    with pytest.raises(ConfigError, match="unknown target"):
        compiled(checkpoint("llama"), target="h100")


# -- bundles -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def no_device(monkeypatch):
    """An interpreter that needs no CUDA compiler."""

    def build_nothing(out, programs, **options):
        (out / "interp.cubin").write_bytes(b"")
        return {"file": "interp.cubin", "sha256": driver.file_sha256(out / "interp.cubin"), **options}

    target = dataclasses.replace(driver.TARGETS["h200"], interpreter=build_nothing)
    monkeypatch.setitem(driver.TARGETS, "h200", target)


def test_the_regions_of_a_bundle_name_every_byte_of_its_weights(model, checkpoint, no_device, tmp_path):
    options = Options(**{**OPTIONS, "workers": 4})
    manifest = compile_checkpoint(checkpoint(model), tmp_path / "b", options)
    assert manifest["target"] == "h200" and manifest["interpreter"]["file"] == "interp.cubin"
    ck, image = Checkpoint.open(checkpoint(model)), np.fromfile(tmp_path / "b" / "weights.bin", np.uint8)
    end, seen = 0, set()
    for r in manifest["weights"]["regions"]:
        assert r["offset"] == align(end)
        end = r["offset"] + r["bytes"]
        raw = image[r["offset"] : end]
        if r["layout"] == "rope":
            p = json.loads(r["sources"][0])
            table = np.concatenate(cos_sin(np.arange(96), p["theta"], p["rotary_dim"], p["scaling"]), axis=1)
            assert r["shape"] == list(table.shape) and (raw.view(np.float32).reshape(r["shape"]) == table).all()
            continue
        seen.update(r["sources"])
        parts = [np.asarray(ck.tensor(s)) for s in r["sources"]]
        if r["layout"] == "vector":
            want = parts[0].astype(np.float32) + (model == "gemma3")
            assert (raw.view(np.float32) == want).all() and r["shape"] == list(want.shape)
            continue
        n, k = r["shape"]
        rows = unpack_tiles(raw.view(np.uint16).reshape(n // 16, k // 32, 2, 8, 32))
        if r["layout"] == "gated_tiles":
            parts = [np.stack([w.reshape(-1, 8, k) for w in parts], axis=1).reshape(-1, k)]
        assert (rows.reshape(n, k).view(ml_dtypes.bfloat16) == np.concatenate(parts)).all()
    assert end <= manifest["weights"]["bytes"] <= end + 64 and seen == set(ck.tensors)


def test_a_shape_bundle_has_the_same_programs_and_no_weights(model, checkpoint, no_device, tmp_path):
    options = Options(**{**OPTIONS, "workers": 4})
    real = compile_checkpoint(checkpoint(model), tmp_path / "real", options)
    shape = compile_config(checkpoint(model) / "config.json", tmp_path / "shape", options, seed=7)
    assert shape["weights"]["synthetic"] == 7 and shape["weights"]["scale"] == 0.02
    assert shape["weights"]["regions"] == real["weights"]["regions"]
    assert shape["packets"]["sha256"] == real["packets"]["sha256"], "the same bytes run"
    assert not (tmp_path / "shape" / "weights.bin").exists() and not (tmp_path / "shape" / "tokenizer.json").exists()


def test_checkpoint_d_says_that_it_does_not_cover_published_values(checkpoint):
    c = compiled(checkpoint("llama"), workers=3)
    with pytest.raises(VerifyError, match="does not cover published values yet"):
        payload_d.build(c.packets)
    packet = next(p for p in decoded(c.packets.programs[0])[0] if p.opcode == Opcode.STREAM_LINEAR)
    with pytest.raises(PacketError, match="published"):
        effects(packet, 8)


def test_the_tiny_checkpoints_have_the_vocabulary_of_the_tests():
    assert tiny.VOCAB_SIZE == VOCAB
