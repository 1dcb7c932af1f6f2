"""Bulk building with the real nvcc: every kernel for every architecture, incrementally, failures told and the rest
built."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge_tui.cuda import bulk
from forge_tui.cuda.bulk import bulk_build
from forge_tui.cuda.image import read_cubin
from forge_tui.cuda.program import Launch, Program
from forge_tui.errors import MissingEnvironment

needs_nvcc = pytest.mark.skipif(bulk.find_nvcc() is None, reason="no nvcc on this machine")
HALVES = """#include <cuda_bf16.h>
#include "forge.cuh"
extern "C" __global__ void __launch_bounds__(128) k(const T* input, float* out, uint n) {
    __shared__ float s[128];
    uint i = blockIdx.x * blockDim.x + threadIdx.x;
    s[threadIdx.x] = i < n ? float(input[i]) * SCALE : -INFINITY;
    __syncthreads();
    if (i < n) out[i] = fmaxf(s[threadIdx.x ^ 1], FLT_MIN);
}
"""


def program(source: str = HALVES, scale: int = 2) -> Program:
    return Program(
        "halves.cu", source, (("SCALE", str(scale)), ("T", "__nv_bfloat16")), (Launch("k", (1, 1, 1), (128, 1, 1), ()),)
    )


@needs_nvcc
def test_every_kernel_for_every_architecture_and_nothing_twice(tmp_path: Path) -> None:
    archs = ("sm_80", "sm_90")
    programs = [program(), program(scale=3), program()]
    found = bulk_build(programs, archs, tmp_path)
    assert not found.failures and len(found.images) == 4 and found.commands == 8
    for (_, arch), image in found.images.items():
        facts = read_cubin(image.code)
        assert (
            f"sm_{facts.arch}" == arch == image.arch and image.kernels[0].registers == facts.kernels["k"].registers > 0
        )
        assert facts.kernels["k"].static_shared == 512 == image.kernels[0].static_shared
    assert len({image.key for image in found.images.values()}) == 4
    again = bulk_build(programs, archs, tmp_path)
    assert again.commands == 0 and again.images == found.images
    more = bulk_build([*programs, program(scale=5)], archs, tmp_path)
    assert more.commands == 4 and len(more.images) == 6
    assert {path.suffix for path in tmp_path.glob("*.log")} == {".log"} and "Used" in next(
        tmp_path.glob("*.cubin.log")
    ).read_text()


@needs_nvcc
def test_what_fails_is_told_with_its_line_and_the_rest_is_built(tmp_path: Path) -> None:
    typo = program(HALVES.replace("SCALE :", "SCALES :"))
    state = program("__device__ int hits;\n" + HALVES.replace("if (i < n)", "atomicAdd(&hits, 1);\n    if (i < n)"))
    found = bulk_build([typo, program(), state], ["sm_90"], tmp_path)
    assert list(found.images) == [(program().build_key(), "sm_90")]
    assert "halves.cu(6): error" in found.failures[typo.build_key(), "sm_90"]
    assert "may be written" in found.failures[state.build_key(), "sm_90"]
    unknown = bulk_build([program()], ["sm_999"], tmp_path)
    assert "sm_999" in unknown.failures[program().build_key(), "sm_999"] and not unknown.images


def test_without_nvcc_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "find_nvcc", lambda: None)
    with pytest.raises(MissingEnvironment, match="nvcc is not here"):
        bulk_build([program()], ["sm_90"], tmp_path)


@needs_nvcc
def test_constexpr_functions_of_a_kernel_file_need_no_mark(tmp_path: Path) -> None:
    """As with NVRTC, where every function is device code; forge.cuh has such too."""
    code = """#include "forge.cuh"
constexpr int twice(int n) { return 2 * n; }
extern "C" __global__ void k(float* out) { out[twice(threadIdx.x)] = forge::access_bytes<float, 4>(); }
"""
    assert not bulk_build([program(code)], ["sm_90"], tmp_path).failures
