"""Refusals on the device code: what a candidate must not contain, each with its line and its cure, before anything is built."""

from __future__ import annotations

import re
from typing import NamedTuple

from forge_tui.engine.kernelfile.declarations import Kernel, read_declarations
from forge_tui.engine.kernelfile.tokens import Directive, LexicalError, Token, Tokens, tokenize
from forge_tui.errors import KernelFileError

MAX_CHARACTERS = 256 * 1024
"""Of a whole kernel file: seventeen times the longest so far."""

STANDARD_HEADERS = frozenset((
    "algorithm array assert.h cassert cfloat climits cmath cstddef cstdint cstdlib cstring float.h limits limits.h math.h "
    "stddef.h stdint.h stdlib.h string.h type_traits utility").split())
"""C and C++ headers that NVRTC lacks and Forge brings."""

TOOLKIT_HEADERS = re.compile(
    r"(?:cuda|cuda_\w+|mma|sm_\w+|math_constants|math_functions|vector_types|vector_functions|device_launch_parameters"
    r"|device_types|device_functions|device_atomic_functions|driver_types|builtin_types|host_defines|common_functions"
    r"|cooperative_groups|curand\w*|library_types|texture_types|surface_types|channel_descriptor)\.(?:h|hpp)"
    r"|cooperative_groups/[\w/]+\.h|crt/\w+\.(?:h|hpp)|(?:cuda|nv)/[\w/.]+|(?:cub|thrust)/[\w/]+\.(?:cuh|h)")
"""Headers of the CUDA toolkit, CCCL included."""

_DIRECTIVES = {"define", "undef", "include", "if", "ifdef", "ifndef", "elif", "elifdef", "elifndef", "else", "endif",
               "pragma", "error", "warning", ""}
_KNOWN_PRAGMAS = {"unroll", "nounroll", "once", "nv_diag_suppress", "nv_diag_default", "nv_diagnostic", "nv_diag_warning",
                  "nv_diag_error", "nv_abi", "diag_suppress", "diag_default", "GCC", "clang", "push_macro", "pop_macro"}

_NO_LAUNCH = "launches belong in the plan: one [[launch]] each, in order"
_NO_MEMORY = "a kernel never allocates: declare a [[workspace]] and pass it as an argument"
_FORBIDDEN_NAMES: dict[str, tuple[str, str]] = {
    "__managed__": ("managed memory outlives the launch", "declare a [[workspace]] instead"),
    "__has_include": ("it looks at the machine's files", "include the header"),
    "__has_include_next": ("it looks at the machine's files", "include the header"),
    "__has_embed": ("it looks at the machine's files", "remove it"),
    "__DATE__": ("it makes every build a different image", "remove it"),
    "__TIME__": ("it makes every build a different image", "remove it"),
    "__TIMESTAMP__": ("it makes every build a different image", "remove it"),
    "thread_local": ("device code has no thread-local storage", "use a local variable"),
    "malloc": ("it allocates", _NO_MEMORY), "calloc": ("it allocates", _NO_MEMORY), "realloc": ("it allocates", _NO_MEMORY),
    "new": ("it allocates", _NO_MEMORY),
}
_FORBIDDEN_PATTERNS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"cuda(?:Launch|Graph|GetParameterBuffer|LaunchDevice|CDP)\w*|cuLaunch\w+|cuGraph\w+|__cudaCDP\w*"),
     "it launches work", _NO_LAUNCH),
    (re.compile(r"cuda(?:Malloc|Free|Mem|Host)\w*|cuMem\w+"), "it manages memory", _NO_MEMORY),
    (re.compile(r"cuda(?:Stream|Event|Device|Func|Occupancy|Module|Library|Kernel|Ipc|Set|Get)\w*|cu(?:Stream|Event|Ctx|Module)\w+"),
     "it is host or device runtime", "use [[launch]] in the plan; inside a kernel use __syncthreads() and the device facts"),
)
_KEYWORDS = frozenset((
    "alignas alignof asm auto bool break case catch char class const constexpr const_cast continue decltype default delete do "
    "double dynamic_cast else enum explicit extern false float for friend goto if inline int long mutable namespace new "
    "noexcept nullptr operator private protected public register reinterpret_cast return short signed sizeof static "
    "static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename union unsigned "
    "using virtual void volatile while and or not xor __global__ __device__ __host__ __shared__ __constant__ __managed__ "
    "__forceinline__ __restrict__ __launch_bounds__ __grid_constant__ __cluster_dims__ __noinline__ defined").split())
_ASM_DIRECTIVE = re.compile(
    r"(?:^|[;{}\s])\.(global|const|extern|visible|weak|common|func|entry|alias|version|target|address_size|section|file)\b")


_PTX_COMMENT = re.compile(r"/\*(?:[^*]|\*(?!/))*(?:\*/|\Z)|//[^\n]*")


class Source(NamedTuple):
    """A file whose code was found free of everything forbidden."""

    plan: str
    """TOML: the text between `/*forge` and `*/`."""
    plan_line: int
    """Line of the file on which `plan` begins."""
    kernels: dict[str, list[Kernel]]
    """`__global__` functions by name; several where conditionals choose."""
    warnings: tuple[str, ...]


def is_macro_name(name: str) -> bool:
    """Whether a name may be defined on the compiler's command line: an identifier, not a keyword, not reserved."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None and name not in _KEYWORDS and not name.startswith("__")


def inspect(text: str, filename: str) -> Source:
    """Read a kernel file's text. Raises KernelFileError with file, line and cure."""
    if len(text) > MAX_CHARACTERS:
        raise KernelFileError(f"the file has {len(text)} characters, more than {MAX_CHARACTERS}", where=f"{filename}:1",
                              cure="keep one kernel and its helpers in a file")
    try:
        tokens = tokenize(text)
    except LexicalError as error:
        raise KernelFileError(error.message, where=f"{filename}:{error.line}", cure=error.cure) from None
    plan, plan_line = _plan(text, tokens, filename)
    checker = _Checker(tokens, filename)
    checker.run()
    return Source(plan, plan_line, checker.kernels, tuple(checker.warnings))


def _plan(text: str, tokens: Tokens, filename: str) -> tuple[str, int]:
    cure = "begin the file with /*forge, a plan in TOML, and */"
    if tokens.comment is None:
        raise KernelFileError("the file has no launch plan", where=f"{filename}:1", cure=cure)
    start, end = tokens.comment
    body = text[start + 2:end]
    if re.match(r"forge\s", body) is None or text[:start].strip():
        line = text.count("\n", 0, start) + 1
        raise KernelFileError("the first comment is not a launch plan", where=f"{filename}:{line}", cure=cure)
    plan_at = start + 2 + len("forge")
    return text[plan_at:end], text.count("\n", 0, plan_at) + 1


class _Checker:
    """One pass over the tokens of a file."""

    def __init__(self, tokens: Tokens, filename: str) -> None:
        self.items = tokens.items
        self.filename = filename
        self.warnings: list[str] = []
        self.kernels: dict[str, list[Kernel]] = {}

    def refuse(self, line: int, message: str, cure: str) -> KernelFileError:
        return KernelFileError(message, where=f"{self.filename}:{line}", cure=cure)

    def run(self) -> None:
        flat: list[Token] = []
        for item in self.items:
            if isinstance(item, Directive):
                self.directive(item)
                flat.extend(item.tokens)
            else:
                flat.append(item)
        for index, token in enumerate(flat):
            self.token(token, flat[index - 1].text if index else "")
        self.declarations()
        self.assembly(flat)

    def token(self, token: Token, before: str) -> None:
        if token.kind == "punct" and token.text == "<<<":
            raise self.refuse(token.line, "<<< launches a kernel from the code", _NO_LAUNCH)
        if token.kind != "name":
            return
        if token.text in _FORBIDDEN_NAMES and not (token.text == "new" and before == "operator"):
            why, cure = _FORBIDDEN_NAMES[token.text]
            raise self.refuse(token.line, f"`{token.text}` is not allowed: {why}", cure)
        for pattern, why, cure in _FORBIDDEN_PATTERNS:
            if pattern.fullmatch(token.text):
                raise self.refuse(token.line, f"`{token.text}` is not allowed: {why}", cure)

    def directive(self, directive: Directive) -> None:
        name = directive.name
        if name == "include":
            self.include(directive)
        elif name == "line" or name.isdigit():
            raise self.refuse(directive.line, "#line is not allowed: lines in messages must be lines of this file", "remove it")
        elif name not in _DIRECTIVES:
            raise self.refuse(directive.line, f"#{name} is not allowed", "use #include, #define, #if and #pragma only")
        elif name in ("define", "undef"):
            target = directive.tokens[0].text if directive.tokens else ""
            if target in _KEYWORDS:
                raise self.refuse(directive.line, f"#{name} of the keyword `{target}` changes what the code says",
                                  "choose another macro name")
        elif name == "pragma":
            word = directive.tokens[0].text if directive.tokens else ""
            if word not in _KNOWN_PRAGMAS:
                self.warnings.append(f"{self.filename}:{directive.line}: #pragma {word} is not known here")

    def include(self, directive: Directive) -> None:
        if directive.header is None or directive.tokens:
            raise self.refuse(directive.line, "#include with a macro cannot be checked", "write the header's name")
        name = directive.header[1:-1]
        if name == "forge.cuh" or name in STANDARD_HEADERS:
            return
        if ".." in name or not TOOLKIT_HEADERS.fullmatch(name):
            raise self.refuse(
                directive.line, f"#include {directive.header} is not a header of the CUDA toolkit or of Forge",
                "include toolkit headers such as <cuda_bf16.h> or <cooperative_groups.h>, or \"forge.cuh\"; "
                "put helpers into this file")

    def assembly(self, flat: list[Token]) -> None:
        """PTX in strings must not declare anything that lives outside its kernel. Neighbouring strings are one."""
        if not any(token.text in ("asm", "__asm__", "__asm") for token in flat):
            return
        index = 0
        while index < len(flat):
            if flat[index].kind != "string":
                index += 1
                continue
            line, parts = flat[index].line, []
            while index < len(flat) and flat[index].kind == "string":
                parts.append(_string_value(flat[index].text))
                index += 1
            if (match := _ASM_DIRECTIVE.search(_PTX_COMMENT.sub(" ", "".join(parts)))) is not None:
                raise self.refuse(line, f"inline PTX declares .{match[1]}: nothing may live outside the kernel",
                                  "use registers (.reg) in inline PTX, and a [[workspace]] for memory")

    def declarations(self) -> None:
        found = read_declarations(self.items)
        if found.problem is not None:
            raise self.refuse(*found.problem)
        if found.file_asm:
            raise self.refuse(found.file_asm[0], "asm outside a function is not allowed", "move it into a kernel")
        for variable in found.writable:
            where = {"namespace": "outlives the launch", "class": "is static, it outlives the launch",
                     "function": "is not local, it outlives the launch"}[variable.place]
            raise self.refuse(variable.line, f"the variable `{variable.name}` can be written and {where}",
                              "make it const or constexpr, __shared__ inside a function, or a [[workspace]] of the plan")
        for kernel in found.kernels:
            self.kernels.setdefault(kernel.name, []).append(kernel)


_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]+|[0-7]{1,3}|u[0-9A-Fa-f]{4}|.)", re.S)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def _string_value(text: str) -> str:
    """What a string literal stands for, near enough to see a directive in it."""
    body = text[text.index('"') + 1:]
    body = body[:-1] if body.endswith('"') else body
    if text[:text.index('"')].endswith("R"):
        return body

    def plain(match: re.Match[str]) -> str:
        escape = match[1]
        if escape[0] in "xu":
            return chr(min(int(escape[1:] or "0", 16), 0x10FFFF)) if len(escape) < 10 and len(escape) > 1 else " "
        return chr(int(escape, 8)) if escape[0].isdigit() and escape[0] in "01234567" else _SIMPLE.get(escape, escape)

    return _ESCAPE.sub(plain, body)
