"""The expression language: equal to Python where it is allowed, an ExpressionError everywhere else, and never slow."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.engine.kernelfile.evaluation import evaluate, reference_name, why_false
from forge_tui.engine.kernelfile.expressions import MAX_LENGTH, ExpressionError, compile_expression
from forge_tui.specs import Dtype, Items, Opaque, TensorSpec

VALUES = {"a": 7, "b": -3, "c": 0, "d": 1024, "flag": True}
THINGS = {
    **VALUES, "input": TensorSpec("bfloat16", (2, 3, 640), (1920, 640, 1), 16), "weight": None, "eps": 1e-5, "whole": 2.0,
    "dtype": Dtype("float32"), "approximate": "tanh", "output_size": Items((7, None)), "scale": 0.125,
    "tensors": Items((TensorSpec("float16", (4,), (1,)), TensorSpec("float32", (8, 2), (1, 8)))), "generator": Opaque("<x>"),
}


def value(text: str, floating: bool = False) -> int | float:
    return evaluate(compile_expression(text, floating), THINGS.__getitem__)


def ceil_div(x: int, y: int) -> int:
    if y <= 0:
        raise ZeroDivisionError
    return -(-x // y)


def align(x: int, y: int) -> int:
    return ceil_div(x, y) * y


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
    power = st.tuples(inner, st.integers(0, 5)).map(lambda t: f"(({t[0]}) ** {t[1]})")
    compared = st.lists(inner, min_size=2, max_size=4).flatmap(
        lambda parts: st.lists(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), min_size=len(parts) - 1,
                               max_size=len(parts) - 1).map(
            lambda ops: "(" + "".join(f"{p} {o} " for p, o in zip(parts, [*ops, ""], strict=True)) + ")"))
    logic = st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
    unary = st.tuples(st.sampled_from(["not ", "-", "+"]), inner).map(lambda t: f"({t[0]}{t[1]})")
    chosen = st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})")
    called = st.tuples(st.sampled_from(["min", "max", "ceil_div", "align"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})")
    return st.one_of(binary, power, compared, logic, unary, chosen, called)


EXPRESSIONS = st.recursive(st.one_of(st.integers(0, 5000).map(str), st.sampled_from(sorted(VALUES))), grown, max_leaves=12)


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS)
def test_equals_python(text: str):
    functions = {"min": min, "max": max, "ceil_div": ceil_div, "align": align}
    try:
        expected = eval(text, {"__builtins__": {}}, {**VALUES, **functions})  # noqa: S307: text of our own making
    except ZeroDivisionError:
        expected = None
    try:
        got = value(text)
    except ExpressionError as error:
        # Errors: a zero divisor, or 64 bits exceeded (also by a part of an expression whose end is small).
        assert expected is None or any(word in error.message for word in ("64 bits", "too large", "characters"))
    else:
        assert expected is not None and got == int(expected) and type(got) is int


GARBAGE = st.one_of(
    st.text(max_size=80),
    st.text(alphabet=string.printable, max_size=80),
    st.lists(st.sampled_from(["input", ".shape", "[", "]", "-1", "(", ")", "and", "or", "not", "if", "else", "**", "//", "==", "'x'",
                              "lambda", ":", "min", ",", "present", ".__class__", "9" * 30, "1e9", "~", "{", "}", "f''", "weight",
                              ".dtype", "<", "output_size", "eps", " "]), max_size=14).map(" ".join))


@settings(max_examples=600, deadline=None)
@given(GARBAGE, st.booleans())
def test_garbage_is_a_number_or_an_error_with_a_cure(text: str, floating: bool):
    def lookup(name: str):
        if name not in THINGS:
            raise ExpressionError(f"{name} is not known", "use a known name")
        return THINGS[name]

    try:
        expression = compile_expression(text, floating)
        result = evaluate(expression, lookup)
    except ExpressionError as error:
        assert error.message and error.cure
    else:
        assert type(result) is int or (floating and type(result) is float)


@pytest.mark.parametrize("text", [
    "2 ** 2 ** 2 ** 2 ** 2", "9 ** 9 ** 9 ** 9", "10 ** 1000000000", "(-2) ** 64", "d ** 7", "9" * 200, "d * d * d * d * d * d * d * d",
    "(" * 400 + "1" + ")" * 400, "-" * 900 + "1", "not " * 200 + "1", "1 " + "+ 1" * 320, "a" * (MAX_LENGTH + 1),
    "max(" * 60 + "1, 1" + ")" * 60, "1 if 1 else " * 70 + "1",
])
def test_no_text_is_expensive(text: str):
    with pytest.raises(ExpressionError):
        value(text)


@pytest.mark.parametrize(("text", "expected"), [
    ("input.shape[-1]", 640), ("input.shape[c]", 2), ("input.stride[0]", 1920), ("input.numel", 3840), ("input.ndim", 3),
    ("input.itemsize", 2), ("input.contiguous", 1), ("input.align", 16), ("input.dtype == 'bfloat16'", 1),
    ("input.dtype != 'bfloat16'", 0), ("present(weight)", 0), ("present(input)", 1), ("present(output_size[1])", 0),
    ("present(output_size[2])", 0), ("output_size[0]", 7), ("tensors[1].shape[0] * tensors[0].numel", 32), ("tensors[1].contiguous", 0),
    ("approximate == 'tanh'", 1), ("dtype == 'float32'", 1), ("present(dtype) and dtype == 'float32'", 1), ("weight == 'x'", 0),
    ("flag", 1), ("not flag", 0), ("ceil_div(a, 2)", 4), ("align(a, 4)", 8), ("0 < a <= 7 < d", 1), ("a if c else d", 1024),
    ("whole == 2", 1), ("eps > 0", 1), ("present(weight) and weight.numel == 3", 0), ("a //\n  2", 3), ("True", 1), ("0x10 + 0b11 + 1_000", 1019),
])
def test_what_names_are(text: str, expected: int):
    assert value(text) == expected


@pytest.mark.parametrize(("text", "says", "cure"), [
    ("rows / 2", "`/` is not allowed", "//"), ("a in b", "`in` is not allowed", "a == x or a == y"), ("a is None", "is", "present"),
    ("input.shape", "is a list", "input.shape[-1]"), ("input", "is a tensor", "input.numel"), ("eps * 2", "the float 1e-05", "{ float"),
    ("eps", "the float 1e-05", "{ float"), ("1.5", "`1.5` is not an integer", "{ float"), ("weight.numel", "is None", "present"),
    ("weight + 1", "is None", "present"), ("input.shape[3]", "index 3 is out of range", ".ndim"), ("output_size[0][0]", "not a list", ""),
    ("input[0]", "is a tensor, not a list", "input.shape[i]"), ("input.shape[0:1]", "not an element", "x[i]"), ("a // c", "by zero", "guard"),
    ("a % 0", "by zero", "guard"), ("2 ** b", "negative power", ">= 0"), ("align(a, c)", "positive second argument", "guard"),
    ("input.__class__", "is not known", ".shape"), ("open('x')", "cannot be called", "min"), ("min(a)", "takes 2 to 16", "pass"),
    ("min(*a)", "starred", "plain"), ("ceil_div(a, y=2)", "keyword", "plain"), ("[1]", "not allowed", "allowed are"),
    ("(x := 1)", "not allowed", "allowed are"), ("lambda: 1", "not allowed", "allowed are"), ("a <", "not an expression", "allowed are"),
    ("approximate", "the string 'tanh'", "=="), ("approximate < 'z'", "orders", "only numbers"), ("a == 'x'", "compares", "strings with strings"),
    ("generator", "object no kernel can use", ""), ("b'x' == 1", "not allowed", "integers"), ("None", "not a value", "present"),
    ("", "empty", ""), ("ａ", "outside ASCII", "ASCII"), ("device.sm_count", "is not known", "bare names: sm_count"),
    ("1if a else 2", "runs into a word", "space"), ("a == '\\d'", "backslash", "space"), ("0x1for a", "runs into a word", "space"),
    ("1 << 3", "`<<` is not allowed", "2 ** n"), ("~a", "not allowed", ""), ("f'{a}' == 1", "not allowed", ""),
])
def test_refusals_say_what_and_how(text: str, says: str, cure: str):
    with pytest.raises(ExpressionError) as caught:
        value(text)
    assert says in caught.value.message and cure in caught.value.cure


def test_floats_only_where_asked():
    assert value("scale * 2 + eps", floating=True) == 0.25 + 1e-5
    assert value("d ** -0.5", floating=True) == 1024 ** -0.5
    assert value("1e-3", floating=True) == 1e-3
    assert value("a // 2", floating=True) == 3
    for text in ("(-8) ** 0.5", "0 ** -1", "1e400", "1e308 ** 2", "eps // 0"):
        with pytest.raises(ExpressionError):
            value(text, floating=True)


def test_the_false_part_is_named_with_its_numbers():
    def why(text: str) -> str:
        return why_false(compile_expression(text), THINGS.__getitem__)

    assert why("a < 8 and d <= 512 and c") == "d <= 512 is false: d = 1024"
    assert why("input.shape[-1] % 512 == 0") == "input.shape[-1] % 512 == 0 is false: input.shape[-1] = 640"
    assert why("tensors[1].contiguous") == "tensors[1].contiguous is false"
    assert why("present(weight)") == "present(weight) is false"
    assert why("dtype == 'float16' or a < b") == "dtype == 'float16' or a < b is false: dtype = 'float32', a = 7, b = -3"


def test_canonical_names_of_elements():
    assert reference_name(compile_expression("tensors[-1]"), THINGS.__getitem__) == "tensors[1]"
    assert reference_name(compile_expression("tensors[c]"), THINGS.__getitem__) == "tensors[0]"
