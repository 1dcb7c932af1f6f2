"""NVRTC: what builds, what is refused and where it says so, and what counts as the same kernel."""

from __future__ import annotations

import ctypes
import locale
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from forge_tui.cuda import compile as compiling
from forge_tui.cuda.cache import ImageCache
from forge_tui.cuda.compile import compile_program, compiler_facts
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.program import Argument, Launch, Program
from forge_tui.cuda.ptxscan import canonical_ptx, written_globals
from forge_tui.cuda.toolchain import HEADERS

PLAN = "/*forge\nformat = 1\n*/\n"
DOUBLE = 'extern "C" __global__ void k(float* p) {\n    p[threadIdx.x] *= 2.f;\n}\n'


def program(code: str, *macros: tuple[str, str], filename: str = "k.cu", kernel: str = "k") -> Program:
    launch = Launch(kernel=kernel, grid=(1, 1, 1), block=(32, 1, 1), arguments=())
    return Program(filename=filename, source=PLAN + code, macros=macros, launches=(launch,))


def fault(code: str, **options) -> CandidateFault:
    with pytest.raises(CandidateFault) as caught:
        compile_program(program(code, **options), kind="ptx")
    assert caught.value.kind == "compile"
    return caught.value


def test_facts_name_compiler_and_headers():
    facts = compiler_facts()
    assert facts.problem is None
    assert "sm_90" in facts.archs and facts.nvrtc and facts.headers and facts.nvrtc_version.split(".")[0] == facts.headers_version.split(".")[0]


@pytest.mark.parametrize("kind", ["ptx", "cubin"])
def test_key_is_of_the_code_and_not_of_names_comments_or_lines(kind):
    base = compile_program(program(DOUBLE), kind=kind)
    renamed = compile_program(program("\n\n// moved\n" + DOUBLE, filename="other/name.cu"), kind=kind)
    other = compile_program(program(DOUBLE.replace("2.f", "3.f")), kind=kind)
    assert base.code != renamed.code and base.key == renamed.key
    assert other.key != base.key


@pytest.mark.parametrize("kind", ["ptx", "cubin"])
def test_key_ignores_the_file_name_in_internal_symbols(kind):
    code = "namespace { __device__ __noinline__ float f(float x) { return x * x + 1.f; } }\n" + DOUBLE.replace("*= 2.f", "= f(p[0])")
    keys = {compile_program(program(code, filename=name), kind=kind).key for name in ("k.cu", "b.cu", "x/some.name.cu")}
    assert len(keys) == 1


def test_kernel_info():
    code = 'extern "C" __global__ void k(float* p) { __shared__ float s[100]; __shared__ char c[3]; s[threadIdx.x] = p[0]; c[p[0] > 1] = 1; __syncthreads(); p[1] = s[3] + c[0]; }'
    for kind in ("ptx", "cubin"):
        info, = compile_program(program(code), kind=kind).kernels
        assert info.name == "k" and info.static_shared == 403
    assert 4 <= info.registers <= 32 and info.spill_bytes == 0


def test_macros_arrive_in_order():
    code = "static_assert(A == 4 && B == 5);\n" + DOUBLE
    compile_program(program(code, ("A", "4"), ("B", "A + 1")), kind="ptx")


def test_error_names_the_line_of_the_file():
    caught = fault("__device__ int ok;\n" + DOUBLE.replace("*= 2.f", "= nothing"))
    assert caught.line == 6 and "k.cu(6): error" in caught.message and "nothing" in caught.message


@pytest.mark.parametrize("code, name, line", [
    ("__device__ float seen;\n" + DOUBLE.replace("*= 2.f", "= seen++"), "seen", 4),
    (DOUBLE.replace("    p[", "    static int count; count += 1; p[count + "), "count", 5),
    ("__device__ float t[64];\n" + DOUBLE.replace("p[threadIdx.x] *= 2.f", "float* q = threadIdx.x > 3 ? p : t; q[threadIdx.x] = 1.f"), "t", 4),
    ("__device__ unsigned n;\n" + DOUBLE.replace("*= 2.f", "= atomicAdd(&n, 1u)"), "n", 4),
    ("__device__ int n;\n" + DOUBLE.replace("*= 2.f", "= 0; atomicAdd(&n, 1)"), "n", 4),
    ("__device__ const float t[4] = {1, 2, 3, 4};\n" + DOUBLE.replace("p[threadIdx.x] *= 2.f", "const_cast<float*>(t)[threadIdx.x] = p[0]"), "t", 4),
    ("__device__ float t[4];\n__device__ __noinline__ void put(float* q) { *q += 1.f; }\n" + DOUBLE.replace("p[threadIdx.x] *= 2.f", "put(t + threadIdx.x); p[0] = t[1]"), "t", 4),
    ("__device__ float t;\n__device__ float* q = &t;\n" + DOUBLE.replace("p[threadIdx.x] *= 2.f", "*q += p[0]"), "t", 4),
    ("__managed__ float t;\n" + DOUBLE.replace("*= 2.f", "= t"), "t", 4),
    ("__device__ float t[4];\n" + DOUBLE.replace("p[threadIdx.x] *= 2.f", 'asm volatile("st.global.f32 [%0], %1;" :: "l"(t + threadIdx.x), "f"(p[0]) : "memory")'), "t", 4),
    ("__device__ float t[4];\n" + DOUBLE.replace("p[threadIdx.x] *= 2.f", 'asm volatile("{.reg .pred q; setp.eq.u32 q, %1, 0; @q st.global.u32 [%0], %1;}" :: "l"(t + threadIdx.x), "r"(threadIdx.x) : "memory")'), "t", 4),
    ("__device__ float t[4];\n" + DOUBLE.replace("p[threadIdx.x] *= 2.f", "float* q[2] = {p, t}; *(float**)p = q[threadIdx.x]"), "t", 4),
    ("__device__ float4 t;\n" + DOUBLE.replace("p[threadIdx.x] *= 2.f", "t = make_float4(p[0], 0, 0, 0)"), "t", 4),
])
def test_writable_globals_are_refused(code, name, line):
    caught = fault(code)
    assert f"`{name}`" in caught.message and "workspace" in caught.message and caught.line == line


def test_a_declaration_that_cannot_be_read_is_refused():
    plain = compile_program(program(DOUBLE), kind="ptx").code.decode()
    assert written_globals(canonical_ptx(plain)) == []
    assert written_globals(canonical_ptx(plain.replace(".visible .entry", ".global .u32 a, b;\n.visible .entry"))) == [
        (".global .u32 a, b", "its declaration cannot be read")]


@pytest.mark.parametrize("code", [
    "constexpr float t[4] = {1, 2, 3, 4};\n" + DOUBLE.replace("2.f", "t[threadIdx.x]"),
    "__constant__ float t[4] = {1, 2, 3, 4};\n" + DOUBLE.replace("2.f", "t[threadIdx.x]"),
    "__device__ const float t[4] = {1, 2, 3, 4};\n__device__ __noinline__ float get(const float* q) { return *q; }\n" + DOUBLE.replace("2.f", "get(t + threadIdx.x)"),
])
def test_tables_are_fine(code):
    compile_program(program(code), kind="ptx")


def test_calls_out_are_refused_but_printing():
    caught = fault(DOUBLE.replace("    p[threadIdx.x] *= 2.f", "    p[1] = *(float*)malloc(4)"))
    assert "malloc" in caught.message and caught.line == 5
    compile_program(program(DOUBLE.replace("    p[threadIdx.x] *= 2.f", '    printf("%f", p[0])')), kind="ptx")


def test_plan_and_code_must_agree_on_kernels():
    assert "`soft`" in fault(DOUBLE, kernel="soft").message


def test_names_without_an_include():
    code = DOUBLE.replace("2.f", "(-INFINITY + NAN + FLT_MAX + (float)INT_MAX + (float)(uint64_t)3)")
    compile_program(program("constexpr float none = -INFINITY;\n" + code), kind="ptx")


def test_every_standard_header_of_ours_compiles_and_works():
    names = sorted(path.name for path in (HEADERS / "std").iterdir())
    code = "".join(f"#include <{name}>\n" for name in [*names, "cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h"]) + """
static_assert(std::max(2, 3) == 3 && std::min(2u, 3u) == 2u && std::clamp(9, 1, 4) == 4);
static_assert(std::numeric_limits<float>::infinity() > FLT_MAX && std::numeric_limits<int16_t>::max() == 32767);
static_assert(std::is_same_v<std::decay_t<const float&>, float> && !std::is_integral_v<float> && sizeof(std::uint8_t) == 1);
extern "C" __global__ void k(float* p) {
    std::array<float, 4> a{};
    assert(p[0] > 0.f);
    std::swap(p[0], p[1]);
    p[2] = std::exp(p[3]) + std::max(p[4], a[1]) + std::fabs(p[5]);
}
"""
    image = compile_program(program(code), kind="ptx")
    assert b"trap" in image.code


def test_warnings_are_kept_and_ptxas_chatter_is_not():
    image = compile_program(program(DOUBLE.replace("    p[", "    int unused = 3; p[")), kind="cubin")
    assert "k.cu(5): warning" in image.log and "unused" in image.log and "ptxas" not in image.log and "Remark" not in image.log


def test_threads():
    programs = [program(DOUBLE.replace("2.f", f"{i}.f")) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        keys = list(pool.map(lambda p: compile_program(p, kind="ptx").key, programs))
    assert len(set(keys)) == 8


def test_cache(tmp_path):
    cache = ImageCache(tmp_path / "build", cap_bytes=10**6)
    first = compile_program(program(DOUBLE), kind="ptx", cache=cache)
    assert compile_program(program(DOUBLE), kind="ptx", cache=cache) == first
    compile_program(program(DOUBLE), kind="cubin", cache=cache)
    assert cache.statistics()["hits"] == 1 and cache.statistics()["files"] == 2
    damaged = next((tmp_path / "build").glob("*.image"))
    damaged.write_bytes(damaged.read_bytes()[:50])
    assert compile_program(program(DOUBLE), kind="ptx", cache=cache).key == first.key
    fault_program = program(DOUBLE, kernel="other")
    with pytest.raises(CandidateFault):
        compile_program(fault_program, kind="ptx", cache=cache)


def test_cache_drops_the_least_recently_used(tmp_path):
    import os

    cache = ImageCache(tmp_path, cap_bytes=10**6)
    programs = [program(DOUBLE.replace("2.f", f"{i}.f")) for i in range(3)]
    for age, p in enumerate(programs):
        compile_program(p, kind="ptx", cache=cache)
    files = cache._files()
    for age, (_, _, path) in enumerate(files):
        os.utime(path, (1000 + age, 1000 + age))
    cache.cap_bytes = sum(size for _, size, _ in files)
    compile_program(program(DOUBLE.replace("2.f", "9.f")), kind="ptx", cache=cache)
    assert not files[0][2].exists() and files[2][2].exists()
    assert cache.statistics()["bytes"] <= cache.cap_bytes


def test_cache_in_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    cache = ImageCache(tmp_path / "file" / "build")
    assert compile_program(program(DOUBLE), kind="ptx", cache=cache).code


@pytest.mark.parametrize("dtype", ["float", "__half", "__nv_bfloat16"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 16])
def test_forge_header_accesses_are_as_wide_as_they_can_be(dtype, count):
    code = """#include <forge.cuh>
extern "C" __global__ void k(const DTYPE* p, DTYPE* q) {
    float x[N];
    forge::load<N, forge::cache::read_only>(p + threadIdx.x * N, x);
    for (int i = 0; i < N; ++i) x[i] *= 2.f;
    forge::store<N>(q + threadIdx.x * N, x);
}
"""
    text = compile_program(program(code, ("DTYPE", dtype), ("N", str(count))), kind="ptx").code.decode()
    loaded = sum({"v4": 4, "v2": 2}.get(v, 1) * int(w) // 8 for v, w in re.findall(r"ld\.global\.nc\.(?:(v[24])\.)?[a-z](\d+)", text))
    accesses = len(re.findall(r"ld\.global\.nc", text))
    size = count * (4 if dtype == "float" else 2)
    assert loaded == size and len(re.findall(r"st\.global", text)) == accesses
    assert accesses == (size // 16 or 1 if size % 16 == 0 or size in (2, 4, 8) else count)


def test_forge_header_uses_no_names_that_tunables_have():
    macros = [(name, "7") for name in ("N", "K", "T", "M", "VEC", "BLOCK", "WARPS", "LANES", "ROWS", "COLS", "STEPS", "UNROLL", "TILE",
                                       "DTYPE", "C", "H", "W", "SPLIT", "CHUNK", "CLUSTER", "STAGES", "THREADS")]
    compile_program(program("#include \"forge.cuh\"\n" + DOUBLE, *macros), kind="ptx")


def test_every_part_of_the_forge_header_builds_for_the_device():
    code = """#include <forge.cuh>
extern "C" __global__ void k(float* p) {
    __shared__ float s[32];
    __shared__ forge::moments ms[8];
    __shared__ forge::softmax_state ss[8];
    __shared__ __align__(128) float tile[256];
    __shared__ forge::barrier b;
    __shared__ unsigned long long slot;
    if (threadIdx.x == 0) { forge::barrier_init(&b, 1); forge::barrier_init_fence(); }
    __syncthreads();
    if (threadIdx.x == 0) { forge::barrier_expect(&b, 1024); forge::bulk_load(tile, p, 1024, &b); }
    forge::barrier_wait(&b, 0);
    forge::moments m = forge::block_merge<256>(forge::moments_of<4>(tile, 3), ms);
    forge::softmax_state q = forge::block_merge<256>(forge::softmax_state{tile[threadIdx.x], 1.f}, ss);
    forge::copy_async<16>(tile + threadIdx.x * 4, p); forge::copy_async_commit(); forge::copy_async_wait<0>();
    forge::cluster_sync();
    forge::cluster_send(&slot, &b, forge::cluster_rank(), forge::pack2(m.mean, m.m2));
    forge::bulk_store_fence(); forge::bulk_store(p, tile, 1024); forge::bulk_store_commit(); forge::bulk_store_wait();
    p[threadIdx.x] = forge::block_sum<96>(m.mean, s) + forge::warp_max<8>(q.sum) + forge::exp2_approx(q.max) + forge::unpack2(slot).x;
}
"""
    image = compile_program(program(code), kind="cubin")
    assert image.kernels[0].spill_bytes == 0 and image.log == ""


def test_constants_of_a_file_are_no_state():
    """NVRTC 13.0 keeps a zero `constexpr` at file scope as a variable of the image; 13.5 drops it. Neither is written."""
    code = 'constexpr int ZERO = 0, ONE = 1;\nextern "C" __global__ void k(int* out) { out[ZERO] = ONE; }'
    program = Program("k.cu", code, (), (Launch("k", (1, 1, 1), (1, 1, 1), (Argument("pointer", "out"),)),))
    for kind in ("ptx", "cubin"):
        assert compile_program(program, kind=kind).kernels[0].name == "k"


def test_compiling_does_not_write_into_the_interpreters_own_bytes():
    """NVRTC writes results into the bytes object it is given; an empty log has length 1, and such objects are shared."""
    program = Program("k.cu", 'extern "C" __global__ void k(int* out) { out[0] = 1; }', (),
                      (Launch("k", (1, 1, 1), (1, 1, 1), (Argument("pointer", "out"),)),))
    compile_program(program, kind="ptx")
    assert list(b" ") == [32] and " ".encode() == bytes([32])


def test_precompiled_headers_change_nothing_but_the_time(monkeypatch: pytest.MonkeyPatch):
    from forge_tui.cuda import compile as compiler
    from forge_tui.cuda.precompiled import Precompiled

    code = '#include <forge.cuh>\nextern "C" __global__ void k(float* out) { out[0] = forge::warp_sum(FACTOR * threadIdx.x); }'
    program = Program("k.cu", code, (("FACTOR", "2.f"),), (Launch("k", (1, 1, 1), (32, 1, 1), (Argument("pointer", "out"),)),))
    for kind in ("ptx", "cubin"):
        images = [compile_program(program, kind=kind)]
        with monkeypatch.context() as patch:
            patch.setattr(compiler, "precompiled", lambda *_: Precompiled())
            images.append(compile_program(program, kind=kind))
        assert images[0].key == images[1].key and images[0].log == images[1].log == ""


def test_a_compiler_that_changes_its_threads_locale(monkeypatch):
    """As NVRTC 12.4 does: text is read as before it all the same."""
    libc, real = ctypes.CDLL(None), compiling._nvrtc
    libc.newlocale.restype = libc.uselocale.restype = ctypes.c_void_p
    libc.newlocale.argtypes, libc.uselocale.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p], [ctypes.c_void_p]
    seen = []

    def changing(*args):
        libc.uselocale(libc.newlocale(0x1FBF, b"C", None))  # LC_ALL_MASK of glibc
        seen.append(locale.getencoding())
        return real(*args)

    monkeypatch.setattr(compiling, "_nvrtc", changing)
    before = locale.getencoding()
    compile_program(program(DOUBLE), kind="ptx")
    assert seen == ["ANSI_X3.4-1968"] and locale.getencoding() == before
