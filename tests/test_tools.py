"""Profiler and sanitizer: what their output says.

The texts of ncu and compute-sanitizer in this file are written from their documentation and from reports that others
published; those under fixtures/tools are what `test_gpu_tools.py` had the real ones print.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from forge_tui.cuda import profile, sanitize
from forge_tui.cuda.program import Argument, Image, Launch, Program
from forge_tui.cuda.profile import KernelProfile, NoProfile, Profile
from forge_tui.cuda.single import ToolRun, job_folder, run_under
from forge_tui.engine.judge import insight
from forge_tui.engine.judge.judge import judge_text
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.probe import HONEST, probe_variant
from forge_tui.engine.judge.trial import Failed
from forge_tui.engine.show import render_verdict
from hostkit import needs_nvrtc

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",'
    '"Section Name","Metric Name","Metric Unit","Metric Value"'
)


def row(number: int, kernel: str, metric: str, value: str, unit: str = "%") -> str:
    return (
        f'"{number}","1234","python3.11","127.0.0.1","{kernel}","1","7","(256, 1, 1)","(132, 1, 1)","0","9.0",'
        f'"Command line profiler metrics","{metric}","{unit}","{value}"'
    )


NCU = "\n".join(
    [
        "==PROF== Connected to process 1234 (/usr/bin/python3.11)",
        '==PROF== Profiling "softmax_rows" - 0: 0%....50%....100% - 12 passes',
        "==PROF== Disconnected from process 1234",
        HEADER,
        row(
            0,
            "softmax_rows(const __nv_bfloat16 *, float *, int)",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "87.30",
        ),
        row(
            0,
            "softmax_rows(const __nv_bfloat16 *, float *, int)",
            "launch__registers_per_thread",
            "40",
            "register/thread",
        ),
        row(
            0,
            "softmax_rows(const __nv_bfloat16 *, float *, int)",
            "lts__throughput.avg.pct_of_peak_sustained_elapsed",
            "61.2",
        ),
        row(
            0,
            "softmax_rows(const __nv_bfloat16 *, float *, int)",
            "sm__throughput.avg.pct_of_peak_sustained_elapsed",
            "n/a",
        ),
        row(
            0,
            "softmax_rows(const __nv_bfloat16 *, float *, int)",
            "sm__warps_active.avg.pct_of_peak_sustained_active",
            "92.1",
        ),
        row(
            0,
            "softmax_rows(const __nv_bfloat16 *, float *, int)",
            "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
            "1,018.5",
            "inst",
        ),
        row(
            0,
            "softmax_rows(const __nv_bfloat16 *, float *, int)",
            "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
            "2.25",
            "inst",
        ),
        row(
            0,
            "softmax_rows(const __nv_bfloat16 *, float *, int)",
            "smsp__average_warps_issue_stalled_drain_per_issue_active.ratio",
            "0",
            "inst",
        ),
        row(1, "tail()", "sm__throughput.avg.pct_of_peak_sustained_elapsed", "3.5"),
    ]
)


def test_ncu():
    first, second = profile.parse(ToolRun(NCU, 0))
    assert first == KernelProfile(
        "softmax_rows", None, 87.3, 61.2, 92.1, 40, (("long_scoreboard", 1018.5), ("barrier", 2.25))
    )
    assert second == KernelProfile("tail", 3.5)


FORBIDDEN = (
    "==PROF== Connected to process 9012 (/usr/bin/python3.11)\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to "
    "access NVIDIA GPU Performance Counters on the target device 0. For instructions on enabling permissions and to get more "
    "information see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n==PROF== Disconnected from process 9012\n"
)


@pytest.mark.parametrize(
    ("output", "status", "words"),
    [
        (FORBIDDEN, 1, "may not read the performance counters"),
        ("==ERROR== Failed to find metric regex:^nothing__here$\n", 1, "Failed to find metric"),
        ("==ERROR== The application returned an error code (1).\n", 1, "status 1: The application returned"),
        ("", 1, "status 1: nothing"),
        (HEADER, 0, "measured nothing"),
        (NCU, None, "did not end in time"),
    ],
)
def test_ncu_fails(output: str, status: int | None, words: str):
    with pytest.raises(NoProfile, match=words):
        profile.parse(ToolRun(output, status))


MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at scale_kernel(float *, int, float)+0x50 in k.cu:14
=========     by thread (287,0,0) in block (3906,0,0)
=========     Address 0x7f2a1c003c9c is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2a1c000000 of size 15516 bytes
=========
========= Invalid __global__ write of size 4 bytes
=========     at scale_kernel(float *, int, float)+0x50 in k.cu:14
=========     by thread (288,0,0) in block (3906,0,0)
=========     Address 0x7f2a1c003ca0 is out of bounds
=========
Traceback (most recent call last):
  File "single.py", line 3, in main
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at reduce(const float *, float *)+0x140 in k.cu:9
=========     and Read access at reduce(const float *, float *)+0xe0 in k.cu:12 [4096 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNED = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Read access at 0x570 in reduce(const float *, float *)
=========     and Write access at 0x260 in reduce(const float *, float *) [6272 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
INITCHECK = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at 0x100 in /tmp/forge/k.cu:30:sum_gpu(const int *, int *, unsigned int)
=========     by thread (98,0,0) in block (194,0,0)
=========     Address 0x7fbbca800000
=========
========= ERROR SUMMARY: 1 error
"""
SYNCCHECK = """========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block
=========     at halves(float *)+0x90 in k.cu:6
=========     by thread (32,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 1 error
"""
MISALIGNED = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 16 bytes
=========     at 0x160 in wide(const float4 *)
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f6510c00004 is misaligned
=========
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    ("tool", "text", "errors", "kernel", "line", "fault"),
    [
        ("memcheck", MEMCHECK, 2, "scale_kernel", 14, "out_of_bounds"),
        ("memcheck", MISALIGNED, 1, "wide", None, "misaligned"),
        ("racecheck", RACECHECK, 1, "reduce", 9, "race"),
        ("initcheck", INITCHECK, 1, "sum_gpu", 30, "uninitialized"),
        ("synccheck", SYNCCHECK, 1, "halves", 6, "divergent_barrier"),
    ],
)
def test_the_sanitizers_findings(
    tool: sanitize.Tool, text: str, errors: int, kernel: str, line: int | None, fault: str
):
    found = sanitize.parse(tool, ToolRun(text, sanitize.FOUND), "k.cu")
    assert (found.ran, found.clean, found.errors, found.kernel, found.line, found.fault) == (
        True,
        False,
        errors,
        kernel,
        line,
        fault,
    )
    assert text.splitlines()[1].removeprefix("=========").strip() in found.message and "SUMMARY" not in found.message


def test_a_clean_run_needs_the_tools_own_summary():
    assert sanitize.parse(
        "memcheck", ToolRun("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", 0), "k.cu"
    ).clean
    assert sanitize.parse("racecheck", ToolRun(WARNED, 0), "k.cu").clean
    for run in (
        ToolRun("", 0),
        ToolRun(
            "========= COMPUTE-SANITIZER\n========= Error: Target application terminated before first "
            "instrumented API call\n",
            1,
        ),
        ToolRun("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n", 1),
        ToolRun(MEMCHECK, None),
    ):
        found = sanitize.parse("memcheck", run, "k.cu")
        assert not found.ran and not found.clean and found.message


def test_absent_tools_are_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sanitize, "find_tool", lambda name: None)
    monkeypatch.setattr(profile, "find_tool", lambda name: None)
    program, image = Program("k.cu", "", (), ()), Image("cubin", "sm_90", b"", "")
    assert [found.ran for found in sanitize.sanitize(program, image, {}, 0)] == [False] * 4
    with pytest.raises(NoProfile, match="not installed"):
        profile.ncu_profile(program, image, {}, 0)


def test_the_child_gets_the_job_and_its_end_is_seen():
    """Without a driver the child must fail, and say so; under a tool that hangs it is ended."""
    import msgspec

    from forge_tui.cuda.single import JOB, Job

    program = Program(
        "k.cu", "", (), (Launch("k", (1, 1, 1), (32, 1, 1), (Argument("pointer", "input"),)),), inputs=("input",)
    )
    base = torch.arange(20, dtype=torch.int16)
    with job_folder(
        program, Image("cubin", "sm_90", b"", ""), {"input": base[4:].view(4, 4).t(), "out": torch.empty(3)}, 1
    ) as folder:
        job = msgspec.msgpack.decode((folder / JOB).read_bytes(), type=Job)
        assert job.sizes == {"input": 32, "out": 12} and job.device == 1 and list(job.files) == ["input"]
        assert (folder / job.files["input"]).read_bytes() == base[4:].numpy().tobytes()
        if not torch.cuda.is_available():
            failed = run_under([], folder, 60.0)
            assert failed.status not in (0, None) and "Error" in failed.output
        assert run_under(["sh", "-c", "sleep 60"], folder, 0.2).status is None
    assert not folder.exists()


@needs_nvrtc
def test_on_the_host_target_the_verdict_says_what_was_not_done():
    from forge_tui.cuda.host.target import HostTarget

    variant, sample = probe_variant()
    verdict = judge_text(
        HONEST, "honest.cu", variant, [sample], HostTarget(), options=JudgeOptions(profile=True, sanitize=True)
    )
    assert verdict.verified and isinstance(verdict.profile, Profile)
    assert verdict.profile.source == "image" and verdict.profile.kernels[0].occupancy_percent == 100.0
    assert any(check.name == "sanitizer" and check.passed and "not run" in check.detail for check in verdict.checks)
    text = "\n".join(render_verdict(verdict))
    assert "probe: occupancy 100%" in text and "nothing was profiled" in text and "copy bandwidth" in text


RECORDED = Path(__file__).parent / "fixtures" / "tools"
"""What the tools printed for the kernels of test_gpu_tools.py on an H200: compute-sanitizer and Nsight Compute of CUDA 13.0."""


@pytest.mark.parametrize(("tool", "errors", "line"), [("memcheck", 256, 3), ("racecheck", 1, 3), ("initcheck", 257, 3)])
def test_what_the_sanitizer_really_prints(tool: sanitize.Tool, errors: int, line: int):
    found = sanitize.parse(tool, ToolRun((RECORDED / f"{tool}-faulty.txt").read_text(), sanitize.FOUND), "k.cu")
    assert found.ran and found.errors == errors and (found.kernel, found.line) == ("k", line), found


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_what_the_sanitizer_really_prints_of_a_clean_run(tool: sanitize.Tool):
    assert sanitize.parse(tool, ToolRun((RECORDED / f"{tool}-honest.txt").read_text(), 0), "k.cu").clean


def test_what_the_profiler_really_prints():
    for name, stalls in (("ncu", True), ("ncu-basic", False)):
        (found,) = profile.parse(ToolRun((RECORDED / f"{name}.txt").read_text(), 0))
        assert found.kernel == "k" and found.registers == 16 and 2 < found.dram_percent < 3 and bool(found.stalls) == stalls


@pytest.mark.parametrize(("body", "refused"), [("out[0] = 1.f;", True), ('asm volatile("" ::: "memory");', True),
                                               ("atomicAdd(count, 1u);", False), ("volatile float* p = out;", False)])
def test_racecheck_is_not_believed_of_signals_that_it_does_not_follow(monkeypatch: pytest.MonkeyPatch, body: str, refused: bool):
    finding = sanitize.Finding("racecheck", True, 1, "Race reported", "k", 3, "race")
    monkeypatch.setattr(insight, "sanitize", lambda *given: [finding])
    monkeypatch.setattr(insight, "_tensors", lambda trial, sample: {})
    setting = SimpleNamespace(program=Program("k.cu", body, (), ()), built=True)
    target, trial = SimpleNamespace(kind="cuda", index=0), SimpleNamespace(call=probe_variant()[0].call)
    if refused:
        with pytest.raises(Failed, match="says racecheck"):
            insight.sanitized(setting, trial, {}, target)
    else:
        (check,) = insight.sanitized(setting, trial, {}, target)
        assert check.passed and "Race reported" in check.detail
    monkeypatch.setattr(insight, "SANITIZED_BYTES", 1)
    (check,) = insight.sanitized(setting, trial, {}, target)
    assert check.passed and check.detail.startswith("not run")
