"""The user's own Python code while it runs: whatever it does, Forge goes on or says what happened, with the user's line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from forge_tui.engine.sources.failures import failure
from forge_tui.errors import ForgeError, Interrupted


class _ProcessExit(BaseException):
    """`os._exit` was called: it would end this process without a word, as if the work were done."""


@contextmanager
def user_code(what: str, *, cure: str, own: Path | None = None) -> Iterator[None]:
    """Around every entry into code that is the user's: import, constructor, inputs, forward.

    Anything raised becomes a ProjectError that begins with `what`: exceptions outside `Exception`, `sys.exit` and
    `os._exit` too, so that no exit code of the user's is taken for one of ours. A signal that came meanwhile ends the
    command even where the user's code swallowed it. sys.stdout, sys.stderr, lost folders of sys.path and the recursion limit are put back.
    own: the user's file, whose lines the message shows.
    """
    streams, path, limit, leave = (sys.stdout, sys.stderr), list(sys.path), sys.getrecursionlimit(), os._exit
    process = os.getpid()

    def leave_here(status: int) -> NoReturn:
        if os.getpid() != process:  # a child of multiprocessing or fork ends itself so
            leave(status)
        raise _ProcessExit(f"os._exit({status}) was called")

    os._exit = leave_here  # type: ignore[assignment]
    try:
        yield
    except ForgeError:
        raise
    except BaseException as error:  # the user's code may raise anything, BaseException and KeyboardInterrupt included
        _end_if_stopped(error)
        raise failure(what, error, own=own, cure=cure) from error
    finally:
        os._exit = leave
        sys.stdout, sys.stderr = streams
        sys.path += [folder for folder in path if folder not in sys.path]
        sys.setrecursionlimit(limit)
    _end_if_stopped(None)


def _end_if_stopped(error: BaseException | None) -> None:
    if isinstance(error, Interrupted):
        raise error
    if Interrupted.received is not None:
        raise Interrupted(Interrupted.received) from error
