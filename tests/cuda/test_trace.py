"""Traces of hand-made steps: what is refused, that the table adds up, what files and commands say."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy
from gpu_rig import GEMMA3, LLAMA, WORKERS, interpret, lowered
from tiny_bundle import tiny_bundle
from typer.testing import CliRunner, Result

from plow.cli import plowrt
from plow.errors import RequestError
from plow.packet.abi import Flag, Opcode
from plow.packet.codec import Packet, decode, encode
from plow.packet.container import ProgramRecord
from plow.runtime import trace
from plow.runtime.bench import weight_bytes
from plow.runtime.build_cuda import SOURCES
from plow.runtime.bundle import Bundle
from plow.runtime.cuda import CudaBackend
from plow.runtime.cuda_bench import kv_bytes
from plow.runtime.step import StepBatch
from plow.runtime.trace_picture import chrome_trace, layer_of, slices, timeline_svg
from plow.runtime.trace_step import Step, TraceError, step_of

START = 10**18
HOP, WAIT, WORK, PUBLISH, EXCHANGE = 400, 300, 2000, 100, 600
CONTEXT = 512
BESIDE_CONSUMERS = (Opcode.STREAM_EMBED, Opcode.STREAM_NORM, Opcode.STREAM_SAMPLE)


def marks_of(record: ProgramRecord) -> np.ndarray:
    """What a device would mark: node after node, each HOP after its predecessor, packets of the lower workers first."""
    lists = [[decode(r) for r in packets] for packets in record.lists]
    marks = np.zeros((len(lists), max(map(len, lists)) + 1, 4), np.uint64)
    free, at = [START] * len(lists), START
    place = {p.seq: (w, i) for w, packets in enumerate(lists) for i, p in enumerate(packets)}
    for node in sorted({p.node for packets in lists for p in packets}):
        through = at
        for p in sorted((p for packets in lists for p in packets if p.node == node), key=lambda p: p.seq):
            w, i = place[p.seq]
            ready = max(free[w], at + HOP) + WAIT + w
            done, published = ready + WORK, ready + WORK + PUBLISH
            if p.opcode in BESIDE_CONSUMERS:
                marks[w, i] = (0, 0, 0, published)
            elif p.opcode == Opcode.STREAM_ATTENTION:  # the epilogue walks by
                marks[w, i] = (free[w], ready, done, free[w] + 1)
                published = free[w] = done + EXCHANGE
            else:
                marks[w, i] = (free[w], ready, done, published)
                free[w] = done
            through = max(through, published)
        at = through
    return marks


@pytest.fixture
def record(gpu_bundle: Bundle) -> ProgramRecord:
    return gpu_bundle.packets.programs[0]


@pytest.fixture
def step(gpu_bundle: Bundle, record: ProgramRecord) -> Step:
    return step_of(record, gpu_bundle.packets.nodes, marks_of(record), 1, CONTEXT)


def find(step: Step, family: str) -> list[Any]:
    return [p for p in step.packets if p.family == family]


# -- what is refused ---------------------------------------------------------------------------------------------------
def place(record: ProgramRecord, opcode: Opcode) -> tuple[int, int, Packet]:
    """(worker, place in its list, packet) of the last worker's first packet of a kind."""
    found = [(w, i, decode(r)) for w, packets in enumerate(record.lists) for i, r in enumerate(packets)]
    return next((w, i, p) for w, i, p in reversed(found) if p.opcode == opcode)


@pytest.mark.parametrize("points", [(0, 1), (1, 2), (2, 3)])
def test_marks_in_the_wrong_order_are_an_error(
    gpu_bundle: Bundle, record: ProgramRecord, points: tuple[int, int]
) -> None:
    w, i, p = place(record, Opcode.STREAM_LINEAR)
    marks, nodes = marks_of(record), gpu_bundle.packets.nodes
    marks[w, i, list(points)] = marks[w, i, points[0]]
    assert step_of(record, nodes, marks, 1, CONTEXT), "clocks are coarse: equal marks are in order"
    marks[w, i, points[1]] -= 32
    with pytest.raises(TraceError, match=f"packet {p.seq} STREAM_LINEAR .* is .* before") as e:
        step_of(record, nodes, marks, 1, CONTEXT)
    assert e.value.where == f"worker {w}" and e.value.fix


def test_a_missing_packet_is_named(gpu_bundle: Bundle, record: ProgramRecord) -> None:
    for opcode in (Opcode.STREAM_LINEAR, Opcode.STREAM_ATTENTION, Opcode.STREAM_SAMPLE):
        w, i, p = place(record, opcode)
        marks = marks_of(record)
        marks[w, i] = 0
        with pytest.raises(TraceError, match=f"packet {p.seq} {opcode.name} {gpu_bundle.packets.nodes[p.node]} has no"):
            step_of(record, gpu_bundle.packets.nodes, marks, 1, CONTEXT)
    with pytest.raises(TraceError, match=r"packet 0 STREAM_EMBED embed\.embed_tokens has no mark"):
        step_of(record, gpu_bundle.packets.nodes, np.zeros_like(marks), 1, CONTEXT)


def test_marks_of_another_program_are_an_error(gpu_bundle: Bundle, record: ProgramRecord) -> None:
    nodes, marks = gpu_bundle.packets.nodes, marks_of(record)
    longest = max(map(len, record.lists))
    for wrong in (marks[:-1], marks[:, : longest - 1], marks[:, :, :3], marks[0]):
        with pytest.raises(TraceError, match="are not of 5 workers"):
            step_of(record, nodes, wrong, 1, CONTEXT)
    assert step_of(record, nodes, marks[:, :longest], 1, CONTEXT).end > 0
    marks[2, len(record.lists[2])] = START
    with pytest.raises(TraceError, match="worker 2 has marks behind its"):
        step_of(record, nodes, marks, 1, CONTEXT)


def test_the_epilogue_walking_by_ends_no_attention(gpu_bundle: Bundle, record: ProgramRecord, step: Step) -> None:
    assert {p.publish for p in find(step, "attention")} == {EXCHANGE}, "up to the consumers' next packet"
    marks, nodes = marks_of(record), gpu_bundle.packets.nodes
    w, i, _ = place(record, Opcode.STREAM_ATTENTION)
    marks[w, i, 3] = marks[w, i, 2] + 50
    after = step_of(record, nodes, marks, 1, CONTEXT).workers[w][i]
    assert after.publish == 50 and after.end == after.published, "a mark behind the sums is the packet's own"
    marks[w, i, 3], marks[w, i + 1 :, 0] = 0, 0
    last = step_of(record, nodes, marks, 1, CONTEXT).workers[w][i]
    assert last.published is None and last.end == last.done, "without a next packet it ends with its sums"


# -- families, bytes and the table -------------------------------------------------------------------------------------
def test_families_come_from_what_packets_do(step: Step) -> None:
    names = {p.node.rsplit(".")[-1]: p.family for p in step.packets}
    assert names == {"embed_tokens": "embed", "qkv": "qkv", "attention": "attention", "o_proj": "o",
                     "mlp_gate_up": "gate_up", "down_proj": "down", "lm_head": "head", "sample": "sample"}  # fmt: skip


def test_families_need_no_names(gpu_bundle: Bundle, record: ProgramRecord, step: Step) -> None:
    nodes = [f"x.{i}" for i in range(len(gpu_bundle.packets.nodes))]
    again = step_of(record, nodes, marks_of(record), 1, CONTEXT)
    assert [p.family for p in again.packets] == [p.family for p in step.packets]


def test_a_projection_of_another_kind_has_its_nodes_name(record: ProgramRecord) -> None:
    plain = Packet(Opcode.STREAM_LINEAR, {"x": 64, "y": 128}, {"tile1": 1, "k": 32})
    rows = replace(plain, flags=Flag.F32_ROWS)
    alone = {"rows": 1, "samples": 1, "counter_totals": [1], "logits_offset": 0, "logits_stride": 0}
    for packet, family in ((plain, "router"), (rows, "qkv")):
        program = ProgramRecord(lists=[encode([packet])], **alone)
        marks = np.array([[[1, 2, 3, 4]]], np.uint64)
        assert step_of(program, ["layer.0.router"], marks, 1, CONTEXT).packets[0].family == family


def test_norms_of_results_are_a_family(tmp_path: Path) -> None:
    bundle = lowered(tmp_path, GEMMA3)
    record = bundle.packets.programs[0]
    found = trace.report(step_of(record, bundle.packets.nodes, marks_of(record), 1, CONTEXT), 1e12)
    assert [f["family"] for f in found["families"]][:7] == ["embed", "qkv", "attention", "o", "norm", "gate_up", "down"]
    norm = next(f for f in found["families"] if f["family"] == "norm")
    assert norm["span_us"] > 0 and norm["bytes"] == 0 and norm["wait_us"] is None and norm["work_us"] is None


@pytest.mark.parametrize(("rows", "context"), [(1, 1), (1, 100), (3, 512), (8, 3000)])
def test_bytes_of_the_packets_are_the_bytes_of_the_step(gpu_bundle: Bundle, rows: int, context: int) -> None:
    for program in [p for p in gpu_bundle.packets.programs if p.rows >= rows]:
        step = step_of(program, gpu_bundle.packets.nodes, marks_of(program), rows, context)
        assert sum(p.bytes for p in step.packets) == weight_bytes(program) + kv_bytes(program, rows, context)
        assert sum(p.bytes for p in find(step, "attention")) == kv_bytes(program, rows, context)


def test_parts_of_an_attention_share_its_pages(gpu_bundle: Bundle, record: ProgramRecord) -> None:
    def sizes(context: int) -> dict[int, set[int]]:
        step = step_of(record, gpu_bundle.packets.nodes, marks_of(record), 1, context)
        parts = find(step, "attention")
        return {s: {p.bytes for p in parts if p.packet.dims["split"] == s} for s in (0, 1)}

    assert sizes(128) == {0: {128 * 4 * 64}, 1: {0}}, "a part of fewer than 8 pages is not worth it"
    assert sizes(600) == {0: {19 * 16 * 4 * 64}, 1: {(600 - 19 * 16) * 4 * 64}}


def test_the_table_adds_up_to_the_step(step: Step) -> None:
    found = trace.report(step, 2e12)
    rows, total = found["families"], found["sum"]
    assert [r["family"] for r in rows] == ["embed", "qkv", "attention", "o", "gate_up", "down", "head", "sample"]
    for key in ("packets", "bytes", "floor_us", "span_us", "share"):
        assert sum(r[key] for r in rows) == pytest.approx(total[key])
    assert total["packets"] == len(step.packets) and total["share"] == pytest.approx(1)
    assert total["span_us"] == pytest.approx(found["step"]["us"]) == pytest.approx(step.ns / 1e3)
    assert found["step"]["floor_us"] == pytest.approx(total["bytes"] / 2e6)
    assert found["step"]["pct_of_floor"] == pytest.approx(100 * total["floor_us"] / found["step"]["us"])


def test_what_takes_longer_is_charged_to_its_operator(gpu_bundle: Bundle, record: ProgramRecord, step: Step) -> None:
    late = 7000
    marks = marks_of(record)
    moved = {s for s, p in ((p.packet.seq, p) for p in step.packets) if p.family in ("head", "sample")}
    for w, packets in enumerate(step.workers):
        for i, p in enumerate(packets):
            if p.packet.seq in moved:
                marks[w, i, 1:] += np.where(marks[w, i, 1:] > 0, late, 0).astype(np.uint64)
    before = {f["family"]: f for f in trace.report(step, 1e12)["families"]}
    after = {
        f["family"]: f
        for f in trace.report(step_of(record, gpu_bundle.packets.nodes, marks, 1, CONTEXT), 1e12)["families"]
    }
    changed = {k: after[k]["span_us"] - before[k]["span_us"] for k in before}
    assert changed == pytest.approx({k: late / 1e3 if k == "head" else 0 for k in before})
    assert after["head"]["wait_us"] == pytest.approx(before["head"]["wait_us"] + late / 1e3)
    assert after["head"]["work_us"] == pytest.approx(before["head"]["work_us"])


def test_the_path_has_no_gaps_and_no_negative_part(gpu_bundle: Bundle, record: ProgramRecord) -> None:
    marks = marks_of(record)
    for w, packets in enumerate(record.lists):  # as without waits: the head is through before its input
        for i, p in enumerate(map(decode, packets)):
            if p.opcode == Opcode.STREAM_HEAD:
                marks[w, i] = START + np.arange(4, dtype=np.uint64)
    step = step_of(record, gpu_bundle.packets.nodes, marks, 1, CONTEXT)
    legs = step.legs
    assert legs[0].begin == step.begin and legs[-1].end == step.end
    assert all(a.end == b.begin for a, b in pairwise(legs))
    assert [g.end - g.begin for g in legs if g.family == "head"] == [0] and all(g.end >= g.begin for g in legs)


def test_a_step_is_as_long_as_a_period(gpu_bundle: Bundle, record: ProgramRecord, step: Step) -> None:
    """A worker that is through early marks the start of its next step inside the one before."""
    marks, early = marks_of(record), 5000
    assert step.ns == np.mean([max(p.done or 0 for p in worker) for worker in step.workers]), "all start together"
    for w, packets in enumerate(step.workers):
        first = next(i for i, p in enumerate(packets) if p.start is not None)
        marks[w, first, 0] -= early + 10 * w
    longer = step_of(record, gpu_bundle.packets.nodes, marks, 1, CONTEXT)
    assert longer.ns == step.ns + early + 20 and longer.end == step.end + early + 40, "the latter from the first mark"


# -- files -------------------------------------------------------------------------------------------------------------
def test_the_perfetto_file_has_an_event_for_every_packet(step: Step) -> None:
    found = json.loads(json.dumps(chrome_trace({"one": step, "two": step}, {"note": ""})))
    events = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert len(events) == 2 * len(step.packets) and {e["pid"] for e in events} == {0, 1}
    names = [e for e in found["traceEvents"] if e["ph"] == "M"]
    assert [e["args"]["name"] for e in names if e["name"] == "process_name"] == ["one", "two"]
    assert [e["args"]["name"] for e in names if e["name"] == "thread_name"][:2] == ["worker 0", "worker 1"]
    linear = next(e for e in events if e["name"] == "STREAM_LINEAR layer.1.o_proj" and e["tid"] == 3)
    p = next(p for p in step.workers[3] if p.node == "layer.1.o_proj")
    assert linear["cat"] == "STREAM_LINEAR" and linear["args"]["part"] == "tiles 6..7"
    assert linear["args"]["wait_ns"] == p.wait and linear["args"]["work_ns"] == WORK
    assert linear["args"]["publish_ns"] == PUBLISH and linear["args"]["bytes"] == p.bytes == 16 * 256 * 2
    embed = next(e for e in events if e["cat"] == "STREAM_EMBED")
    assert not {"wait_ns", "work_ns", "publish_ns"} & set(embed["args"]) and embed["cname"] != linear["cname"]


def test_events_of_a_worker_do_not_overlap(step: Step) -> None:
    events = [e for e in chrome_trace({"": step}, {})["traceEvents"] if e["ph"] == "X"]
    for w in range(WORKERS):
        mine = [e for e in events if e["tid"] == w]
        assert min(e["ts"] for e in mine) >= 0 and max(e["ts"] + e["dur"] for e in mine) <= step.end / 1e3 + 1e-6
        for a, b in pairwise(mine):
            assert b["ts"] >= a["ts"] + a["dur"] - 1e-6
    raw = [p for p in step.workers[0] if p.start is not None]
    assert any(b.start < a.end for a, b in pairwise(raw)), "as they were marked, they do"
    for s in slices(step.workers[0]):
        assert s.begin <= s.ready <= s.done <= s.end


def test_the_picture_shows_one_layer_to_scale(step: Step) -> None:
    text = timeline_svg(step, "a <title>")
    root = xml.fromstring(text)
    words = ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    layer, legs = layer_of(step)
    assert layer == "layer.1" and [g.family for g in legs] == ["qkv", "attention", "o", "gate_up", "down"]
    assert any(w.startswith("layer.1: ") for w in words) and "a <title>" in words
    assert {"qkv", "attention", "o", "gate_up", "down", "waiting", "0", "worker 0", "worker 4"} <= set(words)
    tips = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any("STREAM_LINEAR layer.1.qkv" in t for t in tips) and not any("layer.0.o_proj" in t for t in tips)
    width = float(root.get("width", "0"))
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        if rect.get("x"):
            assert float(rect.get("x", "")) >= 0 and float(rect.get("x", "")) + float(rect.get("width", "")) <= width


def test_a_program_without_layers_is_shown_whole(gpu_bundle: Bundle, record: ProgramRecord) -> None:
    nodes = [n.replace("layer.", "") for n in gpu_bundle.packets.nodes]
    step = step_of(record, nodes, marks_of(record), 1, CONTEXT)
    assert layer_of(step) == ("step", step.legs) and "STREAM_SAMPLE" in timeline_svg(step, "")


# -- the command -------------------------------------------------------------------------------------------------------
@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, StepBatch, int, int]]:
    """Stands in for the device's marks; (program, batch, steps, flags) of every trace that was asked for."""
    asked: list[tuple[int, StepBatch, int, int]] = []

    def found(self: CudaBackend, program: int, batch: StepBatch, n_steps: int = 3) -> np.ndarray:
        asked.append((program, batch, n_steps, self.flags))
        return marks_of(self.bundle.packets.programs[program])

    monkeypatch.setattr(CudaBackend, "trace", found)
    return asked


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle that commands open, each on a fake device of its own."""
    bundle = lowered(tmp_path, LLAMA, synthetic=True)
    bundle.manifest["machine"] = {"name": "h200", "read_bytes_per_s": 4e12}

    def load(path: Path, allow_uncertified: bool) -> Bundle:
        monkeypatch.setitem(sys.modules, "cupy", FakeCupy(interpret(bundle)))
        return bundle

    monkeypatch.setattr("plow.runtime.llm.bundles.load", load)
    return tmp_path


def command(path: Path, *args: str) -> Result:
    asked = ["trace", "--assets", str(path), "--context", "40", "--out", str(path / "trace.json"), *args]
    return CliRunner().invoke(plowrt.app, asked, env={"COLUMNS": "200"})


Traced = list[tuple[int, StepBatch, int, int]]


def test_the_command_reports_the_step(opened: Path, traced: Traced) -> None:
    r = command(opened, "--batch", "3", "--steps", "4", "--svg", str(opened / "layer.svg"), "--json")
    assert r.exit_code == 0, r.stderr
    found = json.loads(r.stdout)
    assert found["schema"] == "plowrt.trace/1" and found["note"] == "" and found["diagnosis"] == []
    assert (found["batch"], found["context"], found["ceiling_gbs"]) == (3, 40, 4000)
    assert found["sum"]["span_us"] == pytest.approx(found["step"]["us"])
    (program, batch, steps, flags), *others = traced
    assert not others and flags == 0 and steps == 4 and found["program"] == program == 2
    assert (batch.positions + steps - 1 == 40).all(), "the traced step is the launch's last: 40 positions before it"
    assert "STREAM_HEAD" in (opened / "trace.json").read_text()
    assert xml.parse(opened / "layer.svg").getroot().tag.endswith("svg")
    assert found["files"] == {"trace": str(opened / "trace.json"), "svg": str(opened / "layer.svg")}


def test_people_see_a_table_that_ends_with_the_sum(opened: Path, traced: Traced) -> None:
    r = command(opened, "--ceiling-gbs", "2000")
    lines = [line for line in r.stdout.splitlines() if "│" in line]
    assert r.exit_code == 0 and "of 2000 GB/s, as given" in r.stdout and trace.WRONG not in r.stdout
    assert [re.split(r"\W+", line.strip("│ "))[0] for line in lines] == [
        "embed", "qkv", "attention", "o", "gate_up", "down", "head", "sample", "step"]  # fmt: skip
    assert "100.0%" in lines[-1] and str(opened / "trace.json") in r.stderr


@pytest.mark.parametrize("switch", trace.DIAGNOSIS)
def test_a_diagnosis_is_labelled_in_every_output(opened: Path, traced: Traced, switch: str) -> None:
    name = f"--{switch.replace('_', '-')}"
    r = command(opened, name, "--svg", str(opened / "layer.svg"), "--json")
    assert trace.WRONG in json.loads(r.stdout)["note"] and trace.WRONG in r.stderr
    assert all(f"{switch}: {trace.WRONG}" in (opened / f).read_text() for f in ("trace.json", "layer.svg"))
    assert [flags for *_, flags in traced] == [trace.DIAGNOSIS[switch]]
    assert trace.WRONG in command(opened, name).stdout
    plain = command(opened, "--svg", str(opened / "layer.svg"))
    assert all(trace.WRONG not in text for text in (plain.stdout, plain.stderr, (opened / "layer.svg").read_text()))


def test_diagnosis_switches_add_up_and_are_the_kernels() -> None:
    text = re.search(r"enum Diagnosis : uint32_t \{(.*?)\};", (SOURCES / "params.h").read_text(), re.S)
    assert text is not None
    kernel = {m[1].lower(): int(m[2]) for m in re.finditer(r"(NO_\w+) = (\d+)", text[1])}
    assert kernel == trace.DIAGNOSIS and sum(kernel.values()) == 15


@pytest.mark.parametrize(
    ("args", "what", "fix"),
    [
        (("--context", "64"), "5 steps that end at position 64 do not fit", "a context from steps - 1 to 63"),
        (("--context", "3"), "5 steps that end at position 3 do not fit", "at least 1 and 2"),
        (("--batch", "9"), "no program decodes 9 rows", "more row buckets"),
        (("--out", "/none/such/trace.json"), "no such directory", "write somewhere else"),
        (("--svg", "/"), "cannot write", "write somewhere else"),
    ],
)
def test_what_cannot_be_traced_is_a_typed_error(
    opened: Path, traced: Traced, args: Sequence[str], what: str, fix: str
) -> None:
    r = command(opened, *args)
    errors = [line for line in r.stderr.splitlines() if line.startswith("error: ")]
    assert r.exit_code == 2 and r.stdout == "" and len(errors) == 1 and what in errors[0] and fix in errors[0]
    assert command(opened).exit_code == 0


def test_a_cpu_bundle_marks_no_packets(
    tiny_llama: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_bundle(tiny_llama, tmp_path_factory)
    r = command(path, "--out", str(tmp_path / "t.json"), "--allow-uncertified", "--json")
    error = json.loads(r.stdout)
    assert r.exit_code == 2 and error["error"] == "RequestError" and error["where"] == str(path)
    assert error["what"] == "a bundle for 'cpu' marks no packets" and "plowc --gpu h200" in error["fix"]
    assert trace.main([str(path)]) == 2 and "marks no packets" in capsys.readouterr().err
    assert not (tmp_path / "t.json").exists()


def test_a_floor_needs_a_bandwidth(gpu_bundle: Bundle) -> None:
    with pytest.raises(RequestError, match=r"no bandwidth to count a floor with.*give --ceiling-gbs"):
        trace.ceiling(gpu_bundle, 0.0)
    with pytest.raises(RequestError, match="no bandwidth"):
        trace.ceiling(gpu_bundle, -1.0)
    assert trace.ceiling(gpu_bundle, 1.5) == (1.5e9, "as given")


def test_the_module_needs_no_command_line_packages(
    opened: Path, traced: Traced, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("typer", "rich", "pydantic"):
        monkeypatch.setitem(sys.modules, name, None)
    asked = [str(opened), "--context", "40", "--out", str(opened / "t.json"), "--svg", str(opened / "t.svg")]
    assert trace.main([*asked, "--no-math"]) == 0
    out = capsys.readouterr().out
    assert f"no_math: {trace.WRONG}" in out and "us a step, floor" in out and out.splitlines()[-1].startswith("step")
    assert (opened / "t.json").is_file() and (opened / "t.svg").is_file()
    assert trace.main([*asked, "--json"]) == 0 and json.loads(capsys.readouterr().out)["schema"] == "plowrt.trace/1"
    assert trace.main([*asked, "--batch", "0"]) == 2 and "batch 0" in capsys.readouterr().err
    assert trace.main([*asked, "--steps", "1"]) == 2 and "1 steps" in capsys.readouterr().err
    assert trace.main([*asked, "--batch", "9"]) == 2 and "error: no program" in capsys.readouterr().err
