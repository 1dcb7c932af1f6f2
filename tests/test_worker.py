"""The worker protocol against a real child: killed, hung, garbled, flooded, and gone with its whole group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge_tui.cuda import worker as worker_module
from forge_tui.cuda.worker import WorkerDied, WorkerError, WorkerProcess

COMMAND = [sys.executable, str(Path(__file__).with_name("stand_in_worker.py"))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerProcess]:
    process = WorkerProcess(COMMAND, environment=ENVIRONMENT, log=tmp_path / "logs" / "worker.log")
    process.start()
    yield process
    process.close()


def gone(pid: int) -> bool:
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def test_answers_of_any_size(worker: WorkerProcess) -> None:
    for size in (0, 1, 100_000, 3_000_000):
        assert worker.request(b"echo " + b"y" * size, 30) == b"y" * size


def test_stray_prints_do_not_matter(worker: WorkerProcess) -> None:
    assert worker.request(b"print", 30) == b"printed"
    assert worker.request(b"echo still here", 30) == b"still here"
    worker.close()
    assert "stray words" in worker.tail()


def test_progress_comes_in_order(worker: WorkerProcess) -> None:
    seen: list[bytes] = []
    assert worker.request(b"progress", 30, seen.append) == b"done"
    assert seen == [b"0", b"1", b"2"]


def test_a_refusal_leaves_the_worker_alive(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerError, match="no"):
        worker.request(b"refuse", 30)
    assert worker.request(b"echo 1", 30) == b"1"


def test_killed_exited_and_hung(tmp_path: Path) -> None:
    cases = [(b"kill", "crashed", "SIGKILL"), (b"exit", "crashed", "exit status 13"), (b"hang", "endless", "within 1 s")]
    for word, kind, message in cases:
        process = WorkerProcess(COMMAND, environment=ENVIRONMENT, log=tmp_path / "worker.log")
        process.start()
        with pytest.raises(WorkerDied) as caught:
            process.request(word, 1.0 if word == b"hang" else 30)
        assert caught.value.kind == kind and message in str(caught.value)
        assert not process.alive
        if word == b"exit":
            assert "the last words" in caught.value.tail
        with pytest.raises(WorkerDied):
            process.request(b"echo 1", 5)
    assert "the last words" in (tmp_path / "worker.log").read_text()


def test_the_whole_group_is_killed(worker: WorkerProcess) -> None:
    pids: list[int] = []
    with pytest.raises(WorkerDied):
        worker.request(b"children", 1.5, lambda body: pids.append(int(body)))
    assert len(pids) == 1 and gone(pids[0])


def test_closed_while_a_caller_waits(worker: WorkerProcess) -> None:
    """From another thread or from its own progress: the caller hears that it ended, and nothing is read from closed pipes."""
    with pytest.raises(WorkerDied):
        worker.request(b"children", 30, lambda body: worker.close())
    assert not worker.alive
    with pytest.raises(WorkerDied, match="gone|ended"):
        worker.request(b"echo 1", 30)


def test_garbage_for_an_answer(tmp_path: Path) -> None:
    process = WorkerProcess([*COMMAND, "garble"], environment=ENVIRONMENT)
    process.start()
    with pytest.raises(WorkerDied, match="garbled"):
        process.request(b"echo 1", 30)
    assert not process.alive


def test_a_flood_on_stderr_blocks_nothing_and_fills_no_disk(worker: WorkerProcess, tmp_path: Path) -> None:
    assert worker.request(b"flood", 60) == b"flooded"
    worker.close()
    size = (tmp_path / "logs" / "worker.log").stat().st_size
    assert worker_module.LOG_BYTES <= size < worker_module.LOG_BYTES + 10_000


def test_a_command_that_never_speaks(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match="exit status 3") as caught:
        WorkerProcess([sys.executable, "-c", "import sys; print('no module', file=sys.stderr); sys.exit(3)"]).start()
    assert "no module" in caught.value.tail
    with pytest.raises(WorkerDied, match="did not start"):
        WorkerProcess([sys.executable, "-c", "import time; time.sleep(99)"], start_deadline_s=0.5).start()
    with pytest.raises(FileNotFoundError):
        WorkerProcess([str(tmp_path / "nothing")]).start()


def test_callers_take_turns(worker: WorkerProcess) -> None:
    answers: dict[int, bytes] = {}

    def ask(number: int) -> None:
        answers[number] = worker.request(b"echo %d" % number, 30)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: b"%d" % number for number in range(8)}


def test_a_busy_worker_ends_with_its_parent() -> None:
    """The parent is killed outright: nothing tells the child but its pipe."""
    code = (f"import sys; sys.path.insert(0, {ENVIRONMENT['PYTHONPATH']!r})\n"
            "from forge_tui.cuda.worker import WorkerProcess\n"
            f"w = WorkerProcess({COMMAND!r}); w.start(); print(w.pid, flush=True); w.request(b'hang', 60)")
    parent = subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT, stdout=subprocess.PIPE)
    assert parent.stdout
    child = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone(child)
