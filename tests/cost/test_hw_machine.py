"""Machine specs: every number has a source, a bad spec is a typed error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plow import hw
from plow.errors import ConfigError
from plow.hw.machine import NUMBERS, SOURCES, Machine

FLAT = {"name": "m", "workers": 4, "read_bytes_per_s": 1e11, "fp32_flops": 1e12, "bf16_flops": 2e12, "hop_s": 1e-7,
        "packet_s": 1e-8}


@pytest.mark.parametrize("name", hw.names())
def test_every_number_of_a_spec_has_a_source_and_a_note(name: str) -> None:
    m = hw.load(name)
    assert m.name == name and m.note and set(m.sources) >= set(NUMBERS)
    assert set(m.sources.values()) <= set(SOURCES)


def test_measured_values_win_over_the_datasheet_which_is_kept() -> None:
    m = hw.load("h200")
    assert m.read_bytes_per_s == 4.53e12 and m.sources["read_bytes_per_s"] == "measured"
    assert m.datasheet["read_bytes_per_s"] == 4.8e12
    assert m.fp32_flops == m.datasheet["fp32_flops"] and m.sources["fp32_flops"] == "datasheet"


def test_a_machine_survives_json_with_its_sources(tmp_path: Path) -> None:
    for name in hw.names():
        m = hw.load(name)
        path = tmp_path / f"{name}-copy.json"
        path.write_text(json.dumps(m.to_json()))
        again = hw.load(path)
        assert again == m and again.sources == m.sources and again.datasheet == m.datasheet


@pytest.mark.parametrize(("change", "message"), [
    ({"hop_s": 0}, "hop_s must be a positive number"), ({"workers": "2"}, "workers must be a positive number"),
    ({"fp32_flops": float("nan")}, "fp32_flops must be"), ({"matmul": "int8"}, "matmul must be one of"),
    ({"cores": 2}, "unknown field 'cores'"),
])
def test_a_bad_field_is_a_typed_error(change: dict[str, object], message: str) -> None:
    assert Machine.from_json(FLAT).workers == 4
    with pytest.raises(ConfigError, match=message):
        Machine.from_json(FLAT | change)


@pytest.mark.parametrize("field", [*NUMBERS, "workers", "name"])
def test_a_missing_field_is_a_typed_error(field: str) -> None:
    with pytest.raises(ConfigError, match=f"'{field}' is missing"):
        Machine.from_json({k: v for k, v in FLAT.items() if k != field})


def test_an_unknown_machine_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"known: .*cpu.*h200"):
        hw.load("tpu")
    for text in ("{", "[]"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match="machine spec"):
            hw.load(tmp_path / "bad.json")
