"""What a PTX text says of itself without running it: its kernels, static shared memory, written globals, calls out, and identity."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

_COMMENT = re.compile(r'("[^"\n]*")|//[^\n]*|/\*.*?\*/', re.S)
"""Comments, and strings, in which `/*` begins none."""
_STRING = re.compile(r'"[^"\n]*"')
_DEBUG_SECTION = re.compile(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}\s*$", re.M | re.S)
_LINE_TABLE = re.compile(
    r"^\s*\.(?:loc\s+\d+\s+\d+\s+\d+(?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?)?(?:\s*,\s*inlined_at\s+\d+\s+\d+\s+\d+)?"
    r"|file\s+\d+\s+\"[^\"\n]*\"(?:\s*,\s*\d+)*)", re.M)
"""Neither directive ends with a semicolon: what follows it on its line is code."""
_INTERNAL = re.compile(r"(\d+)(_INTERNAL_|_GLOBAL__N__)[0-9a-f]{8}_")
_MARKED = re.compile(r"[\w$]*\d(?:_INTERNAL_|_GLOBAL__N__)[\w$]*")
_ENTRY = re.compile(r"\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")
_VARIABLE = re.compile(
    r"\.(global|const)\s+((?:\.attribute\([^)]*\)\s*)?)(?:\.align\s+\d+\s*)?(?:\.v[24]\s+)?\.[a-z]\w*\s+([\w$]+)\s*((?:\[\d*\])*)\s*(=[^;]*)?;")
_DIRECTIVE = re.compile(r"(?<![\w.:])(?<!\.ptr )\.(?:global|const)\b[^;]*")
_SHARED = re.compile(r"\.shared\s+(?:\.align\s+(\d+)\s*)?\.[a-z](\d+)\s+([\w$]+)\s*(?:\[(\d+)\])?\s*;")
_STATEMENT = re.compile(r"(?:[{}\s]|[\w$]+:\s)*(?:@!?%?[\w$]+\s+)?([a-z][\w.:]*)\s*(.*)", re.S)
_NAME = re.compile(r"%?[A-Za-z_$][\w$]*")
_NO_RESULT = {"setp", "call", "bra", "brx", "ret", "bar", "barrier", "membar", "fence", "exit", "trap"}
_WRITERS = {"st", "red", "atom", "cp", "multimem", "tensormap", "sust", "sured", "discard"}


def canonical_ptx(text: str) -> str:
    """The code alone: comments, `.file`, `.loc`, debug sections, blank lines and file-derived names of internal symbols left out."""
    text = _DEBUG_SECTION.sub("", text)
    text = _COMMENT.sub(lambda match: match[1] or "", text)
    text = _LINE_TABLE.sub("", text)
    text = without_file_names(text)
    return "\n".join(line for line in (" ".join(raw.split()) for raw in text.splitlines()) if line)


def without_file_names(name: str) -> str:
    """A text without the parts of its symbols that the compiler derives from the file (anonymous namespaces)."""
    return _MARKED.sub(lambda match: _without_file_name(match[0]), name)


def _without_file_name(symbol: str) -> str:
    """A length, then that many characters with the file's name in them; never past the end of the symbol itself."""
    parts, at = [], 0
    while match := _INTERNAL.search(symbol, at):
        begin = match.start(2)
        lengths = (int(match[1][first:]) for first in range(len(match[1])))  # `__446_GLOBAL`: namespace `__4`, then 46 characters
        length = next((item for item in lengths if item >= len(match[2]) + 9 and begin + item <= len(symbol)), None)
        if length is None:
            parts.append(symbol[at:match.end()])
            at = match.end()
        else:
            parts += [symbol[at:match.start()], match[2]]
            at = begin + length
    return "".join(parts) + symbol[at:]


def ptx_key(text: str) -> str:
    """SHA-256 (hex) of `canonical_ptx`: equal for equal code built from files of different names and comments."""
    return hashlib.sha256(canonical_ptx(text).encode()).hexdigest()


def bodies(canonical: str) -> Iterator[tuple[str, str, str]]:
    """(`entry` or `func`, name, body) of every function that has a body."""
    at = 0
    while match := _ENTRY.search(canonical, at):
        at = match.end()
        opening = re.compile(r"[;{]").search(canonical, _after_parameters(canonical, at))
        if opening is None:
            return
        at = opening.end()
        if opening[0] == ";":
            continue                                        # a declaration
        depth = 1
        while depth:
            brace = canonical.find("}", at), canonical.find("{", at)
            closes = brace[1] < 0 or brace[0] < brace[1]
            at = (brace[0] if closes else brace[1]) + 1
            if at == 0:
                return                                      # unbalanced: not PTX of a compiler
            depth += -1 if closes else 1
        yield match[1], match[2], canonical[opening.end():at - 1]


def kernels(canonical: str) -> dict[str, int]:
    """Static shared memory in bytes by kernel name (its own variables and module-level ones it names)."""
    found = list(bodies(canonical))
    outside = canonical
    for _, _, body in found:
        outside = outside.replace(body, "")
    shared = {}
    for kind, name, body in found:
        if kind == "entry":
            own = _shared_bytes(body, lambda _: True)
            used = set(_NAME.findall(body))
            shared[name] = own + _shared_bytes(outside, used.__contains__)
    return shared


def external_calls(canonical: str) -> list[str]:
    """Functions that are declared and not defined here: `vprintf`, `malloc`, `cudaLaunchDevice...`."""
    return re.findall(r"\.extern\s+\.func\s+(?:\([^)]*\)\s*)?([\w$]+)", canonical)


def written_globals(canonical: str) -> list[tuple[str, str]]:
    """Module variables that code may write: (name, why), in the order found.

    A variable counts as written when an address made from it reaches the address of a store, atomic or copy, is itself stored
    or passed on where this analysis stops following it, or when it is `__managed__`. Names that are only read (tables) are fine.
    Registers are followed without regard to control flow; predicates are not followed (an address cannot pass through one).
    """
    variables = {m[3]: m for m in _VARIABLE.finditer(canonical)}
    written = {name: "it is __managed__" for name, m in variables.items() if "managed" in m[2]}
    read = {m.start() for m in variables.values()}
    for match in _DIRECTIVE.finditer(canonical):
        if match.start() not in read:
            written[match[0][:60]] = "its declaration cannot be read"
    for match in variables.values():
        for name in _NAME.findall(_STRING.sub("", match[5] or "")):
            if name in variables:
                written.setdefault(name, "its address is kept in another variable")
    functions = list(bodies(canonical))
    entries = {name for kind, name, _ in functions if kind == "entry"}
    passed: set[str] = set()                                # variables whose address goes through call parameters
    while True:                                             # until no further variable goes through a call
        before = len(passed)
        for _, _, body in functions:
            _follow(body, variables, entries, passed, written)
        if len(passed) == before:
            order = {name: place for place, name in enumerate(variables)}
            return sorted(written.items(), key=lambda item: order.get(item[0], len(order)))


def _follow(body: str, variables: dict, entries: set[str], passed: set[str], written: dict[str, str]) -> None:
    """One function: registers to the variables their value may come from, to a fixed point, then every write."""
    statements = [split for split in map(_split, body.split(";")) if split]
    source: dict[str, set[str]] = {}

    def origins(text: str) -> set[str]:
        found: set[str] = set()
        for name in _NAME.findall(text):
            found |= source.get(name, set())
            if name in variables:
                found.add(name)
        return found

    changed = True
    while changed:
        changed = False
        for root, opcode, operands in statements:
            if root == "call" or root == "st" and ".param" in opcode:
                passed |= origins(" ".join(operands if root == "call" else operands[1:]))
            made = _made(root, opcode, operands, origins, entries, passed)
            for register in _NAME.findall(operands[0]) if made else ():
                known = source.setdefault(register, set())
                if not made <= known:
                    known |= made
                    changed = True
    for root, opcode, operands in statements:
        if root not in _WRITERS or ".param" in opcode:
            continue
        target = next((i for i, operand in enumerate(operands) if operand.startswith("[")), 0)
        for name in origins(operands[target]):
            written.setdefault(name, f"`{opcode}` writes it")
        for operand in operands[target + 1:]:
            if not operand.startswith("["):
                for name in origins(operand):
                    written.setdefault(name, "its address is stored")


def _made(root: str, opcode: str, operands: list[str], origins, entries: set[str], passed: set[str]) -> set[str]:
    """Variables whose address may be in what the instruction puts into its first operand."""
    if root in _WRITERS or root in _NO_RESULT:
        return set()                                        # an atomic returns content, not an address
    if root in ("ld", "ldu"):
        outer = ".param" in opcode and not _is_kernel_parameter(operands[1], entries)
        return set(passed) if outer else set()
    return origins(" ".join(operands[1:]))


def _split(statement: str) -> tuple[str, str, list[str]] | None:
    """(`st`, `st.global.f32`, [`[%rd1]`, `%f1`]) of a statement; None for directives and what has no operands."""
    match = _STATEMENT.match(statement)
    if match is None:
        return None
    operands = [part.strip() for part in re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^,\[{(])+", match[2]) if part.strip()]
    return (match[1].split(".")[0], match[1], operands) if operands else None


def _is_kernel_parameter(operand: str, entries: set[str]) -> bool:
    name = operand.strip("[] ").split("+")[0]
    return any(name.startswith(f"{entry}_param_") for entry in entries)


def _shared_bytes(text: str, wanted) -> int:
    total = 0
    for match in _SHARED.finditer(text):
        if wanted(match[3]):
            alignment, width = int(match[1] or 1), int(match[2]) // 8
            total = -(-total // alignment) * alignment + width * int(match[4] or 1)
    return total


def _after_parameters(text: str, at: int) -> int:
    """Past the parenthesized parameter list that follows a function's name, if there is one."""
    match = re.compile(r"\s*\(").match(text, at)
    return text.index(")", match.end()) + 1 if match else at
