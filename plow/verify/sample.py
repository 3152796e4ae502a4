"""A small packet program made by the real scheduler, the subject of the self-test when no bundle is at hand."""

from __future__ import annotations

from plow.packet.abi import UNIT_ROWS, Domain, Epilogue, Flag, Opcode
from plow.packet.codec import Packet, encode
from plow.packet.container import PacketFile, ProgramRecord
from plow.schedule.dependencies import Group, schedule

HIDDEN, INNER, VOCAB, ROWS = 64, 128, 128, 4
X, H, PICKED, LOGITS, END = 1 << 20, (1 << 20) + 4096, (1 << 20) + 8192, (1 << 20) + 12288, (1 << 20) + 16384
"""Activations (bytes); the weights lie before them."""
KV_BLOCKS = 8


def sample_program(layers: int = 3, workers: int = 2) -> PacketFile:
    """embed, then `layers` gated MLPs with residual in place, the sampled rows, the head, sample. Every operator is
    split over all workers by columns; x is read and rewritten by each layer, so RAW, WAR and WAW orders all occur."""
    nodes = ["embed"]
    groups = [Group([_embed(w, workers) for w in range(workers)], [])]
    for i in range(layers):
        up, down = len(groups), len(groups) + 1
        groups.append(Group(_linear(X, H, HIDDEN, INNER, workers, gated=True, node=up), list(range(up))))
        groups.append(Group(_linear(H, X, INNER, HIDDEN, workers, residual=X, node=down), list(range(down))))
        nodes += [f"layer.{i}.up", f"layer.{i}.down"]
    dims = {**_rows(), "width": HIDDEN, "x_stride": HIDDEN, "y_stride": HIDDEN, "x_rows": ROWS}
    select = Packet(Opcode.SELECT, {"x": X, "y": PICKED}, dims, domain=Domain.SAMPLES, node=len(groups))
    groups.append(Group([select], list(range(len(groups)))))
    groups.append(Group(_linear(PICKED, LOGITS, HIDDEN, VOCAB, workers, domain=Domain.SAMPLES, node=len(groups)),
                        list(range(len(groups)))))
    sample = Packet(Opcode.SAMPLE, {"logits": LOGITS}, {**_rows(), "vocab": VOCAB, "logits_stride": VOCAB},
                    domain=Domain.SAMPLES, node=len(groups))
    groups.append(Group([sample], list(range(len(groups)))))
    nodes += ["select", "head", "sample"]
    return _file(groups, nodes, workers)


def _file(groups: list[Group], nodes: list[str], workers: int) -> PacketFile:
    result = schedule(groups, workers, KV_BLOCKS)
    lists = [encode([p for p in result.packets if p.worker == w]) for w in range(workers)]
    record = ProgramRecord(ROWS, ROWS, result.counter_totals, lists, LOGITS, VOCAB)
    header = {"target": "cpu", "workers": workers, "nodes": nodes,
              "arena": {"bytes": END, "segments": {"weights": [0, X], "activations": [X, END - X], "kv": [END, 0]}},
              "limits": {"max_ctx": 128, "max_slots": ROWS, "max_rows": ROWS, "max_samples": ROWS, "kv_block": 16,
                         "num_kv_blocks": KV_BLOCKS, "blocks_per_seq": 8, "vocab_size": VOCAB, "num_layers": 3}}
    return PacketFile(header, [record])


def _rows(worker: int = 0, step: int = 1) -> dict[str, int]:
    return {"row0": worker, "row1": ROWS, "row_step": step}


def _embed(worker: int, workers: int) -> Packet:
    dims = {**_rows(worker, workers), "width": HIDDEN, "y_stride": HIDDEN, "vocab": VOCAB}
    return Packet(Opcode.EMBED, {"table": 0, "y": X}, dims, {"scale": 1.0}, worker=worker)


def _linear(x: int, y: int, k: int, n: int, workers: int, node: int, gated: bool = False, residual: int | None = None,
            domain: Domain = Domain.ROWS) -> list[Packet]:
    units = (2 * n if gated else n) // UNIT_ROWS
    found = []
    for w in range(workers):
        operands = {"x": x, "weight": 0, "y": y} | ({} if residual is None else {"residual": residual})
        dims = {**_rows(), "unit0": units * w // workers, "unit1": units * (w + 1) // workers, "k": k, "n": n,
                "x_stride": k, "y_stride": n, "residual_stride": 0 if residual is None else n}
        found.append(Packet(Opcode.LINEAR, operands, dims, {"eps": 0.0}, Flag(0) if residual is None else Flag.RESIDUAL,
                            Epilogue.GATED_SILU if gated else Epilogue.STORE, domain, w, node=node))
    return found
