"""The expression language of launch plans: Python's `ast`, a whitelist, integers, and limits that no text can exceed."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import NamedTuple

MAX_LENGTH = 1000
"""Characters of one expression. The longest written by hand so far has 150."""
MAX_NODES = 300
MAX_DEPTH = 40
MAX_BITS = 63
"""Every value, intermediate ones too, must fit a signed 64-bit integer: no plan needs more, and no power grows without end."""


FUNCTIONS = ("min", "max", "ceil_div", "align", "present")
TENSOR_ATTRIBUTES = ("shape", "stride", "numel", "ndim", "itemsize", "dtype", "contiguous", "align")
_ALLOWED = "allowed are + - * // % **, comparisons, and/or/not, min, max, ceil_div, align, present, and `x if c else y`"


_GLUED = re.compile(r"(?<![\w.])(?!0[xXoObB])\d[\d_.]*(?![eE][-+\d])[A-Za-z]|(?<![\w.])0[xX][0-9a-fA-F_]*[g-zG-Z]")


class ExpressionError(Exception):
    """An expression that cannot be read or has no value. The caller adds file and line."""

    def __init__(self, message: str, cure: str) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure


class Expression(NamedTuple):
    """One checked expression."""

    text: str
    """On one line, as written."""
    node: ast.expr
    names: frozenset[str]
    """Every name it mentions, functions left out."""
    floating: bool
    """Whether floats may be computed with: inside `{ float = ... }` and `{ double = ... }` only."""
    size: int
    """Nodes of the syntax tree: what one evaluation costs."""


def compile_expression(source: str | int | float, floating: bool = False) -> Expression:
    """Check `source` against the whitelist. A TOML number stands for itself. Raises ExpressionError."""
    text = str(int(source) if isinstance(source, bool) else source)
    text = " ".join(text.split())
    if not text:
        raise ExpressionError("the expression is empty", "write an integer expression such as \"rows\"")
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"the expression has {len(text)} characters, more than {MAX_LENGTH}",
                              "name its parts in [let] or [define]")
    if not text.isascii() or not text.isprintable():
        raise ExpressionError("the expression has characters outside ASCII", "use ASCII letters, digits and operators")
    if "\\" in text or _GLUED.search(text):                # Python only warns of these, to the user's terminal
        raise ExpressionError(f"`{short(text)}` has a backslash, or a number that runs into a word", "put a space between them")
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) and error.msg else "too deeply nested"
        raise ExpressionError(f"`{short(text)}` is not an expression: {reason}", _ALLOWED) from None
    names: set[str] = set()
    size = _check(node, text, floating, names)
    return Expression(text, node, frozenset(names), floating, size)


ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}
COMPARISONS: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}
_CURES: dict[type[ast.AST], tuple[str, str]] = {
    ast.Div: ("`/` is not allowed", "integers divide by `//`, or ceil_div(a, b); in { float = ... } write x ** -1"),
    ast.In: ("`in` is not allowed", "write `a == x or a == y`"),
    ast.NotIn: ("`not in` is not allowed", "write `a != x and a != y`"),
    ast.Is: ("`is` is not allowed", "write present(x) to ask whether an optional argument was given, else `==`"),
    ast.IsNot: ("`is not` is not allowed", "write present(x) to ask whether an optional argument was given"),
    ast.LShift: ("`<<` is not allowed", "write x * 2 ** n"),
    ast.RShift: ("`>>` is not allowed", "write x // 2 ** n"),
}


def _check(root: ast.expr, text: str, floating: bool, names: set[str]) -> int:
    """Refuse every node that is not whitelisted; collect names, count nodes. Iterative, so that depth is a limit and not a crash."""
    pending: list[tuple[ast.AST, int]] = [(root, 1)]
    count = 0
    while pending:
        node, depth = pending.pop()
        count += 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise ExpressionError(f"`{short(text)}` is too large", "name its parts in [let] or [define]")
        children = _checked_children(node, text, floating, names)
        pending.extend((child, depth + 1) for child in children)
    return count


def _checked_children(node: ast.AST, text: str, floating: bool, names: set[str]) -> list[ast.AST]:
    match node:
        case ast.Constant():
            _check_constant(node, text, floating)
            return []
        case ast.Name():
            names.add(node.id)
            return []
        case ast.Attribute():
            if node.attr not in TENSOR_ATTRIBUTES:
                device = isinstance(node.value, ast.Name) and node.value.id == "device"
                raise ExpressionError(f"`{segment(text, node)}` is not known",
                                      f"facts of the device have bare names: {node.attr}" if device else
                                      "a tensor has ." + ", .".join(TENSOR_ATTRIBUTES))
            if not isinstance(node.value, ast.Name | ast.Subscript):
                raise ExpressionError(f"`{segment(text, node)}` does not name a tensor", "write NAME" + f".{node.attr}")
            return [node.value]
        case ast.Subscript():
            if not isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript) or isinstance(
                    node.slice, ast.Slice | ast.Tuple):
                raise ExpressionError(f"`{segment(text, node)}` is not an element", "write x[i] with one integer")
            return [node.value, node.slice]
        case ast.Call():
            return _checked_call(node, text)
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            return [node.left, node.right]
        case ast.UnaryOp() if isinstance(node.op, ast.USub | ast.UAdd | ast.Not):
            return [node.operand]
        case ast.BoolOp():
            return list(node.values)
        case ast.Compare() if all(type(op) in COMPARISONS for op in node.ops):
            return [node.left, *node.comparators]
        case ast.IfExp():
            return [node.test, node.body, node.orelse]
    raise _refusal(node, text)


def _check_constant(node: ast.Constant, text: str, floating: bool) -> None:
    value = node.value
    if isinstance(value, float) and not floating:
        raise ExpressionError(f"`{segment(text, node)}` is not an integer",
                              "floats are computed only in { float = ... } and { double = ... } arguments")
    if isinstance(value, float) and value in (float("inf"),):
        raise ExpressionError(f"`{segment(text, node)}` is too large for a double", "write a finite number")
    if value is None or value is ...:
        raise ExpressionError(f"`{value}` is not a value here", "write present(x)")
    if isinstance(value, int):
        bounded(value, text)
    elif not isinstance(value, float | str):
        raise ExpressionError(f"`{segment(text, node)}` is not allowed", "write integers, or strings to compare with")
    elif node.kind is not None:
        raise ExpressionError(f"`{segment(text, node)}` is not allowed", "write a plain string")


def _checked_call(node: ast.Call, text: str) -> list[ast.AST]:
    name = node.func.id if isinstance(node.func, ast.Name) else None
    if name not in FUNCTIONS:
        raise ExpressionError(f"`{segment(text, node.func)}` cannot be called", f"functions are {', '.join(FUNCTIONS)}")
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        raise ExpressionError(f"`{segment(text, node)}` has keyword or starred arguments", "pass plain arguments")
    least, most = {"present": (1, 1), "ceil_div": (2, 2), "align": (2, 2)}.get(name, (2, 16))
    if not least <= len(node.args) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise ExpressionError(f"{name} takes {wanted} arguments, not {len(node.args)}", f"pass {wanted}")
    if name == "present" and not isinstance(node.args[0], ast.Name | ast.Subscript):
        raise ExpressionError(f"`{segment(text, node)}` does not ask for an argument", "write present(NAME)")
    return list(node.args)


def _refusal(node: ast.AST, text: str) -> ExpressionError:
    kinds = [getattr(node, "op", node), *getattr(node, "ops", ())]
    for kind in kinds:
        if type(kind) in _CURES:
            return ExpressionError(f"{_CURES[type(kind)][0]} in `{short(text)}`", _CURES[type(kind)][1])
    return ExpressionError(f"`{short(segment(text, node))}` is not allowed in an expression", _ALLOWED)


def bounded(value: int | float, text: str) -> int | float:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise too_large(text)
    return value


def too_large(text: str) -> ExpressionError:
    return ExpressionError(f"`{short(text)}` needs more than 64 bits", "no size in a plan is that large; check the formula")


def segment(text: str, node: ast.AST) -> str:
    """The text of a node. Columns are byte offsets, and the text is one line of ASCII."""
    return text[node.col_offset:node.end_col_offset]  # type: ignore[attr-defined]


def short(text: str, width: int = 120) -> str:
    return text if len(text) <= width else text[:width - 3] + "..."
