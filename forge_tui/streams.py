"""What every command shares: a project opened, data printed to stdout, progress and hints to stderr."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from forge_tui.errors import MissingEnvironment, ProjectError

if TYPE_CHECKING:
    from forge_tui.engine.cards import OperatorFile
    from forge_tui.store.paths import ProjectPaths
    from forge_tui.store.project import ProjectConfig

_data: TextIO | None = None
"""What stdout was, while a user's model runs in this process; None: sys.stdout itself."""


@contextmanager
def model_apart() -> Iterator[None]:
    """Keeps stdout for data: what the user's model prints there, from Python or C, goes to stderr; also at exit.

    A crash in native code, which ends the process, leaves the model's Python lines on stderr.
    """
    global _data
    stdout = sys.stdout
    if stdout is sys.__stdout__ and stdout is not None:
        stdout.flush()
        _data = os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors)
        with suppress(OSError):  # stderr is closed: then there is nowhere to send it
            os.dup2(2, 1)
        with suppress(OSError, ValueError):  # likewise
            faulthandler.enable(all_threads=False)
    else:  # a caller inside this process reads sys.stdout
        _data, sys.stdout = stdout, sys.stderr
    try:
        yield
    finally:
        if sys.stdout is not stdout and _data is stdout:
            sys.stdout, _data = stdout, None


def print_text(text: str) -> None:
    """Data. A reader that has gone (`| head`) does not end the command."""
    stream = _data or sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError as error:
        with suppress(OSError):  # what is still buffered would be a traceback at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise MissingEnvironment(f"cannot write the result: {(error.strerror or str(error)).lower()}", where="standard output",
                                 cure="send it somewhere with room; the project itself is saved") from error


def print_json(value: object) -> None:
    import msgspec

    print_text(msgspec.json.encode(value).decode())


def tell(text: str) -> None:
    """Progress and hints. A terminal that is gone does not end the work."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def columns(elsewhere: int = 100) -> int:
    """Of the terminal that stdout is; `elsewhere` for a file or a pipe."""
    stream = _data or sys.stdout
    if stream is None or not stream.isatty():
        return elsewhere
    try:
        return os.get_terminal_size(stream.fileno()).columns or 100
    except OSError:  # a terminal that does not tell
        return 100


def coloured() -> bool:
    """Whether whoever reads stdout wants colour."""
    stream = _data or sys.stdout
    return stream is not None and stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def relative(path: Path) -> str:
    """As a person would type it from here."""
    try:
        return str(path.relative_to(Path.cwd())) or "."
    except (ValueError, OSError):  # elsewhere, or the folder that this process stands in is gone
        return str(path)


def open_project(folder: str) -> ProjectPaths:
    """The folder of a project that loads. Raises ProjectError."""
    from forge_tui.store.paths import ProjectPaths

    paths = ProjectPaths(folder)
    config_of(paths)
    return paths


def config_of(paths: ProjectPaths) -> ProjectConfig:
    from forge_tui.store.project import load_project

    return load_project(paths.root)


def cards_of(paths: ProjectPaths) -> OperatorFile:
    from forge_tui.engine.cards import load_operators

    cards = load_operators(paths)
    if cards is None:
        raise ProjectError("nothing was captured yet", where=str(paths.root),
                           cure=f"forge-tui capture {relative(paths.root)}")
    return cards
