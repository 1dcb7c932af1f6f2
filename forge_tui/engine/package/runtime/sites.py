"""Places in a model's code where a few operations in a row may be one: found in the source, rewritten as one call of a helper.

| written | becomes |
|---|---|
| `act(g) * u` | `act_mul(act, g, u)` |
| `u * act(g)` | `mul_act(u, act, g)` |
| `act(norm(x))` | `norm_act(act, norm, x)` |
| `act(norm(conv(x)))` | `conv_norm_act(act, norm, conv, x)` |
| `norm(conv(x))` | `conv_norm(norm, conv, x)` |
| `act(a + b)` | `add_act(act, a, b)` |
| `s += b; s = act(s)` | `s = iadd_act(act, s, b)` |
| `norm(a + b)` | `add_norm(norm, a, b)` |
| `s = a + b; r = s; y = norm(s)` | `s, y = add_norm_sum(norm, a, b); r = s` |

Two assignments to one name in a row count as one expression, unless somebody may see the name between them: a function inside
that closes over it, `locals()`, what handles an exception. What `act` and `norm` are is not known from the source: names
only say where to look, and the helper, which gets the very objects, decides at every call and otherwise does what was written.
Operands are evaluated in the order in which they were. The source is believed only if it compiles to the function's own code.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import re
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

KINDS = ("act_mul", "mul_act", "norm_act", "conv_norm", "conv_norm_act", "add_act", "iadd_act", "add_norm", "add_norm_sum")
"""What helpers are called in rewritten code, between `__forge_` and `__`."""

_ACTIVATION = re.compile(r"act|silu|swish|gelu|relu|sigmoid|tanh|non_?lin", re.IGNORECASE)
_NORM = re.compile(r"norm|^(ln|gn|bn)|_(ln|gn|bn)", re.IGNORECASE)
_CONV = re.compile(r"conv", re.IGNORECASE)
_HELD = "__forge_held__"
_SEES_LOCALS = frozenset(("locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"))
"""Called inside a function, these may see any name of its."""
_RAISES_ON = frozenset(("no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast", "record_function", "device"))
"""Contexts of torch's that end no exception."""


def helper_name(kind: str) -> str:
    return f"__forge_{kind}__"


def may_have_sites(names: set[str]) -> bool:
    """names: every global and attribute name in a function's code. Spares reading the source of most functions."""
    return any(_ACTIVATION.search(name) or _NORM.search(name) for name in names)


def rewritten(code: types.CodeType) -> tuple[types.CodeType, frozenset[str]] | None:
    """A function's code with its sites as calls of helpers, and the kinds of these; None where there are none.

    Also None where the source cannot be had or is not that of this very code.
    """
    own, new, kinds = _file(code.co_filename).get((code.co_qualname, code.co_firstlineno), (None, None, None))
    if own is None or new is None or not kinds or not _same_code(own, code) or new.co_freevars != code.co_freevars:
        return None
    return new, frozenset(kinds)


_Codes = dict[tuple[str, int], tuple[types.CodeType, types.CodeType, "set[str]"]]


@functools.lru_cache(maxsize=256)
def _file(filename: str) -> _Codes:
    """Every function of a source file that has sites, by qualified name and first line: its code, the rewritten code, kinds.

    The whole file is compiled, since what surrounds a function has a part in its code: classes, closures, imports.
    """
    linecache.checkcache(filename)
    try:
        tree = ast.parse("".join(linecache.getlines(filename)), filename)
        rewriter = _Rewriter()
        changed = rewriter.visit(copy.deepcopy(tree)) if tree.body else tree
        if not rewriter.sites:
            return {}
        own = _functions(compile(tree, filename, "exec", dont_inherit=True))
        new = _functions(compile(ast.fix_missing_locations(changed), filename, "exec", dont_inherit=True))
    except (SyntaxError, ValueError, RecursionError):  # no Python of this version: nothing in it can be rewritten
        return {}
    return {key: (own[key], new[key], kinds) for key, kinds in rewriter.sites.items() if key in own and key in new}


def _functions(code: types.CodeType) -> dict[tuple[str, int], types.CodeType]:
    found = {}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found[constant.co_qualname, constant.co_firstlineno] = constant
            found |= _functions(constant)
    return found


def _same_code(one: types.CodeType, other: types.CodeType) -> bool:
    """Whether two codes do the same: instructions, names and constants, those of functions inside them included."""
    return (one.co_code == other.co_code and one.co_names == other.co_names and one.co_varnames == other.co_varnames
            and one.co_freevars == other.co_freevars and one.co_cellvars == other.co_cellvars
            and len(one.co_consts) == len(other.co_consts) and all(map(_same_constant, one.co_consts, other.co_consts)))


def _same_constant(one: Any, other: Any) -> bool:
    if isinstance(one, types.CodeType):
        return isinstance(other, types.CodeType) and _same_code(one, other)
    return type(one) is type(other) and repr(one) == repr(other)


class _Rewriter(ast.NodeTransformer):
    """Replaces the sites of all functions of a file."""

    def __init__(self) -> None:
        self.sites: dict[tuple[str, int], set[str]] = {}
        """Kinds by the qualified name and the first line of the function, of those around it too."""
        self._scopes: list[str] = []
        self._functions: list[tuple[str, int]] = []
        self._seen: list[Callable[[str], bool]] = [_any_name]
        """Of each scope and each part of one: whether a name may be seen between two statements of it."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._scopes.append(node.name)
        with self._seeing(_any_name):
            self.generic_visit(node)
        self._scopes.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        self._functions.append((".".join([*self._scopes, node.name]), first))
        self._scopes += [node.name, "<locals>"]
        with self._seeing(_seen_names(node)):
            self.generic_visit(node)
        del self._scopes[-2:]
        self._functions.pop()
        return node

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Try(self, node: ast.Try) -> ast.AST:
        """What handles an exception sees how far the statements came."""
        node.body = self._handled(node.body, bool(node.handlers or node.finalbody))
        node.handlers = self._handled(node.handlers, bool(node.finalbody))
        node.orelse = self._handled(node.orelse, bool(node.finalbody))
        node.finalbody = self._handled(node.finalbody, False)
        return node

    visit_TryStar = visit_Try  # type: ignore[assignment]

    def visit_With(self, node: ast.With) -> ast.AST:
        """A context may end an exception, as a handler does."""
        node.items = [self.visit(item) for item in node.items]
        node.body = self._handled(node.body, not all(_raises_on(item.context_expr) for item in node.items))
        return node

    visit_AsyncWith = visit_With  # type: ignore[assignment]

    def _handled(self, nodes: list[Any], handled: bool) -> list[Any]:
        with self._seeing(_any_name if handled else self._seen[-1]):
            done = self._block(nodes) if nodes and isinstance(nodes[0], ast.stmt) else nodes
            return [self.visit(node) for node in done]

    @contextmanager
    def _seeing(self, seen: Callable[[str], bool]) -> Iterator[None]:
        self._seen.append(seen)
        yield
        self._seen.pop()

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, self._block(block))
        return super().generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        node = self.generic_visit(node)  # type: ignore[assignment]
        if isinstance(node.op, ast.Mult):
            if (call := _activation(node.left)) is not None:
                return self._helper("act_mul", node, call.func, call.args[0], node.right, *_extra(call))
            if (call := _activation(node.right)) is not None:
                return self._helper("mul_act", node, node.left, call.func, call.args[0], *_extra(call))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if (site := self._after_conv(node)) is not None:
            return site
        node = self.generic_visit(node)  # type: ignore[assignment]
        call = _activation(node)
        if call is not None and (inner := _norm(call.args[0])) is not None and not call.keywords:
            return self._helper("norm_act", node, call.func, inner.func, inner.args[0])
        if call is not None and isinstance(sum_ := call.args[0], ast.BinOp) and _is_sum(sum_) and not call.keywords:
            return self._helper("add_act", node, call.func, sum_.left, sum_.right)
        call = _norm(node)
        if call is not None and isinstance(sum_ := call.args[0], ast.BinOp) and isinstance(sum_.op, ast.Add):
            return self._helper("add_norm", node, call.func, sum_.left, sum_.right)
        return node

    def _after_conv(self, node: ast.Call) -> ast.Call | None:
        act = _activation(node)
        norm = _norm(act.args[0]) if act is not None and not act.keywords else _norm(node)
        conv = _conv(norm.args[0]) if norm is not None else None
        if norm is None or conv is None:
            return None
        rest = [norm.func, conv.func, self.visit(conv.args[0])]
        return self._helper("conv_norm_act", node, act.func, *rest) if norm is not node and act is not None else self._helper(
            "conv_norm", node, *rest)

    def _helper(self, kind: str, node: ast.AST, *arguments: ast.expr) -> ast.Call:
        for function in self._functions:
            self.sites.setdefault(function, set()).add(kind)
        name = ast.copy_location(ast.Name(helper_name(kind), ast.Load()), node)
        return ast.copy_location(ast.Call(name, list(arguments), []), node)

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Pairs of statements that belong together as one."""
        done: list[ast.stmt] = []
        at = 0
        while at < len(statements):
            here, after = statements[at], statements[at + 1] if at + 1 < len(statements) else None
            merged = self._merged(here, after) or self._sum_in_place(here, after)
            if merged is not None:
                statements = [*statements[:at], merged, *statements[at + 2:]]
                continue
            kept = self._sum_kept(statements, at)
            if kept is not None:
                done += kept[0]
                at += kept[1]
                continue
            done.append(here)
            at += 1
        return done

    def _sum_in_place(self, one: ast.stmt, other: ast.stmt | None) -> ast.stmt | None:
        """`s += b` and `s = act(s)` as one call, to which `s` goes as the object that it is."""
        if not (isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add) and isinstance(one.target, ast.Name)):
            return None
        name = one.target.id
        if self._seen[-1](name):
            return None
        call = _activation(other.value) if isinstance(other, ast.Assign) and _target(other) == name else None
        if call is None or call.keywords or not _is_name(call.args[0], name) or name in _names(call.func):
            return None
        other.value = self._helper("iadd_act", other, call.func, call.args[0], one.value)  # type: ignore[union-attr]
        return other

    def _sum_kept(self, statements: list[ast.stmt], at: int) -> tuple[list[ast.stmt], int] | None:
        """`s = a + b`, then `r = s` any number of times, then `y = norm(s)`: both results from one call."""
        total = _target(statements[at])
        if total is None or not (isinstance(value := statements[at].value, ast.BinOp) and isinstance(value.op, ast.Add)):  # type: ignore[attr-defined]
            return None
        end, assigned = at + 1, {total}
        while end < len(statements) and (name := _target(statements[end])) and _is_name(statements[end].value, total):  # type: ignore[attr-defined]
            assigned.add(name)
            end += 1
        result = _target(statements[end]) if end < len(statements) else None
        call = _norm(statements[end].value) if result is not None else None  # type: ignore[attr-defined]
        if call is None or not _is_name(call.args[0], total) or assigned & set(_names(call.func)) or any(map(self._seen[-1], assigned)):
            return None
        pair = ast.Tuple([ast.Name(total, ast.Store()), ast.Name(_HELD, ast.Store())], ast.Store())
        first = ast.Assign([pair], self._helper("add_norm_sum", value, call.func, self.visit(value.left), self.visit(value.right)))
        last = ast.Assign([ast.Name(result, ast.Store())], ast.Name(_HELD, ast.Load()))
        after = [last, ast.Delete([ast.Name(_HELD, ast.Del())])]  # what is held is freed when the model frees it
        made = [ast.copy_location(first, statements[at]), *statements[at + 1:end],
                *(ast.copy_location(statement, statements[end]) for statement in after)]
        return made, end + 1 - at

    def _merged(self, one: ast.stmt, other: ast.stmt | None) -> ast.stmt | None:
        name = _target(one)
        return None if name is None or other is None or _target(other) != name or self._seen[-1](name) else _merged(name, one, other)


def _any_name(_: str) -> bool:
    return True


def _seen_names(function: ast.AST) -> Callable[[str], bool]:
    """Of a function: whether other code may see a name of its between two statements, or it is not the function's own."""
    if _SEES_LOCALS & {item.attr if isinstance(item, ast.Attribute) else item.id for item in ast.walk(function)
                       if isinstance(item, (ast.Attribute, ast.Name))}:
        return _any_name
    names: set[str] = set()
    for item in ast.walk(function):
        if isinstance(item, (ast.Global, ast.Nonlocal)):
            names.update(item.names)
        elif item is not function and isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            names.update(_names(item))
        elif isinstance(item, ast.GeneratorExp):  # what it goes over is evaluated at once, all else later
            first = item.generators[0]
            names.update(used for later in (item.elt, *first.ifs, *item.generators[1:]) for used in _names(later))
    return names.__contains__


def _raises_on(context: ast.expr) -> bool:
    """Whether a context is one of torch's that leave an exception alone, by its name."""
    function = context.func if isinstance(context, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    return name in _RAISES_ON


def _merged(name: str, one: ast.stmt, other: ast.stmt) -> ast.stmt | None:
    """`t = E` and `t = F(t)` as `t = F(E)`, where that is a site; None elsewhere. name: `t`."""
    inner, outer = one.value, other.value  # type: ignore[attr-defined]
    if sum(used == name for used in _names(outer)) != 1:
        return None
    if (call := _activation(outer)) is not None and _is_name(call.args[0], name) and (_norm(inner) is not None or _is_sum(inner)):
        call.args[0] = inner
    elif (call := _norm(outer)) is not None and _is_name(call.args[0], name) and (_is_sum(inner) or _conv(inner) is not None):
        call.args[0] = inner
    elif isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Mult) and _activation(inner) is not None:
        if _is_name(outer.left, name):
            outer.left = inner
        elif _is_name(outer.right, name):
            outer.right = inner
        else:
            return None
    else:
        return None
    return other


def _is_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def _target(statement: ast.stmt | None) -> str | None:
    """The one name that a plain assignment binds."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    return None


def _names(node: ast.AST) -> Iterator[str]:
    return (item.id for item in ast.walk(node) if isinstance(item, ast.Name))


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _called(node: ast.AST, pattern: re.Pattern[str]) -> ast.Call | None:
    """A call `a.b.NAME(x)` of one argument by a name like the pattern."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or isinstance(node.args[0], ast.Starred):
        return None
    function: ast.expr = node.func
    name = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    while isinstance(function, ast.Attribute):
        function = function.value
    return node if isinstance(function, ast.Name) and pattern.search(name) else None


def _activation(node: ast.AST) -> ast.Call | None:
    """The call of an activation; `approximate="tanh"` is the one keyword taken."""
    call = _called(node, _ACTIVATION)
    plain = call is not None and all(word.arg == "approximate" and isinstance(word.value, ast.Constant) for word in call.keywords)
    return call if plain else None


def _extra(call: ast.Call) -> list[ast.expr]:
    return [word.value for word in call.keywords]


def _norm(node: ast.AST) -> ast.Call | None:
    return _plain(_called(node, _NORM))


def _conv(node: ast.AST) -> ast.Call | None:
    return _plain(_called(node, _CONV))


def _plain(call: ast.Call | None) -> ast.Call | None:
    return call if call is not None and not call.keywords else None
