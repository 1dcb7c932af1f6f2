"""Builds in processes of their own: the same images, faults told, and a compiler that does not end costs only
itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tui.cuda.buildpool import BuildPool
from forge_tui.cuda.compile import compile_program
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.program import Launch, Program
from forge_tui.errors import MissingEnvironment
from hostkit import needs_nvrtc

pytestmark = needs_nvrtc
CODE = 'extern "C" __global__ void k(float* p) {\n    p[threadIdx.x] *= SCALE;\n}\n'
SLOW = (
    """template <int DEPTH, long long PATH> struct Tree {
    static constexpr int size = Tree<DEPTH - 1, 2 * PATH>::size + Tree<DEPTH - 1, 2 * PATH + 1>::size;
};
template <long long PATH> struct Tree<0, PATH> { static constexpr int size = 1; };
static_assert(Tree<26, 0>::size > 0);
"""
    + CODE
)


def program(scale: str = "2.f", code: str = CODE) -> Program:
    return Program("k.cu", code, (("SCALE", scale),), (Launch("k", (1, 1, 1), (32, 1, 1), ()),))


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[BuildPool]:
    made = BuildPool(2, "cubin", "sm_90", tmp_path / "images")
    yield made
    made.close()


def test_images_faults_and_the_end_of_what_does_not_end(pool: BuildPool, tmp_path: Path) -> None:
    futures = [pool.submit(program(f"{scale}.f"), 60.0) for scale in range(4)]
    bad, slow = pool.submit(program("NOTHING"), 60.0), pool.submit(program(code=SLOW), 2.0)
    for scale, future in enumerate(futures):
        assert future.result().key == compile_program(program(f"{scale}.f"), kind="cubin").key
    with pytest.raises(CandidateFault) as told:
        bad.result()
    assert told.value.kind == "compile" and told.value.line == 2 and "NOTHING" in told.value.message
    with pytest.raises(CandidateFault) as told:
        slow.result()
    assert told.value.kind == "endless" and "after 2 s" in told.value.message
    assert all(pool.submit(program(f"{scale}.f"), 60.0).result().key for scale in range(7, 10))
    assert len(list((tmp_path / "images").glob("*.image"))) == 7


def test_a_killed_compiler_is_replaced(pool: BuildPool) -> None:
    assert pool.submit(program(), 60.0).result().kind == "cubin"
    for child in pool._children:
        os.kill(child.pid or 0, signal.SIGKILL)
    outcomes = []
    for scale in range(20, 24):
        try:
            outcomes.append(pool.submit(program(f"{scale}.f"), 60.0).result().kind)
        except CandidateFault as fault:
            outcomes.append(fault.kind)
    assert outcomes.count("cubin") >= 2 and set(outcomes) <= {"cubin", "compile"}


def test_what_is_missing_is_no_fault_of_the_candidate(tmp_path: Path) -> None:
    pool = BuildPool(1, "cubin", "sm_20")
    with pytest.raises(MissingEnvironment, match="cannot build for sm_20"):
        pool.submit(program(), 60.0).result()
    pool.close()
