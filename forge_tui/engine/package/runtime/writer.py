"""Python functions written at run time: lines, and the objects they name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

CANNOT = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What looking at an argument may raise that is no plain tensor, or no module as it was."""


class Writer:
    """Lines of a function, and the objects they name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.space: dict[str, Any] = {"CANNOT": CANNOT}
        self._count = 0

    def name(self, value: Any) -> str:
        """A name for an object; numbers and text that read back as themselves are written out."""
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        return self.named("k", value)

    def named(self, stem: str, value: Any) -> str:
        name = f"{stem}{len(self.space)}"
        self.space[name] = value
        return name

    def fresh(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def say(self, *lines: str) -> None:
        self.lines += lines

    def function(self, name: str, parameters: str, body: Sequence[str]) -> Callable[..., Any]:
        """Compiled. The namespace has no `__name__`: see `weave.Weaver._space`."""
        source = "\n".join([f"def {name}({parameters}):", *("    " + line for line in body)])
        exec(compile(source, f"<forge {name}>", "exec"), self.space)  # noqa: S102 - our own text, of names and numbers alone
        return self.space[name]
