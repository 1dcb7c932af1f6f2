"""Every error a user can meet: what was wrong, where, the cure, and the exit code of the command-line contract."""

from __future__ import annotations

from typing import ClassVar


class ForgeError(Exception):
    """An error with a cure. `cli.main` prints it (never a traceback) and exits with `exit_code`.

    message: what is wrong, naming the thing. where: file, `file:line`, option or operator. cure: what to do next.
    """

    exit_code = 70

    def __init__(self, message: str, *, where: str | None = None, cure: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.cure = cure

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  fix: {self.cure}" if self.cure else text


class ProjectError(ForgeError):
    """Wrong usage, or something the user wrote (project, model, inputs, kernel file) cannot be used."""

    exit_code = 2


class KernelFileError(ProjectError):
    """A kernel file that is refused before anything runs. `where` is `FILE:LINE`."""


class MissingEnvironment(ForgeError):
    """The machine lacks something: a device, a compiler, a writable folder, disk space."""

    exit_code = 3


class ProviderError(ForgeError):
    """A language-model provider failed after its retries."""

    exit_code = 4


class ProjectLocked(ForgeError):
    """Another run holds the project."""

    exit_code = 6


class Interrupted(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP, raised wherever the code is, so that one clean-up serves all three. Exit code 128 + signal."""

    received: ClassVar[int | None] = None
    """The signal that this process got. The exception itself may be lost: a library's import hook, destructor or C code may
    drop it or turn it into another error."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal
