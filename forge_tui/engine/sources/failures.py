"""What went wrong inside the user's own code, in their own lines: never a traceback, always the place."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path

from forge_tui.errors import Interrupted, ProjectError

MOST_CHARACTERS = 1000
"""Of an exception's message that are shown."""
SHOWN_FRAMES = 4
"""Innermost lines of the user's code that a message shows."""


def failure(what: str, error: BaseException, *, cure: str, own: Path | None = None) -> ProjectError:
    """A ProjectError for an exception raised by the user's code or model.

    own: the user's file; frames in it (or, without one, outside torch and Forge) are listed, innermost last.
    """
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if _is_own(frame.filename, own)][-SHOWN_FRAMES:]
    last = mine[-1] if mine else (frames[-1] if frames else None)
    where = f"{_short(last.filename)}:{last.lineno}" if last else None
    lines = "".join(f"\n  {_short(frame.filename)}:{frame.lineno} in {frame.name}: {frame.line}" for frame in mine)
    return ProjectError(f"{what}: {kind_of(error)}: {first_lines(error)}{lines}", where=where, cure=cure)


def kind_of(error: BaseException) -> str:
    """The exception's class, as people know it."""
    return {"_ProcessExit": "exit"}.get(type(error).__name__, type(error).__name__)


def first_lines(error: BaseException, most: int = 3) -> str:
    """The start of an exception's message on one line, at most MOST_CHARACTERS; `no message` where it has none to give."""
    lines = [line.strip() for line in said(error).splitlines() if line.strip()]
    text = "; ".join(lines[:most]) or "no message"
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ..."


def said(error: BaseException) -> str:
    """`str(error)`, which is code of the exception's own and may raise itself."""
    try:
        return str(error)
    except Interrupted:
        raise
    except BaseException as second:  # whatever the user's __str__ raises, the first exception is what went wrong
        return f"its message cannot be shown: __str__ raised {type(second).__name__}"


def nearest(name: str, known: Iterable[str], *, limit: int = 8) -> str:
    """`did you mean 'x'? ` or a list of what there is; for the end of a message."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    listed = ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
    return f"there is: {listed}" if names else "there is none at all"


def missing_file(path: Path, what: str) -> ProjectError:
    """`path` does not exist: names what lies beside where it was looked for."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if folder != path.parent:
        return ProjectError(f"{what} not found: there is no folder {path.parent}", where=str(path),
                            cure=f"give a path that exists; {folder} does")
    names = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
    return ProjectError(f"{what} not found", where=str(path), cure=f"give a path that exists; in {folder} "
                                                                   f"{nearest(path.name, names)}")


def _is_own(filename: str, own: Path | None) -> bool:
    if own is not None:
        return Path(filename) == own
    return not any(part in filename for part in ("/torch/", "/forge_tui/", "<frozen", "<string>", "importlib"))


def _short(filename: str) -> str:
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except ValueError:
        return filename
