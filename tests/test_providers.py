"""Providers: the contract that all keep, programs that misbehave, replies that are not whole, prompts and their
parsing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import chat_server
import messages_server
import pytest
from scripted import SOFTMAX, ScriptedJudge, kernel, make_project, write_writer

from forge_tui.cuda.device import H200
from forge_tui.engine.forge import run
from forge_tui.cuda.profile import KernelProfile, Profile
from forge_tui.engine.judge.behaviour import Behaviour
from forge_tui.engine.judge.verdict import Timing, Verdict, Worst
from forge_tui.engine.options import RunOptions
from forge_tui.engine.prompts import build_prompt, parse_reply
from forge_tui.engine.providers import Ask, Cancelled, Exhausted, ParentKernel, ReplyPending, Tried, open_provider
from forge_tui.engine.providers.exchange import END_MARK, SETTLED_S
from forge_tui.errors import ProjectError, ProviderError
from forge_tui.store.paths import ProjectPaths

REPLY = f"I widen the loads to 16 bytes.\n\n```cuda\n{kernel('verified 20')}```\n"


def make_ask(number: int = 1, **more) -> Ask:
    return Ask(
        id=f"{SOFTMAX.key}-{number}",
        turn=number - 1,
        variant=SOFTMAX,
        device=H200,
        time_kind="modelled",
        strategy="vectorization",
        **more,
    )


def program(folder: Path, text: str) -> str:
    script = folder / "program.py"
    script.write_text(text)
    return f"{sys.executable} {script}"


@pytest.fixture(params=["anthropic", "builtin", "command", "exchange", "openai", "replay"])
def provider(request, tmp_path: Path, monkeypatch):
    """Each provider, with something to offer for the first ask."""
    paths = ProjectPaths(tmp_path / "p")
    name = request.param
    monkeypatch.setenv("FORGE_HOME", str(tmp_path / "home"))
    if name in ("anthropic", "openai"):
        with messages_server.serve((messages_server if name == "anthropic" else chat_server).reply(REPLY)) as server:
            monkeypatch.setenv(f"{name.upper()}_API_KEY", "sk-test")
            monkeypatch.setenv(f"{name.upper()}_BASE_URL", f"http://127.0.0.1:{server.server_port}")
            opened = open_provider(name, paths=paths, device=H200, llm="claude-opus-5-5")
            yield opened
            opened.close()
        return
    if name == "command":
        name = write_writer(tmp_path, kernel("verified 20"))
    elif name == "exchange":
        paths.answers.mkdir(parents=True)
        (paths.answers / f"{SOFTMAX.key}-1.md").write_text(f"{REPLY}\n{END_MARK}\n")
    elif name == "replay":
        recorded, config = make_project(tmp_path / "recorded", SOFTMAX, iterations=1)
        run(
            recorded,
            config,
            RunOptions(
                device="host", seeds=False, package=False, provider=write_writer(tmp_path, kernel("verified 20"))
            ),
            open_judge=ScriptedJudge().open,
        )
        name = f"replay:{recorded.root}"
    opened = open_provider(name, paths=paths, device=H200)
    yield opened
    opened.close()


class TestContract:
    """What every provider keeps."""

    def test_a_reply_has_a_source_or_a_problem(self, provider) -> None:
        reply = provider.propose(make_ask(), threading.Event())
        assert reply.source or reply.problem
        assert reply.source.startswith("/*forge") and reply.idea.count("\n") == 0

    def test_the_same_ask_twice_is_harmless(self, provider) -> None:
        first, second = (provider.propose(make_ask(), threading.Event()) for _ in range(2))
        assert first.source == second.source

    def test_several_threads_may_ask(self, provider) -> None:
        replies: list = []
        threads = [
            threading.Thread(target=lambda: replies.append(provider.propose(make_ask(), threading.Event())))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len({reply.source for reply in replies}) == 1 and len(replies) == 4

    def test_an_end_is_told_the_same_way_by_both(self, provider) -> None:
        """A turn that is exhausted has no move, and asking for it says so."""
        turn = 1000
        if provider.exhausted(SOFTMAX, turn):
            assert provider.fixed_move(SOFTMAX, turn) is None
            with pytest.raises(Exhausted):
                provider.propose(make_ask(turn + 1), threading.Event())

    def test_close_may_be_called_twice(self, provider) -> None:
        provider.close()
        provider.close()


class TestCommand:
    def test_the_prompt_arrives_and_the_reply_is_read(self, tmp_path: Path) -> None:
        command = program(tmp_path, f"import sys; text = sys.stdin.read(); assert 'softmax' in text; print({REPLY!r})")
        reply = open_provider(f"command:{command}", paths=ProjectPaths(tmp_path), device=H200).propose(
            make_ask(), threading.Event()
        )
        assert reply.source == kernel("verified 20") and reply.idea == "I widen the loads to 16 bytes."
        assert reply.cost_usd is None, "what a program costs is not known"
        assert "softmax" in reply.prompt and reply.text.strip() == REPLY.strip()

    def test_a_failing_program_is_named_with_its_last_words(self, tmp_path: Path) -> None:
        command = program(tmp_path, "import sys; print('no quota', file=sys.stderr); sys.exit(3)")
        with pytest.raises(ProviderError, match="status 3; its last words: no quota"):
            open_provider(f"command:{command}", paths=ProjectPaths(tmp_path), device=H200).propose(
                make_ask(), threading.Event()
            )

    def test_a_program_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ProviderError, match="cannot be started"):
            open_provider("command:/no/such/program", paths=ProjectPaths(tmp_path), device=H200).propose(
                make_ask(), threading.Event()
            )

    @pytest.mark.parametrize("command", ["command:", "command:'open"])
    def test_no_command(self, tmp_path: Path, command: str) -> None:
        with pytest.raises(ProjectError):
            open_provider(command, paths=ProjectPaths(tmp_path), device=H200)

    def test_deadline_and_cancel_end_the_whole_group(self, tmp_path: Path) -> None:
        """The program starts a child that would outlive it; both are gone when `propose` returns."""
        text = (
            "import os, subprocess, sys, time\n"
            f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
            "print('half a reply', flush=True)\ntime.sleep(600)\n"
        )
        provider = open_provider(f"command:{program(tmp_path, text)}", paths=ProjectPaths(tmp_path), device=H200)
        provider.deadline_s = 1.0
        with pytest.raises(ProviderError, match="no reply within 1 s"):
            provider.propose(make_ask(), threading.Event())
        assert gone(int((tmp_path / "pid").read_text()))
        cancel = threading.Event()
        cancel.set()
        with pytest.raises(Cancelled):
            provider.propose(make_ask(), cancel)

    def test_a_program_that_never_stops_writing(self, tmp_path: Path) -> None:
        command = program(tmp_path, "while True: print('x' * 100000)")
        with pytest.raises(ProviderError, match="more than 4 MiB"):
            open_provider(f"command:{command}", paths=ProjectPaths(tmp_path), device=H200).propose(
                make_ask(), threading.Event()
            )


def gone(pid: int) -> bool:
    """Whether the process has ended (a zombie that nobody reaped yet has)."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


class TestExchange:
    def test_a_request_is_written_once_and_kept_until_answered(self, tmp_path: Path) -> None:
        paths = ProjectPaths(tmp_path)
        provider = open_provider("exchange", paths=paths, device=H200)
        request = paths.requests / f"{SOFTMAX.key}-1.md"
        for _ in range(2):
            with pytest.raises(ReplyPending):
                provider.propose(make_ask(), threading.Event())
        assert END_MARK in request.read_text()
        paths.answers.mkdir(parents=True)
        answer = paths.answers / request.name
        answer.write_text(f"{REPLY}{END_MARK}")
        assert provider.propose(make_ask(), threading.Event()).source == kernel("verified 20")
        assert not request.exists() and answer.exists()

    def test_a_reply_that_is_being_written_is_not_read(self, tmp_path: Path) -> None:
        paths = ProjectPaths(tmp_path)
        paths.answers.mkdir(parents=True)
        answer = paths.answers / f"{SOFTMAX.key}-1.md"
        answer.write_text(REPLY[:60])
        cancel = threading.Event()
        cancel.set()
        provider = open_provider("exchange", paths=paths, device=H200)
        with pytest.raises(Cancelled):
            provider.propose(make_ask(), cancel)
        os.utime(answer, (time.time() - SETTLED_S, time.time() - SETTLED_S))
        reply = provider.propose(make_ask(), threading.Event())
        assert reply.source is None and "ends inside" in reply.problem

    @pytest.mark.parametrize("text", ["", " \n\n"])
    def test_a_reply_that_stays_empty_is_none(self, tmp_path: Path, text: str) -> None:
        paths = ProjectPaths(tmp_path)
        paths.answers.mkdir(parents=True)
        answer = paths.answers / f"{SOFTMAX.key}-1.md"
        answer.write_text(text)
        os.utime(answer, (time.time() - SETTLED_S, time.time() - SETTLED_S))
        with pytest.raises(ReplyPending):
            open_provider("exchange", paths=paths, device=H200).propose(make_ask(), threading.Event())

    def test_wait_polls_until_the_reply_comes(self, tmp_path: Path) -> None:
        paths = ProjectPaths(tmp_path)
        provider = open_provider("exchange", paths=paths, device=H200, wait=True)
        found: list = []
        thread = threading.Thread(target=lambda: found.append(provider.propose(make_ask(), threading.Event())))
        thread.start()
        paths.answers.mkdir(parents=True)
        (paths.answers / f"{SOFTMAX.key}-1.md").write_text(f"{REPLY}{END_MARK}")
        thread.join(30)
        assert found[0].source == kernel("verified 20")


def test_replay_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="no recorded run"):
        open_provider(f"replay:{tmp_path}", paths=ProjectPaths(tmp_path), device=H200)


PLAN = "/*forge\nformat = 1\n*/\n"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (f"{PLAN}void k() {{}}\n", f"{PLAN}void k() {{}}\n"),
        (f"Here you go:\n```cuda\n{PLAN}k\n```\nEnjoy!", f"{PLAN}k\n"),
        (f"```\n{PLAN}first\n```\nBetter:\n~~~c++\n{PLAN}second\n~~~\n", f"{PLAN}second\n"),
        (f"```cuda\n// softmax.cu\n{PLAN}k\n```", f"{PLAN}k\n"),
        (f"```cuda\r\n{PLAN}k\r\n```".replace("\n", "\r\n").replace("\r\r", "\r"), f"{PLAN}k\n"),
        (f"````md\n{PLAN}k // ```\n````", f"{PLAN}k // ```\n"),
        (f"```cuda\n{PLAN}void k() {{ f(); }}", f"{PLAN}void k() {{ f(); }}\n"),
        (f"Prose, then no fence.\n{PLAN}k", f"{PLAN}k\n"),
        (f"```cuda\n{PLAN}whole\n```\n```cuda\n{PLAN}void cut() {{", f"{PLAN}whole\n"),
    ],
)
def test_replies_that_are_forgiven(text: str, source: str) -> None:
    parsed = parse_reply(text)
    assert parsed.source == source and parsed.problem == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("I cannot help with that.", "no kernel file"),
        ("```cuda\n__global__ void k() {}\n```", "no launch plan"),
        ("```python\nprint()\n```", "none of the reply's 1 code blocks"),
        ("```cuda\n/*forge\nformat = 1", "inside the launch plan"),
        (f"```cuda\n{PLAN}void k() {{ if (a) {{", "2 opening braces, 0"),
        (f"```cuda\n{PLAN}\n```", "no device code"),
    ],
)
def test_replies_that_cannot_be_used_say_why(text: str, words: str) -> None:
    parsed = parse_reply(text)
    assert parsed.source is None and words in parsed.problem


def test_a_prompt_holds_card_device_parent_history_and_strategy() -> None:
    verdict = Verdict(
        "wrong",
        "out differs",
        worst=Worst("out", (3, 7), 1.5, 0.0, 1e-6),
        build_log="warning: x",
        timing=Timing("modelled", 12.5),
    )
    parent = ParentKernel("v/1", kernel("wrong"), verdict, "an idea")
    tried = (Tried("v/2", "fusion", "one pass", "no_build", "line 7: expected ;"),)
    text = build_prompt(make_ask(parent=parent, tried=tried, origin="repair", hint="mind the tail")).text
    for words in (
        "torch.nn.functional.softmax",
        "[128, 64]",
        "132 SMs",
        "out differs",
        "out[3, 7] is 0, expected 1.5",
        "one pass -> no_build. line 7: expected ;",
        "Mend the kernel",
        "mind the tail",
        kernel("wrong").strip(),
    ):
        assert words in text
    assert "$" not in build_prompt(make_ask()).task


def test_a_prompt_says_how_the_parent_uses_the_device() -> None:
    verdict = Verdict(
        "verified",
        "ok",
        behaviour=Behaviour(40, 2048, 256, 0.75, dram=0.5, sm=0.125),
        profile=Profile("ncu", (KernelProfile("softmax", 31.0, 62.4, None, 71.0, 40, (("long scoreboard", 3.21),)),)),
    )
    text = build_prompt(make_ask(parent=ParentKernel("v/1", kernel("verified 3"), verdict))).text
    assert (
        "Blocks of 256 threads and 2048 bytes of shared memory, occupancy 75%; it uses 50% of the memory bandwidth"
        in text
    )
    assert (
        "Profiled `softmax`: SM 31 %, DRAM 62 %, achieved occupancy 71 %. Warps waiting an issue: long scoreboard 3.2."
        in text
    )


def test_a_prompt_keeps_its_budget_most_useful_first() -> None:
    """Estimated at 3 characters a token; card and task are always there, then the parent, then as much history as
    fits."""
    parent = ParentKernel("v/1", kernel("verified 3") + "// x\n" * 2000, Verdict("verified", "ok"))
    tried = tuple(Tried(f"v/{n}", "fusion", f"idea {n}", "wrong", "z" * 200) for n in range(20))
    texts = {
        tokens: build_prompt(make_ask(parent=parent, tried=tried), budget_tokens=tokens).text
        for tokens in (4000, 6000, 24000)
    }
    assert all(len(text) <= 3 * tokens for tokens, text in texts.items())
    assert "cut here" in texts[4000] and "idea 0" not in texts[4000]
    assert "cut here" not in texts[6000] and "idea 0" in texts[6000] and "idea 19" not in texts[6000]
    assert "idea 19" in texts[24000] and all("[128, 64]" in text and "vectorization" in text for text in texts.values())


class TestTwoRoles:
    """An analyst's plan goes to the writer; ids, costs and texts of both are kept."""

    PROGRAM = f"""import os, sys
text = sys.stdin.read()
if os.environ["FORGE_ASK"].endswith("-plan"):
    assert "You write no code" in text and "/*forge" not in text.split("# The operator")[0]
    print("Bottleneck: loads. Plan: 16 bytes an access.")
else:
    assert "An analyst says:\\nBottleneck: loads." in text or "Mend the kernel" in text
    print({REPLY!r})
"""

    def test_a_plan_comes_first_and_the_writer_reads_it(self, tmp_path: Path) -> None:
        provider = open_provider(
            f"command:{program(tmp_path, self.PROGRAM)}", paths=ProjectPaths(tmp_path), device=H200, roles="two"
        )
        reply = provider.propose(make_ask(), threading.Event())
        assert (
            reply.source == kernel("verified 20")
            and reply.text.startswith("Bottleneck: loads.")
            and REPLY.strip() in reply.text
        )
        assert (
            "You write no code" in reply.prompt and "You write CUDA kernels" in reply.prompt and reply.cost_usd is None
        )

    def test_a_repair_needs_no_analyst(self, tmp_path: Path) -> None:
        provider = open_provider(
            f"command:{program(tmp_path, self.PROGRAM)}", paths=ProjectPaths(tmp_path), device=H200, roles="two"
        )
        parent = ParentKernel("v/1", kernel("wrong"), Verdict("wrong", "out differs"))
        assert "Bottleneck" not in provider.propose(make_ask(parent=parent, origin="repair"), threading.Event()).text

    def test_exchange_asks_for_the_plan_and_then_for_the_kernel(self, tmp_path: Path) -> None:
        paths = ProjectPaths(tmp_path)
        provider = open_provider("exchange", paths=paths, device=H200, roles="two")
        paths.answers.mkdir(parents=True)
        for name, text in ((f"{SOFTMAX.key}-1-plan", "Bottleneck: loads. Plan: wider."), (f"{SOFTMAX.key}-1", REPLY)):
            with pytest.raises(ReplyPending):
                provider.propose(make_ask(), threading.Event())
            assert [path.stem for path in paths.requests.iterdir()] == [name]
            (paths.answers / f"{name}.md").write_text(f"{text}\n{END_MARK}")
        assert provider.propose(make_ask(), threading.Event()).source == kernel("verified 20")

    def test_the_analyst_may_be_another_model(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
        plan = messages_server.reply("Bottleneck: loads. Plan: wider.")
        with messages_server.serve(plan, messages_server.reply(REPLY)) as server:
            monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
            provider = open_provider(
                "anthropic",
                paths=ProjectPaths(tmp_path),
                device=H200,
                llm="claude-opus-5-5",
                roles="two",
                analyst_llm="claude-haiku-4-5",
            )
            reply = provider.propose(make_ask(), threading.Event())
        first, second = (body for _, body in server.requests)
        assert (first["model"], second["model"]) == ("claude-haiku-4-5", "claude-opus-5-5")
        assert "tools" not in first and "tools" in second and reply.tokens_in == 4200 and reply.source
        assert reply.cost_usd == pytest.approx((100 * 1 + 2000 * 0.1 + 50 * 5 + 100 * 4 + 2000 * 0.2 + 50 * 20) / 1e6)


def test_a_prompt_is_bounded() -> None:
    parent = ParentKernel("v/1", "x" * 1_000_000, Verdict("verified", "ok", build_log="y" * 100_000))
    tried = tuple(Tried(f"v/{n}", "fusion", "idea", "wrong", "z" * 300) for n in range(500))
    assert len(build_prompt(make_ask(parent=parent, tried=tried)).text) < 80_000


def test_the_worked_example_of_the_prompt_passes_the_judge() -> None:
    """What a model is shown must be right: the real judge on the host target."""
    import torch

    from forge_tui.cuda.host.target import HostTarget
    from forge_tui.engine.judge.judge import judge_text
    from forge_tui.engine.judge.selftest import variant_of

    source = parse_reply(build_prompt(make_ask()).system).source
    values = torch.randn(6, 300, generator=torch.Generator().manual_seed(5))
    variant, sample = variant_of("torch.nn.functional.softmax", {"input": values, "dim": -1, "dtype": None})
    verdict = judge_text(source, "example.cu", variant, [sample], HostTarget())
    assert verdict.verified and len(verdict.points) == 3, verdict.sentence


@pytest.mark.parametrize("module", ["prompts", "providers", "search", "scheduler"])
def test_each_package_can_be_imported_first(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"import forge_tui.engine.{module}"], check=True, timeout=60)
