"""The expression language of launch plans: Python's `ast`, a whitelist, integers, and limits that no text can exceed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from typing import NamedTuple, Union

from forge_tui.specs import Dtype, Items, Opaque, TensorSpec, Value

MAX_LENGTH = 1000
"""Characters of one expression. The longest written by hand so far has 150."""
MAX_NODES = 300
MAX_DEPTH = 40
MAX_BITS = 63
"""Every value, intermediate ones too, must fit a signed 64-bit integer: no plan needs more, and no power grows without end."""

Scalar = Union[int, float, str, None]
Lookup = Callable[[str], Value]
"""What a name stands for. Raises ExpressionError where it stands for nothing."""

FUNCTIONS = ("min", "max", "ceil_div", "align", "present")
TENSOR_ATTRIBUTES = ("shape", "stride", "numel", "ndim", "itemsize", "dtype", "contiguous", "align")
_ALLOWED = "allowed are + - * // % **, comparisons, and/or/not, min, max, ceil_div, align, present, and `x if c else y`"


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
    try:
        node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) and error.msg else "too deeply nested"
        raise ExpressionError(f"`{_short(text)}` is not an expression: {reason}", _ALLOWED) from None
    names: set[str] = set()
    _check(node, text, floating, names)
    return Expression(text, node, frozenset(names), floating)


def evaluate(expression: Expression, lookup: Lookup) -> int | float:
    """The number an expression stands for; an int unless it is floating. Raises ExpressionError."""
    value = _Evaluator(expression, lookup).visit(expression.node)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int) or (expression.floating and isinstance(value, float)):
        return value
    raise _not_a_number(expression.text, value)


def truth(expression: Expression, lookup: Lookup) -> bool:
    return bool(evaluate(expression, lookup))


def reference(expression: Expression, lookup: Lookup) -> Value:
    """What a bare name or subscript (`input`, `tensors[0]`) stands for; for anything else its number."""
    if is_reference(expression):
        return _Evaluator(expression, lookup).visit(expression.node)
    return evaluate(expression, lookup)


def reference_name(expression: Expression, lookup: Lookup) -> str:
    """The canonical name of a bare name or subscript: `tensors[-1]` of three is `tensors[2]`."""

    def name(node: ast.expr) -> str:
        if isinstance(node, ast.Subscript):
            evaluator = _Evaluator(expression, lookup)
            index, items = evaluator.number(node.slice), evaluator.visit(node.value)
            return f"{name(node.value)}[{index % len(items.items)}]"  # type: ignore[union-attr]
        return node.id  # type: ignore[attr-defined]

    return name(expression.node)


def is_reference(expression: Expression) -> bool:
    """Whether it is a bare name or an element of one, so that it may stand for a tensor."""
    node = expression.node
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name)


def why_false(expression: Expression, lookup: Lookup) -> str:
    """The first false part of a conjunction, with its numbers: `cols <= 16384 is false: cols = 32768`."""
    node = _false_part(expression, lookup)
    part = _segment(expression.text, node)
    facts = []
    for leaf in _leaves(node):
        text = _segment(expression.text, leaf)
        try:
            value = _Evaluator(expression, lookup).visit(leaf)
        except ExpressionError:
            continue  # behind a short circuit that kept it from being evaluated
        fact = f"{text} = {_shown(value)}"
        if fact not in facts and not isinstance(value, TensorSpec | Items | Opaque):
            facts.append(fact)
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) or not facts:
        return f"{part} is false"
    return f"{part} is false: {', '.join(facts)}"


def _false_part(expression: Expression, lookup: Lookup) -> ast.expr:
    node = expression.node
    while isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        node = next(part for part in node.values if not _Evaluator(expression, lookup).truth(part))
    return node


def _leaves(node: ast.AST) -> Iterator[ast.expr]:
    """Outermost references: `input.shape[-1]` as a whole, not `input`. The arguments of `present` say nothing more."""
    if isinstance(node, ast.Call):
        for argument in node.args if node.func.id != "present" else ():  # type: ignore[attr-defined]
            yield from _leaves(argument)
    elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        yield node
    else:
        for child in ast.iter_child_nodes(node):
            yield from _leaves(child)


# -- the whitelist

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
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


def _check(root: ast.expr, text: str, floating: bool, names: set[str]) -> None:
    """Refuse every node that is not whitelisted; collect names. Iterative, so that depth is a limit and not a crash."""
    pending: list[tuple[ast.AST, int]] = [(root, 1)]
    count = 0
    while pending:
        node, depth = pending.pop()
        count += 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise ExpressionError(f"`{_short(text)}` is too large", "name its parts in [let] or [define]")
        children = _checked_children(node, text, floating, names)
        pending.extend((child, depth + 1) for child in children)


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
                raise ExpressionError(f"`{_segment(text, node)}` is not known",
                                      f"facts of the device have bare names: {node.attr}" if device else
                                      "a tensor has ." + ", .".join(TENSOR_ATTRIBUTES))
            if not isinstance(node.value, ast.Name | ast.Subscript):
                raise ExpressionError(f"`{_segment(text, node)}` does not name a tensor", "write NAME" + f".{node.attr}")
            return [node.value]
        case ast.Subscript():
            if not isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript) or isinstance(
                    node.slice, ast.Slice | ast.Tuple):
                raise ExpressionError(f"`{_segment(text, node)}` is not an element", "write x[i] with one integer")
            return [node.value, node.slice]
        case ast.Call():
            return _checked_call(node, text)
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            return [node.left, node.right]
        case ast.UnaryOp() if isinstance(node.op, ast.USub | ast.UAdd | ast.Not):
            return [node.operand]
        case ast.BoolOp():
            return list(node.values)
        case ast.Compare() if all(type(op) in _COMPARISONS for op in node.ops):
            return [node.left, *node.comparators]
        case ast.IfExp():
            return [node.test, node.body, node.orelse]
    raise _refusal(node, text)


def _check_constant(node: ast.Constant, text: str, floating: bool) -> None:
    value = node.value
    if isinstance(value, float) and not floating:
        raise ExpressionError(f"`{_segment(text, node)}` is not an integer",
                              "floats are computed only in { float = ... } and { double = ... } arguments")
    if isinstance(value, float) and value in (float("inf"),):
        raise ExpressionError(f"`{_segment(text, node)}` is too large for a double", "write a finite number")
    if value is None or value is ...:
        raise ExpressionError(f"`{value}` is not a value here", "write present(x)")
    if isinstance(value, int):
        _bounded(value, text)
    elif not isinstance(value, float | str):
        raise ExpressionError(f"`{_segment(text, node)}` is not allowed", "write integers, or strings to compare with")
    elif node.kind is not None:
        raise ExpressionError(f"`{_segment(text, node)}` is not allowed", "write a plain string")


def _checked_call(node: ast.Call, text: str) -> list[ast.AST]:
    name = node.func.id if isinstance(node.func, ast.Name) else None
    if name not in FUNCTIONS:
        raise ExpressionError(f"`{_segment(text, node.func)}` cannot be called", f"functions are {', '.join(FUNCTIONS)}")
    if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
        raise ExpressionError(f"`{_segment(text, node)}` has keyword or starred arguments", "pass plain arguments")
    least, most = {"present": (1, 1), "ceil_div": (2, 2), "align": (2, 2)}.get(name, (2, 16))
    if not least <= len(node.args) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise ExpressionError(f"{name} takes {wanted} arguments, not {len(node.args)}", f"pass {wanted}")
    if name == "present" and not isinstance(node.args[0], ast.Name | ast.Subscript):
        raise ExpressionError(f"`{_segment(text, node)}` does not ask for an argument", "write present(NAME)")
    return list(node.args)


def _refusal(node: ast.AST, text: str) -> ExpressionError:
    kinds = [getattr(node, "op", node), *getattr(node, "ops", ())]
    for kind in kinds:
        if type(kind) in _CURES:
            return ExpressionError(f"{_CURES[type(kind)][0]} in `{_short(text)}`", _CURES[type(kind)][1])
    return ExpressionError(f"`{_short(_segment(text, node))}` is not allowed in an expression", _ALLOWED)


# -- evaluation


class _Evaluator:
    """Walks one checked expression. Depth is bounded by the whitelist."""

    def __init__(self, expression: Expression, lookup: Lookup) -> None:
        self.text = expression.text
        self.floating = expression.floating
        self.lookup = lookup

    def visit(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return _plain(self.lookup(node.id))
            case ast.BinOp():
                return self.arithmetic(type(node.op), self.number(node.left), self.number(node.right))
            case ast.Compare():
                return self.compare(node)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Subscript():
                return self.subscript(node)
            case ast.BoolOp():
                return self.boolean(node)
            case ast.UnaryOp():
                if isinstance(node.op, ast.Not):
                    return not self.truth(node.operand)
                value = self.number(node.operand)
                return _bounded(-value if isinstance(node.op, ast.USub) else +value, self.text)
            case ast.IfExp():
                return self.visit(node.body if self.truth(node.test) else node.orelse)
            case ast.Call():
                return self.call(node)
        raise AssertionError(f"unchecked node {type(node).__name__}")

    def number(self, node: ast.expr) -> int | float:
        value = self.visit(node)
        if isinstance(value, bool | int) or (self.floating and isinstance(value, float)):
            return value
        raise _not_a_number(_segment(self.text, node), value)

    def truth(self, node: ast.expr) -> bool:
        value = self.visit(node)
        if isinstance(value, bool | int | float):
            return bool(value)
        raise _not_a_number(_segment(self.text, node), value)

    def arithmetic(self, op: type[ast.operator], left: int | float, right: int | float) -> int | float:
        if op in (ast.FloorDiv, ast.Mod) and right == 0:
            raise ExpressionError(f"`{_short(self.text)}` divides by zero", "guard it: a [require] that the divisor is > 0")
        if op is ast.Pow:
            return self.power(left, right)
        return _bounded(_ARITHMETIC[op](left, right), self.text)  # type: ignore[arg-type]

    def power(self, base: int | float, exponent: int | float) -> int | float:
        whole = isinstance(base, int) and isinstance(exponent, int)
        if whole and exponent < 0 and not self.floating:
            raise ExpressionError(f"`{_short(self.text)}` raises to a negative power", "integers need an exponent >= 0")
        if whole and abs(base) > 1 and exponent > MAX_BITS:
            raise _too_large(self.text)
        try:
            value = base ** exponent
        except (OverflowError, ZeroDivisionError):
            raise ExpressionError(f"`{_short(self.text)}` has no finite value", "check base and exponent") from None
        if isinstance(value, complex):
            raise ExpressionError(f"`{_short(self.text)}` is not a real number", "the base must not be negative")
        return _bounded(value, self.text)

    def compare(self, node: ast.Compare) -> bool:
        left = self.comparable(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.comparable(right_node)
            equality = isinstance(op, ast.Eq | ast.NotEq)
            if not equality and not (_is_number(left) and _is_number(right)):
                raise ExpressionError(f"`{_short(self.text)}` orders {_shown(left)} and {_shown(right)}",
                                      "only numbers have an order; compare strings by == and !=")
            if equality and left is not None and right is not None and _is_number(left) != _is_number(right):
                raise ExpressionError(f"`{_short(self.text)}` compares {_shown(left)} with {_shown(right)}",
                                      "compare numbers with numbers and strings with strings")
            if not _COMPARISONS[type(op)](left, right):
                return False
            left = right
        return True

    def comparable(self, node: ast.expr) -> Scalar:
        value = self.visit(node)
        if isinstance(value, TensorSpec | Items | Opaque):
            raise _not_a_number(_segment(self.text, node), value)
        return value  # type: ignore[return-value]

    def boolean(self, node: ast.BoolOp) -> Value:
        """Python's own: the deciding operand."""
        for part in node.values[:-1]:
            value = self.visit(part)
            if not isinstance(value, bool | int | float):
                raise _not_a_number(_segment(self.text, part), value)
            if bool(value) == isinstance(node.op, ast.Or):
                return value
        return self.visit(node.values[-1])

    def attribute(self, node: ast.Attribute) -> Value:
        value = self.visit(node.value)
        name = _segment(self.text, node.value)
        if not isinstance(value, TensorSpec):
            cure = "guard it with present()" if value is None else f"write `{name}` itself"
            raise ExpressionError(f"`{name}` is {_kind(value)} and has no .{node.attr}", cure)
        if node.attr in ("shape", "stride"):
            raise ExpressionError(f"`{name}.{node.attr}` is a list", f"take an element: {name}.{node.attr}[-1]")
        try:
            return getattr(value, node.attr)
        except KeyError:                                    # a dtype without a known size, e.g. torch.bits8
            raise ExpressionError(f"`{name}` has the dtype {value.dtype}, which no kernel can use", "leave it to eager") from None

    def subscript(self, node: ast.Subscript) -> Value:
        index = self.number(node.slice)
        if not isinstance(index, int):
            raise ExpressionError(f"`{_segment(self.text, node)}` has an index that is not an integer", "use an integer")
        name = _segment(self.text, node.value)
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "stride"):
            tensor = self.visit(node.value.value)
            if not isinstance(tensor, TensorSpec):
                raise ExpressionError(f"`{_segment(self.text, node.value.value)}` is {_kind(tensor)}, not a tensor",
                                      "guard it with present()" if tensor is None else "name a tensor")
            sequence: tuple[Value, ...] = getattr(tensor, node.value.attr)
        else:
            value = self.visit(node.value)
            if not isinstance(value, Items):
                cure = f"write {name}.shape[i]" if isinstance(value, TensorSpec) else f"write `{name}` itself"
                raise ExpressionError(f"`{name}` is {_kind(value)}, not a list", cure)
            sequence = value.items
        if not -len(sequence) <= index < len(sequence):
            raise ExpressionError(f"`{_segment(self.text, node)}`: index {index} is out of range, {name} has {len(sequence)}",
                                  "guard it: a [require] on .ndim, or present() for a list's element")
        return _plain(sequence[index])

    def call(self, node: ast.Call) -> Value:
        name = node.func.id  # type: ignore[attr-defined]
        if name == "present":
            return self.present(node.args[0])
        numbers = [self.number(argument) for argument in node.args]
        if name in ("min", "max"):
            return min(numbers) if name == "min" else max(numbers)
        value, step = numbers
        if step <= 0:
            raise ExpressionError(f"`{_segment(self.text, node)}`: {name} needs a positive second argument, got {step}",
                                  "guard it with a [require]")
        quotient = -(-value // step)
        return _bounded(quotient if name == "ceil_div" else quotient * step, self.text)

    def present(self, node: ast.expr) -> bool:
        """Whether an argument (or a list argument's element) was given. The name itself must exist."""
        if isinstance(node, ast.Subscript):
            parent = self.visit(node.value)
            index = self.number(node.slice)
            if not isinstance(parent, Items) or not -len(parent.items) <= index < len(parent.items):
                return False
        return self.visit(node) is not None


def _plain(value: Value) -> Value:
    return value.name if isinstance(value, Dtype) else value


def _bounded(value: int | float, text: str) -> int | float:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise _too_large(text)
    return value


def _too_large(text: str) -> ExpressionError:
    return ExpressionError(f"`{_short(text)}` needs more than 64 bits", "no size in a plan is that large; check the formula")


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


def _not_a_number(text: str, value: object) -> ExpressionError:
    if value is None:
        return ExpressionError(f"`{_short(text)}` is None", "guard it with present()")
    if isinstance(value, float):
        return ExpressionError(f"`{_short(text)}` is the float {value!r}, and integers are wanted here",
                               "pass it as { float = \"...\" } or { double = \"...\" }")
    return ExpressionError(f"`{_short(text)}` is {_kind(value)}, not a number", _cure_for(value, text))


def _cure_for(value: object, text: str) -> str:
    if isinstance(value, TensorSpec):
        return f"write {text}.numel, {text}.shape[i] ..."
    return f"take an element: {text}[0]" if isinstance(value, Items) else "compare it with == or !="


def _kind(value: object) -> str:
    if isinstance(value, TensorSpec):
        return "a tensor"
    if isinstance(value, Items):
        return "a list"
    if isinstance(value, Opaque):
        return f"an object no kernel can use ({_short(value.text)})"
    return "None" if value is None else f"the {'string' if isinstance(value, str) else 'number'} {_short(repr(value))}"


def _shown(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else _short(repr(value))


def _segment(text: str, node: ast.AST) -> str:
    """The text of a node. Columns are byte offsets, and the text is one line of ASCII."""
    return text[node.col_offset:node.end_col_offset]  # type: ignore[attr-defined]


def _short(text: str, width: int = 120) -> str:
    return text if len(text) <= width else text[:width - 3] + "..."
