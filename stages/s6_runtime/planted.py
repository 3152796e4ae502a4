"""Known-bad servers for the gate of stage 6: each answers like ours, with one fault."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from plow.packet import container
from plow.packet.abi import Opcode
from plow.packet.codec import Packet, encode
from stages.base import GateReport, Planted, StageContext, Thresholds
from stages.s6_runtime.gate import HERE, PROMPTS, measure

ARENA = 1 << 20
BEFORE_ALONE = 1 + len(PROMPTS)
"""Streams of the warm-up and of the batch; what follows runs alone."""


class FakeServer(BaseHTTPRequestHandler):
    """Speaks just enough of the API; `fault` names what it does wrong."""

    fault = ""
    streams = 0

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json(
            {
                "certified": self.fault != "uncertified",
                "load": {"used_blocks": 3 if self.fault == "leak" else 0},
                "memory": {"arena_bytes": ARENA * (2 if self.fault == "memory" else 1), "resident_bytes": 1e8},
            }
        )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        count = body["max_tokens"] if self.fault != "truncated" else body["max_tokens"] // 2
        words = [f"{body['prompt'][:4]}{i} " for i in range(count)]
        if not body.get("stream"):
            self._json(
                {
                    "choices": [{"text": "".join(words), "finish_reason": "length"}],
                    "usage": {"completion_tokens": count},
                }
            )
            return
        type(self).streams += 1
        if self.fault == "streaming" or (self.fault == "batch" and self.streams <= BEFORE_ALONE):
            words[0] = "other "
        self.send_response(200)
        self.end_headers()
        for w in words:
            self._event({"choices": [{"text": w, "finish_reason": None}]})
        self._event({"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": count}})

    def _event(self, event: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def _json(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def fake(fault: str) -> Iterator[str]:
    handler = type("Handler", (FakeServer,), {"fault": fault, "streams": 0})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def tiny_packets(path: Path) -> None:
    """A packet file whose header predicts ARENA bytes."""
    nop = encode([Packet(Opcode.NOP, waits=[(0, 1)], signals=[0])])
    program = container.ProgramRecord(1, 1, [1], [nop], 0, 16)
    container.save(container.PacketFile({"nodes": ["nop"], "arena": {"bytes": ARENA}}, [program]), path)


def subject(ctx: StageContext, fault: str) -> GateReport:
    thresholds = Thresholds.load(HERE / "thresholds.toml", "cpu")
    tiny_packets(ctx.workdir / "model.pkt")
    with fake(fault) as base:
        values = measure(base, ctx.workdir)
    return GateReport(6, [thresholds.check(k, v, "plow-bringup self-test --gates") for k, v in values.items()])


def planted(name: str, fault: str, expect: str) -> Planted:
    return Planted(name, lambda ctx: subject(ctx, fault), lambda ctx: subject(ctx, ""), expect)


PLANTED = (
    planted("server runs uncertified packets", "uncertified", "certified"),
    planted("server truncates answers", "truncated", "requests_complete"),
    planted("streamed text differs from whole text", "streaming", "streaming_equals_whole"),
    planted("text depends on batch mates", "batch", "alone_equals_in_batch"),
    planted("disconnects leak KV blocks", "leak", "blocks_left_after_disconnects"),
    planted("arena is larger than predicted", "memory", "memory_over_prediction"),
)
