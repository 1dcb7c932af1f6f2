"""Refusals on device code: what each trick is, on which line, and that honest code passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.engine.kernelfile.declarations import read_declarations
from forge_tui.engine.kernelfile.source import STANDARD_HEADERS, inspect
from forge_tui.engine.kernelfile.tokens import LexicalError, Token, tokenize
from forge_tui.errors import KernelFileError

PLAN = "/*forge\nformat = 1\n*/\n"
KERNEL = 'extern "C" __global__ void k(float* out) { out[0] = 1.f; }\n'
KERNELS = sorted(Path(__file__).parent.glob("kernel_files/*.cu"))


def refused(code: str) -> KernelFileError:
    with pytest.raises(KernelFileError) as caught:
        inspect(PLAN + code, "k.cu")
    assert caught.value.cure and caught.value.where.startswith("k.cu:")
    return caught.value


@pytest.mark.parametrize(("code", "line", "says"), [
    # launching from the code
    ("void run() {\n  k<<<1, 32>>>(0);\n}\n", 5, "<<<"),
    ("#define GO k<<<1, 32>>>(0)\n", 4, "<<<"),
    ("void run() { k<<\\\n<1, 32>>>(0); }\n", 4, "<<<"),
    ("__device__ void f() { cudaLaunchKernel(0, 0, 0, 0, 0, 0); }\n", 4, "launches work"),
    ("__device__ void f() { cudaGraphLaunch(0, 0); }\n", 4, "launches work"),
    ("__device__ void f() { cuda\\\nDeviceSynchronize(); }\n", 4, "runtime"),
    # memory
    ("__device__ float* f() { return (float*)malloc(4); }\n", 4, "allocates"),
    ("__device__ float* f() {\n\n return new float[3]; }\n", 6, "allocates"),
    ("__device__ void f() { cudaMalloc(0, 4); }\n", 4, "manages memory"),
    # variables that stay
    ("__device__ int count;\n", 4, "`count` can be written"),
    ("__device__ int count = 3;\n", 4, "`count`"),
    ("int count;\n", 4, "`count`"),
    ("static float table[3] = {1, 2, 3};\n", 4, "`table`"),
    ("__constant__ float table[3];\n", 4, "`table`"),
    ("__device__ const float* pointer;\n", 4, "`pointer`"),
    ("const char* names[] = {\"a\"};\n", 4, "`names`"),
    ("const int *a = 0, *const b = 0, *c = 0;\n", 4, "`a`"),
    ("const int *const a = 0, *c = 0;\n", 4, "can be written"),
    ("namespace x { namespace {\n__device__ int y; } }\n", 5, "`y`"),
    ("struct S { static int y; };\n", 4, "`y`"),
    ("struct S { inline static int y = 1; };\n", 4, "`y`"),
    ("template <class T> struct S {\n static T y; };\n", 5, "`y`"),
    ("template <class T> __device__ T y;\n", 4, "`y`"),
    ("struct S { int a; } shared_state;\n", 4, "`shared_state`"),
    ("enum E { A, B } state;\n", 4, "`state`"),
    ("struct S; __device__ struct S* state;\n", 4, "`state`"),
    ("__device__ int y(3);\n", 4, "`y`"),
    ("__device__ int y{3};\n", 4, "`y`"),
    ("__device__ void (*hook)(int);\n", 4, "`hook`"),
    ("__device__ int f() { static int y = 0; return y++; }\n", 4, "`y`"),
    ("__device__ int f() { for (;;) { if (1) { static int y{0}; return y++; } } }\n", 4, "`y`"),
    ("__device__ int f() { auto g = [] { static int y; return y++; }; return g(); }\n", 4, "`y`"),
    ("__device__ int f() { return h([] { static int y; return y++; }); }\n", 4, "`y`"),
    ("extern \"C\" { __device__ int y; }\n", 4, "`y`"),
    ("__device__ int y = []() constexpr { return 3; }();\n", 4, "`y`"),
    ("__device__ int y[sizeof(const int)];\n", 4, "`y`"),
    ("extern __device__ int y;\n", 4, "`y`"),
    ("#if 0\n#else\n__device__ int y;\n#endif\n", 6, "`y`"),
    ("#ifdef A\nconst\n#endif\nint y = 2;\n__device__ int z;\n", 8, "`z`"),
    ("__managed__ int y;\n", 4, "__managed__"),
    ("#define M __managed__\n", 4, "__managed__"),
    ("thread_local int y;\n", 4, "thread_local"),
    # headers
    ("#include <torch/extension.h>\n", 4, "not a header"),
    ("#include \"../../secret.h\"\n", 4, "not a header"),
    ("#include </etc/passwd>\n", 4, "not a header"),
    ("#include <cuda/../../x>\n", 4, "not a header"),
    ("#include <iostream>\n", 4, "not a header"),
    ("%:include <iostream>\n", 4, "not a header"),
    ("#inc\\\nlude <iostream>\n", 4, "not a header"),
    ("/* a */ # /* b\n c */ include /* d */ <iostream>\n", 4, "not a header"),
    ("#define H <iostream>\n#include H\n", 5, "macro"),
    ("#include_next <cuda_fp16.h>\n", 4, "#include_next"),
    ("#import <cuda_fp16.h>\n", 4, "#import"),
    ("#if __has_include(</etc/shadow>)\n#endif\n", 4, "__has_include"),
    # the preprocessor
    ("#line 1 \"x.cu\"\n", 4, "#line"),
    ("# 7 \"x.cu\"\n", 4, "#line"),
    ("#define const\n", 4, "keyword"),
    ("#define __shared__ static\n", 4, "keyword"),
    ("#undef __device__\n", 4, "keyword"),
    ("const char* const t = __TIME__;\n", 4, "different image"),
    ("#endif\n", 4, "#endif without #if"),
    # inline PTX
    ("asm(\".global .u32 x;\");\n", 4, "outside a function"),
    ("__device__ void f() { asm volatile(\".global .u32 x;\"); }\n", 4, "declares .global"),
    ("__device__ void f() { asm volatile(\"{ .glo\" \"bal .u32 x; }\"); }\n", 4, "declares .global"),
    ("__device__ void f() { asm volatile(\"\\x2eglobal .u32 x;\"); }\n", 4, "declares .global"),
    ("__device__ void f() { asm volatile(\"/**/.global .u32 x;\"); }\n", 4, "declares .global"),
    ("#define P \".global .u32 x;\"\n__device__ void f() { asm(P); }\n", 4, "declares .global"),
    ("__device__ void f() { asm(R\"(.extern .func g;)\"); }\n", 4, "declares .extern"),
    # text that hides text
    ("// a comment that goes on \\\n__device__ int hidden;\n__device__ int y;\n", 6, "`y`"),
    ("// looks spliced \\ \n__device__ int y;\n", 4, "backslash"),
    ("// line ends here\r__device__ int y;\n", 4, "carriage return"),
    ("// ??/\n__device__ int y;\n", 4, "trigraph"),
    ("const char* const a = R\"x(\n// )x\"; __device__ int y; // )\";\n", 5, "`y`"),
    ("const char* const a = \"/*\"; __device__ int y; /* \"; */\n", 4, "`y`"),
    ("const char a = '\\\"'; __device__ int y; const char b = '\"';\n", 4, "`y`"),
    ("const int a = 1'000; __device__ int y; const int b = 1'000;\n", 4, "`y`"),
    ("const char* const a = R\"(\\\n)\";\n", 4, "raw string"),
    ("__device__ int f() <% static int y; return y; %>\n", 4, "`y`"),
    ("__device__ int \\u0079;\n", 4, "no C++ token"),
    ("__device__ int ｙ;\n", 4, "outside comments"),
    ("const int $str = 1;\n", 4, "no C++ token"),
    ("\x00", 4, "control character"),
    ("/* never closed\n", 4, "never ends"),
    ("const char* const a = \"never closed;\n", 4, "no closing"),
    ("const char* const a = R\"(never closed;\n", 4, "never ends"),
    ("__device__ void f() {\n", 4, "never closed"),
    ("}\n", 4, "closes nothing"),
    ("__device__ void f() { ) }\n", 4, "closes nothing"),
    ("{" * 300, 4, "200 deep"),
    ("#if A\n" * 100, 68, "64 inside each other"),
    ("#if A\n#endif\n" * 3000, 4004, "more than 2000 conditionals"),
    ("int" + " a{}," * 600 + " b;", 4, "`a`"),
    ("int x;" * 60_000, 1, "more than 262144"),
])
def test_refused_with_its_line(code: str, line: int, says: str):
    error = refused(code)
    assert says in error.message
    assert error.where == f"k.cu:{line}"


@pytest.mark.parametrize("code", [
    "__device__ const float table[3] = {1, 2, 3};\n",
    "static constexpr int N = 3; constexpr float t[] = {1, 2};\n",
    "__constant__ const float table[2] = {1, 2};\n",
    "const char* const names[] = {\"a\", \"b\"};\n",
    "extern __shared__ float memory[];\n",
    "template <int N, class T = float> struct alignas(16) Pack { T v[N]; static constexpr int n = N; __device__ T& operator[](int i) { return v[i]; } };\n",
    "struct __align__(8) P { float a, b; __device__ P(float x) : a(x), b{x} {} static __device__ P make() { return P(1); } };\n",
    "__device__ float f(float x, float y = 2.f); __device__ inline float f(float x, float y) { return x < y ? x : y; }\n",
    "template <typename T> __device__ __forceinline__ T f(T x) { __shared__ T tile[32]; static const int n = 3; return x + tile[n]; }\n",
    "template <> __device__ float g<float>(float x) { return x; }\n",
    "using F = float; typedef unsigned long long u64; enum class E : int { A = 1, B }; struct later;\n",
    "namespace a::b { constexpr int c = 1; } using namespace a::b; namespace d = a::b;\n",
    "__device__ void f() { auto g = [=] __device__ (int x) mutable { return x; }; g(1); static_assert(sizeof(int) == 4, \"x\"); }\n",
    "__device__ void f() { asm volatile(\"ld.global.nc.f32 %0, [%1];\" : \"=f\"(x) : \"l\"(p)); asm(\"{ .reg .pred p; }\"); }\n",
    "__device__ void f() { asm(\"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\"); }\n",
    "__device__ void f() { cudaGridDependencySynchronize(); cudaTriggerProgrammaticLaunchCompletion(); }\n",
    "#include <cuda_fp16.h>\n#include <cooperative_groups/memcpy_async.h>\n#include \"forge.cuh\"\n#include <cuda/std/limits>\n#include <stdint.h>\n",
    "#include <cub/block/block_reduce.cuh>\n#include <cuda_fp8.h>\n#include <mma.h>\n#include <nv/target>\n",
    "#if KEEP\n__device__ void f(int a) {\n#else\n__device__ void f(float a) {\n#endif\n}\n",
    "#if 1\n#define A(x) ((x) + 1)\n#elif 2\n#error don't come here\n#endif\n#pragma unroll\n",
    "__device__ int a() { return 1'000'000 + 0x1p3f + 'a' + L'b' + '\\'' + u8\"x\"[0]; }\n",
    "__device__ bool f(int a, int b, int c) { return a<b && b<::c; }\n",
    "struct N { int new_value; }; __device__ int renew(int malloc_count) { return malloc_count; }\n",
    "extern \"C\" { __device__ int g(int); }\nextern \"C++\" { __device__ int h(int); }\n",
    "const int t[][2] = {{1, 2}, {3, 4}}, u{3}, v{4}; struct Q { int a; } const q{1};\n",
    "struct R { int a, b; __device__ R(int x) : a{x}, b{x} { a = 1; } __device__ ~R() {} int c; };\n__device__ R::R(int x) : a{x}, b{x} {}\n",
    "__device__ void f(int a) { if (a == int{3}) { a = 1; } else { a = 2; } do { --a; } while (a > 0); int b = [&] { return a; }(); }\n",
    "union U { float f; int i; };\ntemplate struct Pack<3>;\n",
    "[[maybe_unused]] constexpr int q = 3; static const int r = 4, s = 5;\n",
    "__device__ Pack<3, float> make(const Pack<(3 > 2), float>& a) { Pack<3> b = {{1, 2, 3}}; return Pack<3>{b}; }\n",
])
def test_honest_code_passes(code: str):
    source = inspect(PLAN + KERNEL + code, "k.cu")
    assert source.kernels["k"][0].extern_c


@pytest.mark.parametrize(("code", "name", "extern_c", "count"), [
    ("extern \"C\" __global__ void k(int a, const float* b) {}", "k", True, 2),
    ("extern \"C\" __global__ __launch_bounds__(256, 2) void k() {}", "k", True, 0),
    ("extern \"C\" __global__ void __launch_bounds__(N * 2) __cluster_dims__(2, 1, 1) k(void) {}", "k", True, 0),
    ("extern \"C\" {\n__global__ void k(float (*a)[3], P<int, 2> b, int c[4]) {} }", "k", True, 3),
    ("__global__ void k(int a) {}", "k", False, 1),
    ("#define ARGS int a, int b\nextern \"C\" __global__ void k(ARGS) {}", "k", True, None),
    ("extern \"C\" __global__ void k(const __grid_constant__ int a, float b = 1.f) {}", "k", True, 2),
    ("#define BOUNDS(n) __launch_bounds__(n)\nextern \"C\" __global__ void BOUNDS(32) k(int a) {}", "k", True, 1),
])
def test_kernels_are_found(code: str, name: str, extern_c: bool, count: int | None):
    kernel, = read_declarations(tokenize(code).items).kernels
    assert (kernel.name, kernel.extern_c) == (name, extern_c)
    assert count == (None if kernel.parameters is None else len(kernel.parameters))


def test_unknown_pragmas_are_a_warning():
    assert inspect(PLAN + "#pragma omp parallel\n", "k.cu").warnings == ("k.cu:4: #pragma omp is not known here",)


def test_lines_survive_splices_comments_and_raw_strings():
    items = tokenize('a /* \n\n */ b \\\n c R"(x\ny)" d\n// e \\\n f\ng').items
    assert [(t.text, t.line) for t in items if isinstance(t, Token)] == [
        ("a", 1), ("b", 3), ("c", 4), ('R"x\ny"', 4), ("d", 5), ("g", 8)]


def test_the_plan_is_the_comment_that_the_compiler_sees():
    source = inspect("\n/*forge\nx = 'a' *\\\n/\n" + KERNEL, "k.cu")        # the splice makes `*/` of `*` and `/`
    assert source.plan == "\nx = 'a' " and source.plan_line == 2
    for text in ("", "int x;", "/* plan */", "/*forgery */", "// forge\n/*forge\n*/", "const int a = 1; /*forge\n*/", KERNEL):
        with pytest.raises(KernelFileError) as caught:
            inspect(text, "k.cu")
        assert "/*forge" in caught.value.cure or "forge" in caught.value.message


def test_the_brought_headers_are_the_allowed_ones():
    folder = Path(__file__).parent.parent / "forge_tui" / "cuda" / "headers" / "std"
    assert {path.name for path in folder.iterdir() if path.is_file()} <= STANDARD_HEADERS


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from([
    "/*", "*/", "//", "\n", "\\\n", '"', "'", 'R"(', ')"', "#", "#if A\n", "#else\n", "#endif\n", "#include ", "<x>", "{", "}", "(", ")", "[", "]",
    ";", ",", "=", "static ", "__device__ ", "int ", "x", "extern \"C\" ", "__global__ ", "void ", "struct ", "template ", "<", ">", "::", "<:", "%:",
    "const ", "operator", "namespace ", "enum ", "asm", "1'0", ".5e+3", "\\", "é", "<<<", "*", "&", "class "]), max_size=40).map("".join))
def test_any_text_is_read_or_refused(code: str):
    try:
        tokenize(code)
    except LexicalError as error:
        assert error.cure and 1 <= error.line <= code.count("\n") + 1
    try:
        inspect(PLAN + code, "k.cu")
    except KernelFileError as error:
        assert error.cure and error.where.startswith("k.cu:")
