"""Plans: every refusal with its file, line and cure, and the limits, types and counts that binding checks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.cuda.device import H200
from forge_tui.cuda.program import Program
from forge_tui.engine.kernelfile import parse
from forge_tui.engine.kernelfile.positions import locate, nearest
from forge_tui.engine.kernelfile.spread import spread
from forge_tui.errors import KernelFileError
from forge_tui.specs import Call, Dtype, Items, Opaque, TensorSpec, Value
from kernelfile_examples import WORKED, softmax, tensor

CODE = '''
extern "C" __global__ void k(const float* input, float* out, int n) {}
extern "C" __global__ void other(const float* input, float* out, long long n, float e, double d) {}
extern "C" __global__ void pair(const DTYPE_tensors_0* a, const void* b, float* out) {}
__global__ void mangled(const float* input, float* out, int n) {}
'''
BASE = '''format = 1
operator = "op"
[let]
n = "input.numel"
[tune]
BLOCK = [128, 256]
[[launch]]
kernel = "k"
grid = ["n"]
block = ["BLOCK"]
args = ["input", "out", "n"]
'''


def file_with(plan: str, code: str = CODE):
    return parse(f"/*forge\n{plan}*/{code}", "k.cu")


def op(**arguments: Value) -> Call:
    return Call("op", {"input": tensor(64, 32, dtype="float32"), **arguments}, (tensor(64, 32, dtype="float32"),))


def bound(plan: str, call: Call | None = None, device: Any = H200) -> Program:
    call = call or op()
    file = file_with(plan)
    assert file.refusal(call, device) is None
    return file.bind(call, device, file.points(call, device)[0])


def changed(old: str, new: str) -> str:
    assert old in BASE
    return BASE.replace(old, new)


@pytest.mark.parametrize(("plan", "line", "says", "cure"), [
    (changed("format = 1", "format = 2"), 2, "format 2 is not known", "upgrade"),
    (changed("format = 1\n", ""), 1, "no `format`", "format = 1"),
    (changed("format = 1", "format = true"), 2, "format True", "format = 1"),
    (changed('operator = "op"\n', ""), 1, "missing required field `operator`", "operator"),
    (changed('operator = "op"', 'operator = 3'), 3, "xpected `str`", "docs"),
    (changed('operator = "op"', 'operator = ""'), 3, "operator is empty", "softmax"),
    (changed("[let]", 'language = "triton"\n[let]'), 4, "language 'triton'", "cuda"),
    (changed("[let]", 'autor = "me"\n[let]'), 4, "no key `autor`", "known keys"),
    (changed("[let]", "[lets]"), 4, "no key `lets`", "did you mean `let`"),
    (changed("grid =", "gird ="), 10, "no key `gird`", "did you mean `grid`"),
    (changed('grid = ["n"]\n', ""), 8, "missing required field `grid`", "grid"),
    (changed('grid = ["n"]', 'grid = "n"'), 10, "xpected `array`", "docs"),
    (changed('grid = ["n"]', 'grid = []'), 10, "grid has 0 sizes", "one to three"),
    (changed('grid = ["n"]', 'grid = [1, 2, 3, 4]'), 10, "grid has 4 sizes", "one to three"),
    (changed('grid = ["n"]', 'grid = [\n  "1",\n  "n /"]'), 12, "launch[0].grid[1]", "allowed"),
    (changed('grid = ["n"]', "grid = [1.5]"), 10, "xpected `int | str`", ""),
    (changed('n = "input.numel"', "n = 1.5"), 5, "1.5 in let.n is not an integer", "{ float"),
    (changed('n = "input.numel"', "n = true"), 5, "not an expression", "string"),
    (changed('n = "input.numel"', 'n = "input.numel'), 5, "not valid TOML", "*/"),
    (changed('n = "input.numel"', 'n = "BLOCK * 2"'), 5, "`n` uses `BLOCK`, which comes later", "[define]"),
    (changed('n = "input.numel"', 'n = "m"\nm = "2"'), 5, "`n` uses `m`, which comes later", "put `m` first"),
    (changed("[[launch]]", '[define]\nA = "B"\nB = "1"\n[[launch]]'), 9, "`A` uses `B`", "first"),
    (changed('n = "input.numel"', 'n = "1"\ni = "2"'), 6, "`i` in [let] is not a usable name", "identifier"),
    (changed('n = "input.numel"', 'n = "1"\n"a b" = "2"'), 6, "not a usable name", "identifier"),
    (changed("BLOCK = [128, 256]", "int = [1]"), 7, "`int` in [tune] is not a usable name", "keyword"),
    (changed("BLOCK = [128, 256]", "DTYPE_input = [1]"), 7, "not a usable name", "DTYPE_"),
    (changed("BLOCK = [128, 256]", "BLOCK = [1]\nsm_count = [1]"), 8, "hides the device's", "another"),
    (changed("BLOCK = [128, 256]", "BLOCK = [1]\nn = [1]"), 8, "in [let] and in [tune]", "once"),
    (changed("BLOCK = [128, 256]", "BLOCK = []"), 7, "not a list of integers", "BLOCK = [128, 256]"),
    (changed("BLOCK = [128, 256]", "BLOCK = 128"), 7, "not a list of integers", "BLOCK"),
    (changed("BLOCK = [128, 256]", 'BLOCK = [\n128,\n"256"]'), 9, "not a 32-bit integer", "plain integers"),
    (changed("BLOCK = [128, 256]", "BLOCK = [128, 128]"), 7, "a value twice", "once"),
    (changed("BLOCK = [128, 256]", "BLOCK = [4294967296]"), 7, "not a 32-bit integer", "plain"),
    (changed("BLOCK = [128, 256]", "".join(f"A{i} = {list(range(9))}\n" for i in range(4))), 10, "more than 4096 combinations", "points ="),
    (changed("BLOCK = [128, 256]", "points = [{ BLOCK = 1 }]\nBLOCK = [1]"), 8, "both `points` and lists", "one"),
    (changed("BLOCK = [128, 256]", "points = []"), 7, "not a list of settings", "points ="),
    (changed("BLOCK = [128, 256]", "points = [{ BLOCK = 1 },\n{ A = 1 }]"), 8, "the first sets BLOCK", "same names"),
    (changed("BLOCK = [128, 256]", "points = [{ BLOCK = 1 }, { BLOCK = 1 }]"), 7, "there twice", "once"),
    (changed("[[launch]]", "[require]\na = 3\n[[launch]]"), 9, "not a condition", "string"),
    (changed("[[launch]]", "[require]\na = ['n > 0', 'n >']\n[[launch]]"), 9, "require.a[1]", "allowed"),
    (changed("[[launch]]", "[[workspace]]\nname = 'w'\ndtype = 'float33'\nshape = [1]\n[[launch]]"), 10, "'float33'", "did you mean 'float32'"),
    (changed("[[launch]]", "[[workspace]]\nname = 'w'\ndtype = 'int8'\nshape = [1]\nfill = 256\n[[launch]]"), 12, "not a byte", "memset"),
    (changed("[[launch]]", "[[workspace]]\nname = 'w'\ndtype = 'int8'\nshape = []\n[[launch]]"), 11, "1 to 8 sizes", "shape ="),
    (changed("[[launch]]", "[[workspace]]\nname = 'out'\ndtype = 'int8'\nshape = [1]\n[[launch]]"), 9, "not a usable name", "out"),
    (changed("[[launch]]", "[[launches]]"), 8, "no key `launches`", "did you mean `launch`"),
    (BASE.partition("[[launch]]")[0], 1, "launches nothing", "[[launch]]"),
    (changed('kernel = "k"', 'kernel = "kk"'), 9, "no __global__ function has that name", "the code has: k, other"),
    (changed('kernel = "k"', 'kernel = "mangled"'), 17, "is not extern \"C\"", "extern \"C\""),
    (BASE.replace('args = ["input", "out", "n"]', 'args = ["input", "out"]'), 12,
     "takes 3 arguments (line 14) and the plan passes 2", "agree"),
    (BASE.replace('"n"]\n', '{ int32 = "n" }]\n').replace('grid = [{ int32 = "n" }]', 'grid = ["n"]'), 12, "has the keys int32", "int64"),
    (BASE.replace('args = ["input", "out", "n"]', 'args = ["input", "out", 1.5]'), 12, "1.5 in launch[0].args[2]", "{ float"),
    (changed("BLOCK = [128, 256]", "BLOCK = [128, 256]\nA = " + str(list(range(2000)))) + "[define]\n"
     + "".join(f"A{i} = '{'1 + ' * 30}1'\n" for i in range(40)), 6, "steps to filter", "points ="),
    (BASE + "repeat = 'i'\n", 13, "counts itself", "other"),
    ("format = 1\na = " + "[" * 2000 + "\n", 1, "nested too deeply", "simplify"),
    ("format = " + "9" * 5000 + "\n", 1, "too long", "simplify"),
    ("format = 1 \x00\n", 2, "control character", "UTF-8"),
    ("#" * 70_000 + "\n", 1, "more than 32768", "shorten"),
])
def test_refused_with_file_line_and_cure(plan: str, line: int, says: str, cure: str):
    with pytest.raises(KernelFileError) as caught:
        file_with(plan)
    assert says in caught.value.message
    assert cure in (caught.value.cure or "") and caught.value.cure
    assert caught.value.where == f"k.cu:{line}"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("plan", "line", "says", "cure"), [
    (changed('grid = ["n"]', 'grid = ["2 ** 31"]'), 10, "grid.x = 2147483648", "more work"),
    (changed('grid = ["n"]', 'grid = ["1", "65536"]'), 10, "grid.y = 65536 is more than the device's 65535", "dimension"),
    (changed('grid = ["n"]', 'grid = ["n - 5000"]'), 10, "grid is negative", "[require]"),
    (changed('block = ["BLOCK"]', 'block = ["BLOCK * 16"]'), 11, "block.x = 2048", "[require]"),
    (changed('block = ["BLOCK"]', 'block = ["BLOCK", 16]'), 11, "2048 threads is more than the device's 1024", "(BLOCK) * (16) <= 1024"),
    (changed('block = ["BLOCK"]', 'block = [1, 1, 65]'), 11, "block.z = 65", "[require]"),
    (changed('block = ["BLOCK"]', 'block = [0]'), 11, "block.x = 0", "[require]"),
    (BASE + "shared = 'max_shared + 1'\n", 13, "232449 bytes of shared memory", "<= max_shared"),
    (BASE + "cluster = [16]\n", 13, "a cluster of 16 blocks", "max_cluster"),
    (BASE.replace("[\"n\"]", "[\"n + 1\"]", 1) + "cluster = [4]\n", 13, "cluster.x = 4 does not divide grid.x = 2049", "multiple"),
    (BASE + "cooperative = true\nshared = 200000\n", 10, "2048 blocks cannot be resident at once: at most 132", "sm_count * 1"),
    (changed("BLOCK = [128, 256]", "BLOCK = [128, 256]\nA = " + str(list(range(50)))) + "repeat = 1000\n", 14, "100 settings is more than 65536", "fewer"),
    (BASE + "repeat = 5000\n", 13, "more than 1024 launches", "inside the kernel"),
    (BASE + "repeat = '0 - 1'\n", 13, "repeat is negative", "[require]"),
    (BASE.replace('"n"]\n', '"n * 2 ** 20"]\n').replace('grid = ["n * 2 ** 20"]', "grid = [1]"), 12, "does not fit a 32-bit integer", "{ int64 ="),
    (BASE.replace('"out", "n"', '"out", "rows"'), 12, "`rows` is not known", "names here"),
    (BASE.replace('"out", "n"', '"n", "out"'), 12, "argument 2 of k is `float * out` in the code (line 14) and a 32-bit integer", "bare name"),
    (BASE.replace('"out", "n"', '"out", { int64 = "n" }'), 12, "argument 3 of k is `int n`", "plain expression"),
    (BASE.replace('"out", "n"', '"out", "eps"'), 12, "the float 1e-05", "{ float"),
    (BASE.replace('"out", "n"', '"out", "sizes"'), 12, "is a list", "sizes[0]"),
    (BASE.replace('"out", "n"', '"out", "mode"'), 12, "is a string", "leave it out"),
    (BASE.replace('"out", "n"', '"out", "generator"'), 12, "is an object", ""),
    (BASE.replace('"input", "out", "n"', '"input", "input", "n"'), 8, "nothing writes it", "\"out\""),
    (changed('n = "input.numel"', 'n = "input.shape[2]"'), 5, "n: `input.shape[2]`: index 2 is out of range", ".ndim"),
    (changed('n = "input.numel"', 'n = "input.numel"\nsizes = "3"'), 6, "hides the operator's own `sizes`", "another"),
    (changed("[[launch]]", "[[workspace]]\nname = 'eps'\ndtype = 'int8'\nshape = [1]\n[[launch]]"), 8, "hides the operator's own `eps`", "another"),
    (changed("[[launch]]", "[[workspace]]\nname = 'w'\ndtype = 'int8'\nshape = ['2 ** 40']\n[[launch]]"), 8, "workspaces need", "less"),
    (changed("[[launch]]", "[define]\nA = 'BLOCK // (BLOCK - 128)'\n[[launch]]").replace("[128, 256]", "[128]"), 9, "A: `BLOCK", "guard"),
    (changed("[[launch]]", "[require]\nbig = 'n > 5000'\n[[launch]]"), 9, "n > 5000 is false: n = 2048", "big"),
    (changed("[[launch]]", "[require]\nbig = 'n > 5000 + BLOCK'\n[[launch]]"), 9, "n > 5000 + BLOCK is false: n = 2048, BLOCK = 128", "big"),
    (changed("[[launch]]", "[require]\nbig = 'm > 5000'\n[[launch]]"), 9, "`m` is not known", "names here: n, BLOCK"),
])
def test_unfit_calls_say_why_and_bind_says_where(plan: str, line: int, says: str, cure: str):
    file = file_with(plan)
    call = op(eps=1e-5, sizes=Items((1, 2)), mode="x", generator=Opaque("<g>"))
    assert says in file.refusal(call, H200)
    assert file.points(call, H200) == []
    with pytest.raises(KernelFileError) as caught:
        file.bind(call, H200, file.plan.settings[0])
    assert says in caught.value.message and cure in caught.value.cure
    assert caught.value.where == f"k.cu:{line}"


def test_settings_that_break_a_limit_are_filtered_and_others_stay():
    file = file_with(changed("[128, 256]", "[2048, 128, 1024]"))
    assert file.refusal(op(), H200) is None
    assert file.points(op(), H200) == [{"BLOCK": 128}, {"BLOCK": 1024}]
    with pytest.raises(KernelFileError, match="BLOCK = 64 is not a setting"):
        file.bind(op(), H200, {"BLOCK": 64})


def test_the_device_decides():
    small = msgspec.structs.replace(H200, max_shared=1000, max_cluster=1, sm_count=2)
    for line, says in (("cluster = [2]\n", "a cluster of 2 blocks"), ("shared = 2000\n", "2000 bytes of shared memory")):
        assert file_with(BASE + line).refusal(op(), H200) is None
        assert says in file_with(BASE + line).refusal(op(), small)
    assert bound(changed('grid = ["n"]', 'grid = ["sm_count * cc + max_cluster"]'), device=small).launches[0].grid[0] == 181


def test_when_repeat_and_empty_grids():
    plan = changed('grid = ["n"]', 'grid = ["n // 2 ** i"]').replace('"out", "n"', '"out", "i"') + "repeat = 4\nwhen = 'i != 2'\n"
    launches = bound(plan).launches
    assert [launch.grid[0] for launch in launches] == [2048, 1024, 256]
    assert [launch.arguments[2].value for launch in launches] == [0, 1, 3]
    assert bound(BASE + "repeat = 0\n").launches == ()
    assert bound(BASE + "when = false\n").launches == ()
    assert bound(changed('grid = ["n"]', 'grid = ["n", "n - 2048"]').replace('["BLOCK"]', '["0"]')).launches == ()
    plan = changed('grid = ["n"]', 'grid = [1]') + "when = 'present(weight) and weight.numel > 3'\n"
    assert bound(plan, op(weight=None)).launches == ()


def test_arguments_become_what_the_kernel_takes():
    plan = BASE.replace('kernel = "k"', 'kernel = "other"').replace(
        '"out", "n"]', '"out", { int64 = "n * 2 ** 30" }, { float = "eps * 2" }, { double = "scale ** -0.5" }]')
    arguments = bound(plan, op(eps=0.25, scale=16)).launches[0].arguments
    assert [(a.kind, a.value) for a in arguments[2:]] == [("int64", 2048 * 2**30), ("float32", 0.5), ("float64", 0.25)]
    with pytest.raises(KernelFileError, match="does not fit a float"):
        file = file_with(plan)
        file.bind(op(eps=1e300, scale=16), H200, {"BLOCK": 128})
    assert bound(plan, op(eps=float("-inf"), scale=1)).launches[0].arguments[3].value == float("-inf")


def test_lists_of_tensors_optional_tensors_and_dtype_macros():
    plan = BASE.replace('kernel = "k"', 'kernel = "pair"').replace('"input", "out", "n"', '"tensors[-2]", "bias", "out"').replace(
        'n = "input.numel"', 'n = "tensors[0].numel"')
    call = Call("op", {"tensors": Items((tensor(8, dtype="float16"), tensor(8, dtype="float8_e4m3fn"))), "bias": None},
                (tensor(16, dtype="int64"),))
    program = bound(plan, call)
    assert [(a.kind, a.name) for a in program.launches[0].arguments] == [
        ("pointer", "tensors[0]"), ("pointer", None), ("pointer", "out")]
    assert dict(program.macros) == {"BLOCK": "128", "DTYPE_tensors_0": "__half", "DTYPE_tensors_1": "__nv_fp8_e4m3",
                                    "DTYPE_out": "long long"}
    assert program.inputs == ("tensors[0]", "tensors[1]")


def test_results_aliases_and_names_that_meet():
    spec = TensorSpec("float32", (4,), (1,), 4)
    call = Call("op", {"input": spec, "out": None, "cc": 5, "n": 3}, (spec,), {"out": "input"})
    program = bound(changed('n = "input.numel"', 'n = "n + cc"').replace('grid = ["n"]', 'grid = ["out.align"]'), call)
    assert program.aliases == {"out": "input"} and program.outputs == ("out",)
    assert program.launches[0].arguments[2].value == 8                     # the argument `cc`, not the device's; `n` sees the call's
    assert program.launches[0].grid[0] == 4                                # an alias has the input's alignment
    fresh = Call("op", {"input": spec}, (spec, spec))
    program = bound(BASE.replace('"input", "out"', '"out0", "out1"').replace('grid = ["n"]', 'grid = ["out0.align"]'), fresh)
    assert program.outputs == ("out0", "out1") and program.launches[0].grid[0] == 256
    in_place = BASE.replace('"input", "out"', '"input", "input"').replace('["n"]', '[1]')
    assert file_with(in_place).refusal(Call("op", {"input": spec}, (spec,), {"out": "input"}), H200) is None


def test_points_instead_of_a_product():
    file = file_with(changed("BLOCK = [128, 256]", "points = [{ BLOCK = 256, VEC = 8 }, { VEC = 4, BLOCK = 128 }]"))
    assert file.points(op(), H200) == [{"BLOCK": 256, "VEC": 8}, {"BLOCK": 128, "VEC": 4}]
    with pytest.raises(KernelFileError):
        file.bind(op(), H200, {"BLOCK": 256, "VEC": 4})


def test_dtype_and_string_arguments_guard():
    plan = changed("[[launch]]", "[require]\nc = [\"dtype == 'float32'\", \"mode != 'none'\"]\n[[launch]]")
    assert file_with(plan).refusal(op(dtype=Dtype("float32"), mode="mean"), H200) is None
    assert file_with(plan).refusal(op(dtype=None, mode="mean"), H200) == "dtype == 'float32' is false: dtype = None"
    assert file_with(plan).refusal(op(dtype=Dtype("float32"), mode="none"), H200) == "mode != 'none' is false: mode = 'none'"


def test_macros_of_large_and_negative_numbers():
    program = bound(changed("[[launch]]", "[define]\nA = '-3'\nB = '2 ** 40'\n[[launch]]"))
    assert program.macros[1:3] == (("A", "(-3)"), ("B", "1099511627776LL"))


def test_lower_case_macros_are_a_warning():
    assert file_with(changed("BLOCK = [", "block = [").replace('["BLOCK"]', '["block"]')).warnings == (
        "k.cu:7: macro `block` has lower-case letters only and also replaces that word in headers",)


SETTINGS = [{"A": a, "B": b, "C": c} for a in (1, 2, 4, 8) for b in (1, 2) for c in range(5)]


@pytest.mark.parametrize("limit", [0, 1, 2, 11, 16, 39, 40, 100])
def test_limited_settings_cover_the_space(limit: int):
    chosen = spread(SETTINGS, limit)
    assert len(chosen) == min(limit, 40) and chosen[:1] == SETTINGS[:min(limit, 1)]
    assert len({tuple(setting.items()) for setting in chosen}) == len(chosen)
    assert chosen == spread(SETTINGS, limit)
    if limit >= 11:                                                        # 4 + 2 + 5 distinct values
        assert {item for setting in chosen for item in setting.items()} == {item for s in SETTINGS for item in s.items()}
    if limit == 16:
        counts = [sum(setting["B"] == b for setting in chosen) for b in (1, 2)]
        assert abs(counts[0] - counts[1]) <= 2


def test_positions_of_everything():
    toml = ('a = 1 # [x]\n[let]\n"q" = """x\n[no]\n"""\nb = [\n  "1,]",  # 2, 3\n  "2", { c = 3 }]\n\n[[launch]]\nx.y = 2\n'
            "[[launch]]\nargs = ['''\n''', 1]\n")
    lines = locate(toml)
    assert {path: lines[path] for path in ("a", "let", "let.q", "let.b", "let.b[0]", "let.b[1]", "let.b[2]", "launch[0]", "launch[0].x.y",
                                           "launch[1]", "launch[1].args[1]")} == {
        "a": 1, "let": 2, "let.q": 3, "let.b": 6, "let.b[0]": 7, "let.b[1]": 8, "let.b[2]": 8, "launch[0]": 10, "launch[0].x.y": 11,
        "launch[1]": 12, "launch[1].args[1]": 14}
    assert "let.no" not in lines and nearest(lines, "launch[1].args[7].deep") == 13 and nearest(lines, "nothing") == 1


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_mutated_files_are_read_or_refused(data: st.DataObject):
    """Cut, doubled, swapped and replaced pieces of a valid file: a KernelFile that answers, or a KernelFileError."""
    text = WORKED
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 60)))
        filler = data.draw(st.one_of(st.just(""), st.text(max_size=6), st.just(text[start:end] * 2), st.sampled_from(
            ["[", "]", '"', "'", "0", "-1", "cols", "BLOCK", "input", "=", "\n", "**", "*/", "/*", "out", "2 ** 62", "1e3", "true", "{", "}"])))
        text = text[:start] + filler + text[end:]
    try:
        file = parse(text, "m.cu")
    except KernelFileError as error:
        assert error.cure and error.where.startswith("m.cu:") and error.where[5:].isdigit()
        assert 1 <= int(error.where[5:]) <= text.count("\n") + 1
        return
    for call in (softmax(4, 1024), softmax(0, 8), softmax(8, dtype="float32")):
        reason = file.refusal(call, H200)
        points = file.points(call, H200, limit=4)
        assert (reason is None) == bool(points)
        for point in points:
            file.bind(call, H200, point)
