"""Values of checked expressions, and the sentence that says why a condition is false."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Union

from forge_tui.engine.kernelfile.expressions import (
    ARITHMETIC,
    COMPARISONS,
    MAX_BITS,
    Expression,
    ExpressionError,
    bounded,
    segment,
    short,
    too_large,
)
from forge_tui.specs import Dtype, Items, Opaque, TensorSpec, Value

Scalar = Union[int, float, str, None]
Lookup = Callable[[str], Value]
"""What a name stands for. Raises ExpressionError where it stands for nothing."""


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
    part = segment(expression.text, node)
    facts = []
    for leaf in _leaves(node):
        text = segment(expression.text, leaf)
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
                return bounded(-value if isinstance(node.op, ast.USub) else +value, self.text)
            case ast.IfExp():
                return self.visit(node.body if self.truth(node.test) else node.orelse)
            case ast.Call():
                return self.call(node)
        raise AssertionError(f"unchecked node {type(node).__name__}")

    def number(self, node: ast.expr) -> int | float:
        value = self.visit(node)
        if isinstance(value, bool | int) or (self.floating and isinstance(value, float)):
            return value
        raise _not_a_number(segment(self.text, node), value)

    def truth(self, node: ast.expr) -> bool:
        value = self.visit(node)
        if isinstance(value, bool | int | float):
            return bool(value)
        raise _not_a_number(segment(self.text, node), value)

    def arithmetic(self, op: type[ast.operator], left: int | float, right: int | float) -> int | float:
        if op in (ast.FloorDiv, ast.Mod) and right == 0:
            raise ExpressionError(f"`{short(self.text)}` divides by zero", "guard it: a [require] that the divisor is > 0")
        if op is ast.Pow:
            return self.power(left, right)
        return bounded(ARITHMETIC[op](left, right), self.text)  # type: ignore[arg-type]

    def power(self, base: int | float, exponent: int | float) -> int | float:
        whole = isinstance(base, int) and isinstance(exponent, int)
        if whole and exponent < 0 and not self.floating:
            raise ExpressionError(f"`{short(self.text)}` raises to a negative power", "integers need an exponent >= 0")
        if whole and abs(base) > 1 and exponent > MAX_BITS:
            raise too_large(self.text)
        try:
            value = base ** exponent
        except (OverflowError, ZeroDivisionError):
            raise ExpressionError(f"`{short(self.text)}` has no finite value", "check base and exponent") from None
        if isinstance(value, complex):
            raise ExpressionError(f"`{short(self.text)}` is not a real number", "the base must not be negative")
        return bounded(value, self.text)

    def compare(self, node: ast.Compare) -> bool:
        left = self.comparable(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.comparable(right_node)
            equality = isinstance(op, ast.Eq | ast.NotEq)
            if not equality and not (_is_number(left) and _is_number(right)):
                raise ExpressionError(f"`{short(self.text)}` orders {_shown(left)} and {_shown(right)}",
                                      "only numbers have an order; compare strings by == and !=")
            if equality and left is not None and right is not None and _is_number(left) != _is_number(right):
                raise ExpressionError(f"`{short(self.text)}` compares {_shown(left)} with {_shown(right)}",
                                      "compare numbers with numbers and strings with strings")
            if not COMPARISONS[type(op)](left, right):
                return False
            left = right
        return True

    def comparable(self, node: ast.expr) -> Scalar:
        value = self.visit(node)
        if isinstance(value, TensorSpec | Items | Opaque):
            raise _not_a_number(segment(self.text, node), value)
        return value  # type: ignore[return-value]

    def boolean(self, node: ast.BoolOp) -> Value:
        """Python's own: the deciding operand."""
        for part in node.values[:-1]:
            value = self.visit(part)
            if not isinstance(value, bool | int | float):
                raise _not_a_number(segment(self.text, part), value)
            if bool(value) == isinstance(node.op, ast.Or):
                return value
        return self.visit(node.values[-1])

    def attribute(self, node: ast.Attribute) -> Value:
        value = self.visit(node.value)
        name = segment(self.text, node.value)
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
            raise ExpressionError(f"`{segment(self.text, node)}` has an index that is not an integer", "use an integer")
        name = segment(self.text, node.value)
        if isinstance(node.value, ast.Attribute) and node.value.attr in ("shape", "stride"):
            tensor = self.visit(node.value.value)
            if not isinstance(tensor, TensorSpec):
                raise ExpressionError(f"`{segment(self.text, node.value.value)}` is {_kind(tensor)}, not a tensor",
                                      "guard it with present()" if tensor is None else "name a tensor")
            sequence: tuple[Value, ...] = getattr(tensor, node.value.attr)
        else:
            value = self.visit(node.value)
            if not isinstance(value, Items):
                cure = f"write {name}.shape[i]" if isinstance(value, TensorSpec) else f"write `{name}` itself"
                raise ExpressionError(f"`{name}` is {_kind(value)}, not a list", cure)
            sequence = value.items
        if not -len(sequence) <= index < len(sequence):
            raise ExpressionError(f"`{segment(self.text, node)}`: index {index} is out of range, {name} has {len(sequence)}",
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
            raise ExpressionError(f"`{segment(self.text, node)}`: {name} needs a positive second argument, got {step}",
                                  "guard it with a [require]")
        quotient = -(-value // step)
        return bounded(quotient if name == "ceil_div" else quotient * step, self.text)

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


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


def _not_a_number(text: str, value: object) -> ExpressionError:
    if value is None:
        return ExpressionError(f"`{short(text)}` is None", "guard it with present()")
    if isinstance(value, float):
        return ExpressionError(f"`{short(text)}` is the float {value!r}, and integers are wanted here",
                               "pass it as { float = \"...\" } or { double = \"...\" }")
    return ExpressionError(f"`{short(text)}` is {_kind(value)}, not a number", _cure_for(value, text))


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
        return f"an object no kernel can use ({short(value.text)})"
    return "None" if value is None else f"the {'string' if isinstance(value, str) else 'number'} {short(repr(value))}"


def _shown(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else short(repr(value))
