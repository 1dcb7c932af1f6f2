"""What is read from a cubin, against what the compiler itself says of the same kernels."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.image import BadImage, read_cubin
from forge_tui.cuda.launch import check_parameters
from forge_tui.cuda.program import Argument, Launch
from forge_tui.cuda.toolchain import find_toolchain

SOURCE = """
struct Three { int a; float b[2]; };
__device__ int counter;
__device__ int started = 3;
__device__ const float table[4] = {1, 2, 3, 4};
extern "C" __global__ void heavy(float* out, int i, double d, char c, Three t, long long n) {
    __shared__ float tile[100];
    tile[threadIdx.x] = i;
    __syncthreads();
    float local[100];
    for (int j = 0; j < 100; ++j) local[j] = out[j * i];
    for (int j = 0; j < 100; ++j) out[local[j] > 0 ? j : i] = local[(j * i) % 100];
    out[i] = tile[i] + d + c + t.a + t.b[i] + table[i] + n;
    atomicAdd(&counter, 1);
    started += i;
}
extern "C" __global__ void light() {}
"""


def cubin(source: str, arch: str = "sm_90") -> tuple[bytes, str]:
    """Straight from NVRTC, without the checks that `compile_program` makes: (image, log)."""
    find_toolchain()
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, [], [])
    options = [f"--gpu-architecture={arch}".encode(), b"--ptxas-options=-v"]
    status, = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
    nvrtc.nvrtcGetProgramLog(program, log)
    assert not int(status), log.decode()
    code = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
    nvrtc.nvrtcGetCUBIN(program, code)
    return code, log.decode()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_resources_are_what_ptxas_says(arch: str):
    code, log = cubin(SOURCE, arch)
    facts = read_cubin(code)
    assert facts.arch == int(arch[3:])
    said = {}
    for name, rest in re.findall(r"Compiling entry function '(\w+)'.*?\n(.*?)(?=Compiling entry|\Z)", log, re.S):
        def number(pattern: str, text: str = rest) -> int:
            match = re.search(pattern, text)
            return int(match[1]) if match else 0

        said[name] = (number(r"Used (\d+) registers"), number(r"(\d+) bytes smem"), number(r"(\d+) bytes stack frame"))
    assert set(said) == {"heavy", "light"}
    assert {name: (k.registers, k.static_shared, k.stack_bytes) for name, k in facts.kernels.items()} == said
    assert facts.kernels["heavy"].parameter_bytes == (8, 4, 8, 1, 12, 8)
    assert facts.kernels["light"].parameter_bytes == ()


def test_variables_of_an_image():
    facts = read_cubin(cubin(SOURCE)[0])
    assert {(v.name, v.size, v.initialized) for v in facts.variables} == {
        ("counter", 4, False), ("started", 4, True), ("table", 16, True)}
    clean = read_cubin(cubin('extern "C" __global__ void k(float* out) { static __shared__ float s; s = 1; out[0] = s; }')[0])
    assert clean.variables == ()


@pytest.mark.parametrize("header", ["type_traits", "limits", "cooperative_groups.h", "cooperative_groups/reduce.h"])
def test_variables_that_headers_leave_behind_are_no_fault(header: str):
    from forge_tui.cuda.compile import compile_program
    from forge_tui.cuda.program import Program

    source = f'#include <{header}>\nextern "C" __global__ void k(float* out) {{ out[0] = 1; }}'
    facts = read_cubin(compile_program(Program("k.cu", source, (), ()), kind="cubin").code)
    assert any(not variable.initialized for variable in facts.variables)


def test_parameters_must_be_what_is_passed():
    facts = read_cubin(cubin('extern "C" __global__ void k(float* out, int n, double d) { out[n] = d; }')[0])

    def launch(kernel: str, *kinds: str) -> Launch:
        return Launch(kernel, (1, 1, 1), (1, 1, 1), tuple(Argument(kind, value=0) for kind in kinds))  # type: ignore[arg-type]

    check_parameters(launch("k", "pointer", "int32", "float64"), facts)
    for kinds, says in ((("pointer", "int32"), "takes 3 parameters and the plan passes 2"),
                        (("int32", "int32", "float64"), "parameter 1 of `k` has 8 bytes"),
                        (("pointer", "int32", "float32"), "parameter 3 of `k` has 8 bytes")):
        with pytest.raises(CandidateFault, match=says) as caught:
            check_parameters(launch("k", *kinds), facts)
        assert caught.value.kind == "launch"
    with pytest.raises(CandidateFault, match="no kernel `other`"):
        check_parameters(launch("other"), facts)


@functools.cache
def small() -> bytes:
    return cubin('extern "C" __global__ void k(float* out) { out[0] = 1; }')[0]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_images_are_refused_or_read(data: st.DataObject):
    damaged = bytearray(small()[:data.draw(st.integers(0, len(small())))])
    for _ in range(data.draw(st.integers(0, 8))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_cubin(bytes(damaged))
    except BadImage:
        pass


def test_measured_kernels_take_the_parameters_their_plans_pass():
    from forge_tui.cuda.compile import compile_program
    from forge_tui.cuda.device import H200
    from forge_tui.engine.kernelfile import parse
    from test_kernelfile import MEASURED

    for name in ("softmax_block", "groupnorm_cluster"):
        file = parse((Path(__file__).parent / "kernel_files" / f"{name}.cu").read_text(), name)
        call = MEASURED[name][0]
        program = file.bind(call, H200, file.points(call, H200)[0])
        facts = read_cubin(compile_program(program, kind="cubin", arch="sm_90").code)
        for launch in program.launches:
            check_parameters(launch, facts)
