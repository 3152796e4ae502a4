"""Machine code in which shared memory is given back under loads in flight is found, and other code is left alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plow.cli import plowc
from plow.errors import ConfigError, ToolMissing
from plow.runtime import build_cuda
from plow.verify import sass
from plow.verify.sass import Entry, LoadInFlight, SassError, check_text, find_nvdisasm, parse

HEADER = """\t.target\tsm_90a

\t.section\t.text.k,"ax",@progbits
\t.align\t128
        .global         k
        .type           k,@function
        .other          k,@"STO_CUDA_ENTRY STV_DEFAULT"
k:
.text.k:
"""


def listing(code: str) -> str:
    """The text of nvdisasm for lines like `LDS R4, [R2] | sb0`, `FADD R5, R4, R4 | w0,1`, `.L_x_1:`; sb: the scoreboard
    that a load counts up, w: those that an instruction waits for."""
    text, address = HEADER, 0
    for line in filter(None, map(str.strip, code.splitlines())):
        if line.endswith(":") or line.startswith("//"):
            text += f"{line}\n"
            continue
        what, _, marks = line.partition("|")
        board = re.search(r"sb(\d)", marks)
        waits = re.search(r"w([\d,]+)", marks)
        control = (int(board[1]) if board else 7) << 5 | 7 << 8 | 0x11
        for b in waits[1].split(",") if waits else []:
            control |= 1 << 11 + int(b)
        text += f"        /*{address:04x}*/  {what.strip():>60} ;    /* 0x{address:016x} */\n"
        text += f"{'':90}/* 0x{control << 41 | 0xABC:016x} */\n"
        address += 16
    return text


def entry(code: str) -> Entry:
    (found,) = check_text(listing(code))
    return found


def hazards(code: str) -> list[tuple[int, list[int]]]:
    """Addresses of the arrives and of the loads that may be in flight there."""
    return [(v.arrive.address, [x.address for x in v.loads]) for v in entry(code).violations]


ARRIVE = "@!P0 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R9+URZ+0x60], RZ"
END = "EXIT\n.L_x_99:\nBRA `(.L_x_99)"


# -- reading -----------------------------------------------------------------------------------------------------------
def test_control_bits_are_those_of_a_real_encoding() -> None:
    """Lines of nvdisasm 13.5: S2R R0 sets scoreboard 0, LEA.HI waits for it, SYNCS has its sources on scoreboard 1."""
    (code,) = parse(HEADER + """
        /*0020*/                   S2R R0, SR_TID.X ;                                  /* 0x0000000000007919 */
                                                                                       /* 0x000e220000002100 */
        /*0110*/                   LEA R3, R4, R3, 0x18 ;                              /* 0x0000000304037211 */
                                                                                       /* 0x001fce00078ec0ff */
.L_x_7:
        /*0120*/             @!P1 SYNCS.ARRIVE.TRANS64.ART0 RZ, [R79+URZ+0x38a60], R77 ;    /* 0x038a604d4fff99a7 */
                                                                                       /* 0x0003ea00080000ff */
        /*0130*/                   BRA `(.L_x_7);                                      /* 0xfffffffc00fc7947 */
                                                                                       /* 0x000fc0000383ffff */
""")
    assert [(x.opcode, x.scoreboard, x.waits) for x in code.code] == [
        ("S2R", 0, 0), ("LEA", 7, 1), ("SYNCS.ARRIVE.TRANS64.ART0", 7, 0), ("BRA", 7, 0)]  # fmt: skip
    assert code.code[2].guard == "@!P1" and code.code[2].address == 0x120 and code.code[2].arrives
    assert code.code[3].operands == "`(.L_x_7)" and code.labels[".L_x_7"] == 2


@pytest.mark.parametrize(
    ("opcode", "counts"),
    [
        ("SYNCS.ARRIVE.TRANS64.A1T0", True),
        ("SYNCS.ARRIVE.TRANS64.ART0", True),
        ("SYNCS.ARRIVE.TRANS64.RED.A1T0", True),
        ("SYNCS.ARRIVE.TRANS64.OPTOUT.A1T0", True),
        ("ARRIVES.LDGSTSBAR.64.ARVCNT", True),
        ("SYNCS.ARRIVE.TRANS64", False),  # arrive.expect_tx
        ("SYNCS.ARRIVE.TRANS64.RED.A0TR", False),  # expect_tx
        ("SYNCS.ARRIVE.TRANS64.RED.A0TX", False),  # complete_tx
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT", False),
        ("SYNCS.EXCH.64", False),
    ],
)
def test_arrives_count_unless_they_announce_bytes(opcode: str, counts: bool) -> None:
    found = entry(f"LDS R4, [R2] | sb0\n{opcode} RZ, [R9], RZ\n{END}")
    assert (found.loads, found.arrives, len(found.violations)) == (1, counts, counts)


@pytest.mark.parametrize(
    ("opcode", "counts"),
    [
        *[("LDS", 1), ("LDS.U.128", 1), ("LDSM.16.M88.4", 1), ("LD.E.64", 1)],
        *[("LDG.E", 0), ("LDL.64", 0), ("ULDC.64", 0), ("STS.128", 0)],
    ],
)
def test_loads_that_may_read_shared_memory_count(opcode: str, counts: int) -> None:
    found = entry(f"{opcode} R4, [R2] | sb0\n{ARRIVE}\n{END}")
    assert (found.loads, len(found.violations)) == (counts, counts)


# -- straight code -----------------------------------------------------------------------------------------------------
def test_an_arrive_behind_the_use_of_the_load_is_fine_and_before_it_is_not() -> None:
    load, use = "LDS.128 R4, [R2] | sb3", "FADD R8, R4, R5 | w3"
    assert hazards(f"{load}\n{use}\n{ARRIVE}\n{END}") == []
    assert hazards(f"{load}\n{ARRIVE}\n{use}\n{END}") == [(0x10, [0])]


def test_a_load_whose_result_is_not_used_is_a_hazard() -> None:
    assert hazards(f"LDS R4, [R2] | sb0\n{ARRIVE}\n{END}") == [(0x10, [0])]


def test_only_the_loads_own_scoreboard_helps() -> None:
    for waits, expected in (("0", []), ("1", [(0x20, [0])]), ("1,2,3,4,5", [(0x20, [0])]), ("0,5", [])):
        assert hazards(f"LDS R4, [R2] | sb0\nNOP | w{waits}\n{ARRIVE}\n{END}") == expected


def test_a_wait_clears_all_loads_of_the_scoreboard_and_no_later_one() -> None:
    loads = "LDS R4, [R2] | sb0\nLDS R5, [R2+0x10] | sb0\nLDS R6, [R2+0x20] | sb1"
    assert hazards(f"{loads}\nNOP | w0,1\n{ARRIVE}\n{END}") == []
    assert hazards(f"{loads}\nNOP | w0\n{ARRIVE}\n{END}") == [(0x40, [0x20])]
    assert hazards(f"{loads}\nNOP | w0,1\nLDS R7, [R2+0x30] | sb0\n{ARRIVE}\n{END}") == [(0x50, [0x40])]


def test_the_arrive_itself_may_wait() -> None:
    assert hazards(f"LDS R4, [R2] | sb2\n{ARRIVE} | w2\n{END}") == []


def test_a_guarded_instruction_waits_as_any_other() -> None:
    assert hazards(f"@P3 LDS R4, [R2] | sb2\n@P3 FADD R4, R4, R4 | w2\n{ARRIVE}\n{END}") == []


def test_a_load_without_a_scoreboard_lands_with_the_next_load_that_has_one() -> None:
    first = "LDS R4, [R2]\nLDS R5, [R2+0x10]"
    assert hazards(f"{first}\n@P1 LDS R6, [R2+0x20] | sb1\nNOP | w1\n{ARRIVE}\n{END}") == []
    assert hazards(f"{first}\nLDS R6, [R2+0x20] | sb1\n{ARRIVE}\n{END}") == [(0x30, [0, 0x10, 0x20])]
    assert hazards(f"{first}\nNOP | w0,1,2,3,4,5\n{ARRIVE}\n{END}") == [(0x30, [0, 0x10])]
    assert hazards(f"LDS R6, [R2] | sb1\n{first}\nNOP | w1\n{ARRIVE}\n{END}") == [(0x40, [0x10, 0x20])]


def test_generic_loads_have_no_order() -> None:
    assert hazards(f"LD.E R4, [R2.64]\nLDS R6, [R2] | sb1\nNOP | w1\n{ARRIVE}\n{END}") == [(0x30, [0])]
    assert hazards(f"LDS R4, [R2]\nLD.E R6, [R2.64] | sb1\nNOP | w1\n{ARRIVE}\n{END}") == [(0x30, [0])]
    assert hazards(f"LD.E R4, [R2.64] | sb0\nNOP | w0\n{ARRIVE}\n{END}") == []


def test_depbar_waits_when_it_counts_to_zero() -> None:
    loads = "LDS R4, [R2] | sb0\nLDS R5, [R2] | sb1"
    assert hazards(f"{loads}\nDEPBAR.LE SB0, 0x0, {{1}}\n{ARRIVE}\n{END}") == []
    assert hazards(f"{loads}\nDEPBAR.LE SB0, 0x1, {{1}}\n{ARRIVE}\n{END}") == [(0x30, [0])]
    assert hazards(f"{loads}\nDEPBAR.LE SB1, 0x0\n{ARRIVE}\n{END}") == [(0x30, [0])]


# -- paths -------------------------------------------------------------------------------------------------------------
BRANCH = """LDS R4, [R2] | sb0
@P1 BRA `(.L_x_1)
{left}
BRA `(.L_x_2)
.L_x_1:
{right}
.L_x_2:
"""


def test_every_path_must_wait() -> None:
    wait, not_ = "FADD R5, R4, R4 | w0", "FADD R5, R6, R6"
    assert hazards(BRANCH.format(left=wait, right=wait) + f"{ARRIVE}\n{END}") == []
    for left, right in ((wait, not_), (not_, wait), (not_, not_)):
        assert hazards(BRANCH.format(left=left, right=right) + f"{ARRIVE}\n{END}") == [(0x50, [0])]


def test_a_branch_that_is_always_taken_has_one_path() -> None:
    code = "LDS R4, [R2] | sb0\n{} `(.L_x_1)\n{}\n.L_x_1:\nNOP | w0\n{}\n{}"
    assert hazards(code.format("BRA", ".L_x_0:\n" + ARRIVE, "NOP", "@P1 BRA `(.L_x_0)\n" + END)) == []
    for conditional in ("@P1 BRA", "BRA.U UP0,", "BRA.DIV UR4,", "@P0 BRA.U.ANY", "BRA P1,"):
        assert hazards(code.format(conditional, ARRIVE, ARRIVE, END)) == [(0x20, [0])]


def test_loads_of_a_turn_of_a_loop_are_in_flight_in_the_next() -> None:
    loop = f".L_x_1:\n{ARRIVE}\nLDS R4, [R2] | sb0\n{{}}\n@P1 BRA `(.L_x_1)\n{END}"
    assert hazards(loop.format("NOP")) == [(0, [0x10])]
    assert hazards(loop.format("NOP | w0")) == []


def test_code_behind_an_exit_is_reached_only_by_those_that_stay() -> None:
    code = f".L_x_0:\nLDS R4, [R2] | sb0\n{{}}\n{ARRIVE}\n@P1 BRA `(.L_x_0)\n{END}"
    assert hazards(code.format("@P2 EXIT")) == [(0x20, [0])]
    with pytest.raises(SassError, match="no path reaches 0x20"):
        entry(code.format("EXIT"))


def test_lanes_that_meet_bring_their_loads_along() -> None:
    code = f"""BSSY B0, `(.L_x_2)
        @P1 BRA `(.L_x_1)
        LDS R4, [R2] | sb0
        {{}}
        .L_x_1:
        BSYNC B0
        .L_x_2:
        {ARRIVE}
        {END}"""
    assert hazards(code.format("NOP | w0")) == []
    assert hazards(code.format("NOP")) == [(0x50, [0x20])]


def test_lanes_go_on_where_their_barrier_says() -> None:
    code = f"""BSSY B0, `(.L_x_2)
        LDS R4, [R2] | sb0
        BSYNC B0
        NOP | w0
        .L_x_2:
        {ARRIVE}
        {END}"""
    assert hazards(code) == [(0x40, [0x10])]


CALLS = f"""LDS R4, [R2] | sb0
MOV R20, 0x30
CALL.REL.NOINC `(.L_x_5)
{{}}
MOV R20, 0x60
CALL.REL.NOINC `(.L_x_5)
{ARRIVE}
{END}
.L_x_5:
{{}}
@P1 BRA `(.L_x_6)
NOP
.L_x_6:
RET.REL.NODEC R20 `(k)
"""


def test_calls_are_followed() -> None:
    assert hazards(CALLS.format("NOP", "NOP | w0")) == []
    assert hazards(CALLS.format("NOP", "NOP")) == [(0x60, [0])]
    assert hazards(CALLS.format("NOP", ARRIVE)) == [(0x60, [0]), (0x90, [0])]


def test_a_callee_returns_to_its_caller_only() -> None:
    assert hazards(CALLS.format("NOP | w0", "NOP")) == []


def test_a_jump_table_is_followed() -> None:
    code = """LDS R4, [R2] | sb0
        BRX R6 -0x1a0 (*"BRANCH_TARGETS .L_x_1,.L_x_2"*)
        .L_x_1:
        NOP | w0
        .L_x_2:
        {}
        {}"""
    assert hazards(code.format(ARRIVE, END)) == [(0x30, [0])]
    assert hazards(code.replace("BRX R6", "NOP R6").format(ARRIVE, END)) == []


# -- what is not understood gets no verdict ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("BRX R6 -0x1a0\nEXIT", "not in the text"),
        ("JMP 0x100\nEXIT", "not in the text"),
        ("BRA `(.L_x_7)\nEXIT", "not in the text"),
        ("CALL.REL.NOINC `(.L_x_1)\n.L_x_1:\nEXIT", "unknown return address"),
        ("MOV R2, 0x200\nCALL.REL.NOINC `(.L_x_1)\n.L_x_1:\nEXIT", "unknown return address"),
        (".L_x_1:\nMOV R2, 0x20\nCALL.REL.NOINC `(.L_x_1)\nEXIT", "calls deeper than 8"),
        ("RET.REL.NODEC R2 `(k)\nEXIT", "returns from the kernel"),
        ("NOP", "off the end"),
        ("EXIT\nLDS R4, [R2] | sb0", "no path reaches"),
        (f"EXIT\n{ARRIVE}", "no path reaches"),
    ],
)
def test_a_jump_that_cannot_be_followed_is_a_typed_error(code: str, why: str) -> None:
    with pytest.raises(SassError, match=why) as e:
        entry(code)
    assert e.value.exit_code == 2 and e.value.fix


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not of sm_70"),
        (listing(END).replace("sm_90a", "sm_100a"), "not of sm_70"),
        (listing(END).replace("STO_CUDA_ENTRY", "STO"), "no kernel"),
        ("\n".join(listing(END).splitlines()[:-1]).replace("abc */", "ab */"), "half an instruction|no instruction"),
        (re.sub(r"\n +/\* 0x\w+ \*/", "", listing(END)), "half an instruction"),
        (re.sub(r"/\* 0x\w+ \*/", "", listing(END)), "no instruction"),
    ],
)
def test_text_of_another_kind_is_a_typed_error(text: str, why: str) -> None:
    with pytest.raises(SassError, match=why):
        check_text(text)


# -- reports -----------------------------------------------------------------------------------------------------------
def test_an_error_names_the_arrive_the_loads_their_sources_and_the_remedy() -> None:
    loads = "\n".join(f"LDS R{n}, [R2] | sb0" for n in range(4, 10))
    found = entry(f"""//## File "/src/ptx.cuh", line 104 inlined at "/src/linear.cuh", line 92
        //## File "/src/linear.cuh", line 92
        {loads}
        //## File "/src/ptx.cuh", line 17
        {ARRIVE}
        {END}""")
    (violation,) = found.violations
    error = violation.error("interp.cubin, k")
    assert isinstance(error, LoadInFlight) and error.exit_code == 1 and error.where == "interp.cubin, k"
    assert error.what.startswith(f"0x60 {ARRIVE} (ptx.cuh:17)")
    assert "0x0 LDS R4, [R2] (ptx.cuh:104 < linear.cuh:92)" in error.what and "and 2 more" in error.what
    assert "landed" in error.fix


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_where_the_disassembler_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLOW_NVDISASM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"purelib": str(tmp_path / "site")})
    with pytest.raises(ToolMissing, match=r"no disassembler.*pip install"):
        find_nvdisasm()
    wheel = executable(tmp_path / "site" / "nvidia" / "cu13" / "bin" / "nvdisasm", "")
    assert find_nvdisasm() == str(wheel)
    on_path = executable(tmp_path / "bin" / "nvdisasm", "")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_nvdisasm() == str(on_path)
    other = executable(tmp_path / "other", "")
    monkeypatch.setenv("PLOW_NVDISASM", str(other))
    assert find_nvdisasm() == str(other) and find_nvdisasm(str(wheel)) == str(wheel)
    monkeypatch.setenv("PLOW_NVDISASM", "/nowhere/nvdisasm")
    with pytest.raises(ToolMissing, match="/nowhere/nvdisasm"):
        find_nvdisasm()


@pytest.mark.parametrize(("code", "exit_code"), [("NOP | w0", 0), ("NOP", 1)])
def test_the_command_counts_and_its_exit_code_is_the_verdict(
    code: str, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "listing").write_text(listing(f"LDS R4, [R2] | sb0\n{code}\n{ARRIVE}\n{END}"))
    tool = executable(tmp_path / "nvdisasm", f"#!/bin/sh\ncat {tmp_path}/listing\n")
    monkeypatch.setattr(plowc, "_cubin", lambda assets: assets / "interp.cubin")
    args = ["sass", "--assets", str(tmp_path), "--nvdisasm", str(tool)]
    done = CliRunner().invoke(plowc.app, [*args, "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == exit_code and found["schema"] == "plowc.sass/1"
    assert found["entries"] == [
        {"name": "k", "instructions": 5, "loads": 1, "arrives": 1, "violations": exit_code}]  # fmt: skip
    assert [v["error"] for v in found["violations"]] == ["LoadInFlight"] * exit_code
    done = CliRunner().invoke(plowc.app, args, env={"COLUMNS": "200"})
    assert done.exit_code == exit_code and re.search(rf"k\s+│ 5\s+│ 1\s+│ 1\s+│ {exit_code} ", done.stdout)
    assert ("may be issued while shared memory is still being read" in done.stderr) == bool(exit_code)


def test_a_disassembler_that_fails_is_quoted(tmp_path: Path) -> None:
    tool = executable(tmp_path / "nvdisasm", "#!/bin/sh\necho 'nvdisasm fatal : no elf' >&2\nexit 1\n")
    with pytest.raises(SassError, match="no elf"):
        sass.check(tmp_path / "interp.cubin", str(tool))


def test_a_bundle_without_a_cubin_is_refused(tiny_bundles: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="for cpu has no cubin"):
        plowc._cubin(tiny_bundles["llama"])


# -- the real compiler -------------------------------------------------------------------------------------------------
@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """nvcc and nvdisasm. How large a kernel is, is not judged here."""
    monkeypatch.setattr(build_cuda, "check_budget", lambda resources: None)
    return build_cuda.find_nvcc(), find_nvdisasm()


SMALL = """
extern "C" __global__ void k(unsigned from, unsigned bar, unsigned* out) {
  unsigned a, b;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(a) : "r"(from));
  asm volatile("ld.shared.u32 %0, [%1 + 64];" : "=r"(b) : "r"(from));
  WAIT
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
  out[0] = a + b;
}
"""
LANDED = 'asm volatile("{.reg .pred p; setp.eq.u32 p, %0, 7; @p nanosleep.u32 20;}" ::"r"(a | b) : "memory");'


@pytest.mark.slow
@pytest.mark.parametrize(("wait", "hazard"), [(LANDED, False), ("", True)])
def test_a_compiled_kernel_that_arrives_before_its_loads_have_landed_is_found(
    wait: str, hazard: bool, tools: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "k.cu").write_text(SMALL.replace("WAIT", wait))
    gencode = f"-gencode={build_cuda.ARCHITECTURES['sm_90a']}"
    subprocess.run([tools[0], "-O3", "-cubin", "-lineinfo", gencode, "k.cu", "-o", "k.cubin"], cwd=tmp_path, check=True)
    (found,) = sass.check(tmp_path / "k.cubin", tools[1])
    assert (found.loads, found.arrives, len(found.violations)) == (2, 1, int(hazard))
    if hazard:
        assert "(k.cu:7) may be issued" in found.violations[0].error("k").what


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_interpreter_frees_nothing_under_loads_in_flight(tools: tuple[str, str], tmp_path: Path) -> None:
    entries = sass.check(tmp_path / build_cuda.build(tmp_path)["file"], tools[1])
    built = re.findall(r"ENTRY\((\d+), (\d+)\)", (build_cuda.SOURCES / "interp.cu").read_text())
    assert {e.name for e in entries} == {f"plow_interp_c{columns}_d{head_dim}" for columns, head_dim in built}
    assert all(e.loads > 100 and e.arrives > 20 for e in entries)
    assert [v.error(e.name).line() for e in entries for v in e.violations] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_landed_the_interpreter_is_caught(
    tools: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which arrives are moved is the compiler's choice; nvcc 13.0 moves some in most of the builds."""
    mutant = tmp_path / "cuda"
    shutil.copytree(build_cuda.SOURCES, mutant)
    ptx = (mutant / "ptx.cuh").read_text()
    (mutant / "ptx.cuh").write_text(re.sub(r"(void landed\(uint32_t z\)) \{.*?\n\}", r"\1 {}", ptx, flags=re.S))
    assert (mutant / "ptx.cuh").read_text() != ptx
    monkeypatch.setattr(build_cuda, "SOURCES", mutant)
    entries = sass.check(tmp_path / build_cuda.build(tmp_path, defines=("-lineinfo",))["file"], tools[1])
    caught = [v.error(e.name).what for e in entries for v in e.violations]
    assert caught and all("ptx.cuh" in what for what in caught), caught
