"""Heads of C++ statements as token lists: attributes left out, parameter lists found, variables told from functions."""

from __future__ import annotations

from collections.abc import Iterator

from forge_tui.engine.kernelfile.tokens import Token

_ATTRIBUTES = {"__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__block_size__", "__align__", "alignas",
               "__attribute__", "__declspec", "decltype", "noexcept", "asm", "__asm__"}
"""Names whose parentheses belong to them and begin no parameter list."""


def bare(head: list[Token]) -> list[Token]:
    """A statement without attributes and without its `template <...>`."""
    out: list[Token] = []
    index = 0
    while index < len(head):
        token = head[index]
        following = head[index + 1].text if index + 1 < len(head) else ""
        if token.text == "[" and following == "[":
            index = after(head, index)
        elif token.kind == "name" and token.text in _ATTRIBUTES - {"asm", "__asm__"} and following == "(":
            index = after(head, index + 1)
        elif token.text == "template" and following == "<":
            index = after_angles(head, index + 1)
        elif token.text in ("__extension__", "inline", "__inline__", "__forceinline__", "__noinline__", "constinit"):
            index += 1
        else:
            out.append(token)
            index += 1
    return out


def after(tokens: list[Token], index: int) -> int:
    """Past the group that opens at `index`."""
    depth = 0
    while index < len(tokens):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(tokens[index].text, 0)
        index += 1
        if depth == 0:
            break
    return index


def after_angles(tokens: list[Token], index: int) -> int:
    depth = 0
    while index < len(tokens):
        if tokens[index].text in ("(", "["):
            index = after(tokens, index)
            continue
        depth += {"<": 1, ">": -1}.get(tokens[index].text, 0)
        index += 1
        if depth == 0:
            break
    return index


def group(tokens: list[Token], at: int) -> Iterator[Token]:
    """The tokens inside the parentheses that open at `at`."""
    end = after(tokens, at)
    yield from tokens[at + 1:end - 1]


def last_group(core: list[Token]) -> int | None:
    """Where the last parentheses of a kernel's head open: its parameters, whatever macros with arguments come before."""
    last = None
    index = 0
    while index < len(core):
        if core[index].text == "(":
            last = index
        index = after(core, index) if core[index].text in ("(", "[") else index + 1
    return last


def parameters_at(core: list[Token]) -> int | None:
    """Where a parameter list opens: the first parenthesis after a name, before any initializer."""
    index = 0
    named = False
    while index < len(core):
        token = core[index]
        if token.text == "operator":
            return next((i for i in range(index + 2, len(core)) if core[i].text == "("), None)
        if token.text in ("=", "{}") and token.kind == "punct":
            return None
        if token.text == "(":
            return index if named and core[index - 1].text not in _ATTRIBUTES else None
        if token.text == "[":
            return None
        if token.text == "<" and index and core[index - 1].kind == "name":
            index = after_angles(core, index)              # `named` stays: f<float>(
            continue
        named = token.kind == "name"
        index += 1
    return None


def is_function(core: list[Token]) -> bool:
    """A function's head rather than a variable with an initializer in parentheses."""
    at = parameters_at(core)
    if at is None:
        return False
    inside = list(group(core, at))
    if inside and (inside[0].kind in ("number", "string", "char") or inside[0].text in ("-", "+", "*", "&", "{}", "true", "false")):
        return False
    return at >= 1


def is_constant(core: list[Token]) -> bool:
    """Whether a declaration can never be written: shared memory (gone after the block), constexpr, or const throughout."""
    specifiers = {token.text for token in core[:_initializer(core)]}
    if specifiers & {"__shared__", "constexpr"}:
        return True
    if specifiers & {"__managed__", "thread_local"}:
        return False
    const, needed, index = False, True, 0
    while index < len(core):
        text = core[index].text
        if text in ("=", "[", "{}", "("):
            break
        if text == "<" and index and core[index - 1].kind == "name":
            index = after_angles(core, index)
            continue
        if text == "const":
            const, needed = True, False
        elif text == "*":
            needed = True                                   # a pointer: const must come again, after the star
        index += 1
    later_pointers = any(core[i].text == "," and core[i + 1].text == "*" and core[i + 2].text != "const"
                         for i in range(index, len(core) - 2))
    return const and not needed and not later_pointers


def _initializer(core: list[Token]) -> int:
    """Where a declaration's initializer, bounds or parameters begin."""
    return next((index for index, token in enumerate(core) if token.kind == "punct" and token.text in ("=", "[", "(", "{}")), len(core))


def declared_name(core: list[Token]) -> Token:
    """The declared name: the last one before an initializer, bounds or the end."""
    name = core[0]
    index = 0
    while index < len(core):
        if core[index].text == "(" and index + 2 < len(core) and core[index + 1].text in ("*", "&"):
            return core[index + 2]                          # a pointer to a function or array: `(*hook)(int)`
        if core[index].text in ("=", "[", "(", "{}", ",") and name is not core[0]:
            break
        if core[index].text == "<" and index and core[index - 1].kind == "name":
            index = after_angles(core, index)
            continue
        if core[index].kind == "name":
            name = core[index]
        index += 1
    return name
