"""The engine's judge with real workers on the host target: verdicts, deaths, replacement, and what a worker may
know."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from forge_tui.cuda.device import H200
from forge_tui.engine.cards import FORMAT, OperatorFile, Variant, save_operators
from forge_tui.engine.judge.client import JudgeClient, clean_environment
from forge_tui.engine.judge.options import JudgeOptions
from forge_tui.engine.judge.probe import CONSTANT, HONEST
from forge_tui.engine.judge.selftest import variant_of
from forge_tui.errors import MissingEnvironment, ProjectError
from forge_tui.store.paths import ProjectPaths
from forge_tui.store.tensors import save_tensors

ENDLESS = HONEST.replace("if (i < n)", "const volatile float* flag = input;\n    while (*flag != 12345.0f) { }\n    if (i < n)")
HUNGRY = HONEST.replace("[[launch]]", '[[workspace]]\nname = "scratch"\ndtype = "float32"\nshape = [15000000000]\n\n[[launch]]')


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[ProjectPaths, Variant]:
    paths = ProjectPaths(tmp_path_factory.mktemp("project"))
    variant, sample = variant_of("torch.nn.functional.relu", {"input": torch.randn(2000, generator=torch.Generator().manual_seed(1))})
    save_tensors(paths.captures / "sample", sample, {"weights": {}})
    save_operators(paths, OperatorFile(FORMAT, "a test", H200, "cpu", 1.0, (variant,), (), str(torch.__version__)))
    return paths, variant


@pytest.fixture(scope="module")
def client(project: tuple[ProjectPaths, Variant]) -> Iterator[JudgeClient]:
    os.environ["ANTHROPIC_API_KEY"] = "sk-not-for-workers"
    notes: list[str] = []
    with JudgeClient(project[0], "host", options=JudgeOptions(launch_deadline_s=1.0), on_note=notes.append) as judge:
        judge.notes = notes  # type: ignore[attr-defined]
        yield judge
    del os.environ["ANTHROPIC_API_KEY"]


def worker_pid(client: JudgeClient) -> int:
    (worker,) = client._workers
    assert worker.pid
    return worker.pid


def test_right_and_wrong(client: JudgeClient, project: tuple[ProjectPaths, Variant]) -> None:
    key = project[1].key
    steps: list[str] = []
    verdict = client.judge(key, HONEST, "honest.cu", on_progress=lambda report: steps.append(report.what))
    assert verdict.verified and verdict.timing is not None and verdict.timing.kind == "modelled" and verdict.timing.us > 0
    assert {"building", "checking", "timing"} <= set(steps)
    again = client.judge(key, HONEST, "honest.cu", verdict.seed)
    assert [(c.name, c.figure) for c in again.checks] == [(c.name, c.figure) for c in verdict.checks]
    assert client.judge(key, CONSTANT, "constant.cu").outcome == "wrong"
    assert client.judge(key, "no kernel at all", "none.cu").outcome == "refused"
    assert client.judge(key, HONEST.replace("input[i] <", "inputs[i] <"), "typo.cu").outcome == "no_build"


def test_an_unknown_variant_is_the_projects_fault(client: JudgeClient) -> None:
    with pytest.raises(ProjectError, match="no variant"):
        client.judge("0123456789ab", HONEST, "honest.cu")


def test_a_worker_never_sees_a_key(client: JudgeClient) -> None:
    environment = Path(f"/proc/{worker_pid(client)}/environ").read_bytes()
    assert b"sk-not-for-workers" not in environment and b"OMP_NUM_THREADS=1" in environment
    names = {"ANTHROPIC_API_KEY": "1", "OPENAI_API_KEY": "2", "HF_TOKEN": "3", "AWS_SECRET_ACCESS_KEY": "4", "MY_PASSWORD": "5",
             "PATH": "/bin", "CUDA_HOME": "/usr", "SSH_AUTH_SOCK": "/s"}
    assert set(names) & set(clean_environment(names)) == {"PATH", "CUDA_HOME"}
    assert "SSH_AUTH_SOCK" in clean_environment(names, remote=True)


def test_deaths_become_verdicts_and_nothing_else_is_disturbed(client: JudgeClient, project: tuple[ProjectPaths, Variant]) -> None:
    key = project[1].key
    for _ in range(2):
        pid = worker_pid(client)
        verdict = client.judge(key, HONEST, "killed.cu", on_progress=lambda report, pid=pid: os.kill(pid, signal.SIGKILL))
        assert (verdict.outcome, verdict.fault) == ("fault", "crashed") and "SIGKILL" in verdict.sentence
        assert client.judge(key, HONEST, "honest.cu").verified
        assert worker_pid(client) != pid
    assert any("replaced" in note for note in client.notes)  # type: ignore[attr-defined]


def test_an_endless_kernel(client: JudgeClient, project: tuple[ProjectPaths, Variant]) -> None:
    pid = worker_pid(client)
    verdict = client.judge(project[1].key, ENDLESS, "endless.cu")
    assert (verdict.outcome, verdict.fault) == ("fault", "endless") and verdict.line is not None
    assert worker_pid(client) == pid, "the interpreter's own limit ends it: no worker is lost"


def test_a_hanging_worker(client: JudgeClient, project: tuple[ProjectPaths, Variant]) -> None:
    client.deadline_s = 0.3
    try:
        verdict = client.judge(project[1].key, ENDLESS, "endless.cu")
    finally:
        client.deadline_s = None
    assert (verdict.outcome, verdict.fault) == ("fault", "endless")
    assert client.judge(project[1].key, HONEST, "honest.cu").verified


SLOW = HONEST.replace('extern "C"', """template <int DEPTH, long long PATH> struct Tree {
    static constexpr int size = Tree<DEPTH - 1, 2 * PATH>::size + Tree<DEPTH - 1, 2 * PATH + 1>::size;
};
template <long long PATH> struct Tree<0, PATH> { static constexpr int size = 1; };
static_assert(Tree<26, 0>::size > 0);
extern "C\"""")


def test_a_build_that_does_not_end(project: tuple[ProjectPaths, Variant]) -> None:
    """Sixty million templates: the compiler cannot be stopped, so the worker is."""
    notes: list[str] = []
    with JudgeClient(project[0], "host", options=JudgeOptions(build_deadline_s=2.0), on_note=notes.append) as client:
        pid = worker_pid(client)
        verdict = client.judge(project[1].key, SLOW, "slow.cu")
        assert (verdict.outcome, verdict.fault) == ("no_build", "endless"), verdict.sentence
        assert "the compiler was still at work after 2 s" in verdict.sentence and "slow.cu" in notes[0]
        assert not client._workers
        assert client.judge(project[1].key, HONEST, "honest.cu").verified and worker_pid(client) != pid


def test_images_are_kept_in_the_projects_build_folder(client: JudgeClient, project: tuple[ProjectPaths, Variant]) -> None:
    other = HONEST.replace("probe", "another")
    key = project[1].key

    def images() -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in project[0].build.glob("*.image")}

    assert client.judge(key, other, "another.cu").verified
    before = images()
    assert before and client.judge(key, other, "another.cu").verified
    assert images() == before, "a hit writes nothing"


def test_a_wrapper_in_front_of_the_command(project: tuple[ProjectPaths, Variant], monkeypatch: pytest.MonkeyPatch) -> None:
    """What `ssh host`, `srun` and `docker exec` do: run the command, after saying something on the same stream."""
    monkeypatch.setenv("FORGE_WORKER_PREFIX", """sh -c 'echo "Welcome to node7"; FORGE_TEST_WRAPPED=1 exec "$@"' sh""")
    with JudgeClient(project[0], "host") as client:
        assert client.judge(project[1].key, HONEST, "honest.cu").verified
        assert b"FORGE_TEST_WRAPPED=1" in Path(f"/proc/{worker_pid(client)}/environ").read_bytes()


def test_out_of_memory(client: JudgeClient, project: tuple[ProjectPaths, Variant]) -> None:
    verdict = client.judge(project[1].key, HUNGRY, "hungry.cu")
    assert (verdict.outcome, verdict.fault) == ("fault", "out_of_memory")
    assert client.judge(project[1].key, HONEST, "honest.cu").verified


def test_two_workers_and_an_end_while_they_work(project: tuple[ProjectPaths, Variant]) -> None:
    from forge_tui.errors import ForgeError

    key = project[1].key
    client = JudgeClient(project[0], "host", workers=2)
    outcomes: list[str] = []
    busy = threading.Barrier(3)

    def work() -> None:
        assert client.judge(key, HONEST, "honest.cu").verified
        try:
            client.judge(key, ENDLESS, "endless.cu", on_progress=lambda report: busy.wait(60) if report.what == "building" else None)
        except ForgeError as error:
            outcomes.append(str(error))

    with client:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        busy.wait(60)
        assert len(client._workers) == 2
    for thread in threads:
        thread.join(30)
    assert outcomes == ["judging was stopped"] * 2
    assert client.statistics()["verified"] == 2


def test_no_worker_can_be_started(project: tuple[ProjectPaths, Variant], tmp_path: Path) -> None:
    with pytest.raises(MissingEnvironment, match="cannot be started"), JudgeClient(project[0], "host", prefix=[str(tmp_path / "ssh")]):
        pass
    with pytest.raises(MissingEnvironment, match="exit status 1"), JudgeClient(project[0], "host", command=["python3", "-c", "import forge_nothing"]):
        pass


WILD = HONEST.replace("out[i] =", "out[i + 5000000] =")
LATER_WILD = WILD.replace("[[launch]]", "[tune]\nWILD = [0, 1, 2]\n\n[[launch]]").replace("5000000", "WILD * 5000000")


def test_a_worker_whose_device_is_lost_is_replaced_before_the_next_kernel(project: tuple[ProjectPaths, Variant]) -> None:
    key = project[1].key
    notes: list[str] = []
    command = [sys.executable, str(Path(__file__).with_name("losing_server.py")), str(project[0].root)]
    with JudgeClient(project[0], "host", command=command, on_note=notes.append) as client:
        for text in (WILD, LATER_WILD):                     # the second one fails with a setting after the first: torch's calls then fail too
            pid = worker_pid(client)
            verdict = client.judge(key, text, "wild.cu")
            assert (verdict.outcome, verdict.fault) == ("fault", "out_of_bounds"), verdict.sentence
            assert not client._workers
            assert client.judge(key, HONEST, "honest.cu").verified
            assert worker_pid(client) != pid
        assert client.statistics()["workers started"] == 3 and len(notes) == 2


def test_a_spare_takes_the_place_of_a_lost_worker(project: tuple[ProjectPaths, Variant]) -> None:
    key = project[1].key
    command = [sys.executable, str(Path(__file__).with_name("losing_server.py")), str(project[0].root)]
    with JudgeClient(project[0], "host", command=command, spares=1) as client:
        for _ in range(2):
            spare = wait_for(lambda: next(iter(client._spares), None))
            assert spare.alive and spare.pid not in client.pids()
            assert client.judge(key, WILD, "wild.cu").fault == "out_of_bounds"
            assert client.judge(key, HONEST, "honest.cu").verified
            assert client.pids() == [spare.pid]
        last = wait_for(lambda: next(iter(client._spares), None))
    assert not last.alive


def wait_for(look):
    """What `look` gives, once it gives something."""
    until = time.monotonic() + 60
    while (found := look()) is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    return found
