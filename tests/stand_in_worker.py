"""A real child process that answers by command: the protocol's faults, one by one."""

from __future__ import annotations

import os
import signal
import sys
import time

print("a banner of a login shell", flush=True)

from forge_tui.cuda.worker import WorkerError, serve  # noqa: E402


def handle(body: bytes, progress) -> bytes:
    word, _, rest = body.partition(b" ")
    if word == b"echo":
        return rest
    if word == b"print":
        print("stray words on stdout", flush=True)
        os.write(1, b"FWK1\xff\xff\xff\xff")
        return b"printed"
    if word == b"progress":
        for step in range(3):
            progress(str(step).encode())
        return b"done"
    if word == b"kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == b"exit":
        sys.stderr.write("the last words\n")
        sys.stderr.flush()
        os._exit(13)
    if word == b"hang":
        time.sleep(3600)
    if word == b"children":
        import subprocess

        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        progress(str(child.pid).encode())
        time.sleep(3600)
    if word == b"flood":
        for _ in range(20000):
            sys.stderr.write("x" * 999 + "\n")
        return b"flooded"
    if word == b"refuse":
        raise WorkerError(b"no")
    if word == b"environment":
        return repr(sorted(os.environ)).encode()
    raise AssertionError(word)


def garble() -> None:
    os.write(1, b"\nforge-worker 1 ready\nthis is no frame at all")
    time.sleep(3600)


if __name__ == "__main__":
    garble() if "garble" in sys.argv else serve(handle)
