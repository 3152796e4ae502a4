"""A bundle loads only when everything about it is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from handmade import Handmade

from plow.errors import BundleError
from plow.packet.codec import Opcode, Packet
from plow.runtime.bundle import load


@pytest.fixture
def made(tmp_path: Path) -> tuple[Handmade, dict[str, Any]]:
    hm = Handmade(tmp_path / "bundle")
    return hm, hm.write([(8, 8, [Packet(Opcode.NOP)], 0, 64)])


def test_a_whole_bundle_loads(made: tuple[Handmade, dict[str, Any]]) -> None:
    hm, manifest = made
    b = load(hm.path)
    assert b.certified and b.target == "cpu" and b.limits.max_ctx == 64 and b.uncertified_reason == ""
    assert b.digests["model.pkt"] == manifest["packets"]["sha256"] == b.packet_digest
    assert b.segments["kv"][0] + b.segments["kv"][1] == b.arena_bytes
    assert len(b.weights()) == b.segments["weights"][1]


FILES = ["model.pkt", "weights.bin", "interp.so", "config.json"]


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_in_any_file_is_refused(made: tuple[Handmade, dict[str, Any]], name: str) -> None:
    file = made[0].path / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleError, match="sha256") as e:
        load(made[0].path, allow_uncertified=True)
    assert name in e.value.where and "plowc" in e.value.fix


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_any_missing_file_is_named(made: tuple[Handmade, dict[str, Any]], name: str) -> None:
    (made[0].path / name).unlink()
    with pytest.raises(BundleError) as e:
        load(made[0].path, allow_uncertified=True)
    assert name in e.value.where


def set_key(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (set_key("schema", to="plow.bundle/0"), "schema is 'plow.bundle/0'"),
        (set_key("target", to="abacus"), "target 'abacus', this plowrt runs cpu, h200"),
        (set_key("files", to=[]), "lists no files"),
        (set_key("packets", to={}), "names no packets file"),
        (set_key("interpreter", to=None), "names no interpreter file"),
        (set_key("weights", "sha256", to=None), "no sha256 for weights.bin"),
        (set_key("files", to={"../escape": "0" * 64}), "leaves the bundle"),
    ],
)
def test_a_wrong_manifest_is_refused(made: tuple[Handmade, dict[str, Any]], change: Callable, what: str) -> None:
    hm, manifest = made
    change(manifest)
    hm.save_manifest(manifest)
    with pytest.raises(BundleError, match=what):
        load(hm.path, allow_uncertified=True)


@pytest.mark.parametrize("text", ["{", "[]", "null", '"x"'])
def test_a_manifest_that_is_no_object_is_refused(made: tuple[Handmade, dict[str, Any]], text: str) -> None:
    (made[0].path / "manifest.json").write_text(text)
    with pytest.raises(BundleError):
        load(made[0].path)


@pytest.mark.parametrize(
    ("certificate", "what"),
    [
        (None, "certificate D is missing"),
        ({"verdict": "rejected"}, "does not say certified"),
        ([], "does not say certified"),
        ({"verdict": "certified", "packet_sha256": "0" * 64}, "about other packets"),
        ("{", "no JSON"),
    ],
)
def test_without_a_certificate_for_these_packets_it_fails_closed(
    made: tuple[Handmade, dict[str, Any]], certificate: Any, what: str
) -> None:
    file = made[0].path / "certificates" / "D.json"
    if certificate is None:
        file.unlink()
    else:
        file.write_text(certificate if isinstance(certificate, str) else json.dumps(certificate))
    with pytest.raises(BundleError, match=what) as e:
        load(made[0].path)
    assert "--allow-uncertified" in e.value.fix
    b = load(made[0].path, allow_uncertified=True)
    assert not b.certified and what in b.uncertified_reason


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"max_ctx": 0}, "limits.max_ctx is 0"),
        ({"num_kv_blocks": "9"}, "limits.num_kv_blocks"),
        ({"blocks_per_seq": None}, "limits.blocks_per_seq is None"),
    ],
)
def test_impossible_limits_are_refused(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    hm = Handmade(tmp_path / "bundle")
    hm.limits |= change
    hm.write([(8, 8, [Packet(Opcode.NOP)], 0, 64)])
    with pytest.raises(BundleError, match=what):
        load(hm.path)


def test_a_bundle_without_programs_is_refused(tmp_path: Path) -> None:
    hm = Handmade(tmp_path / "bundle")
    hm.write([])
    with pytest.raises(BundleError, match="no programs"):
        load(hm.path)
