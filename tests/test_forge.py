"""The loop on a scripted judge and real providers: order of events, doubles, repair, budgets, stopping, exit codes."""

from __future__ import annotations

import math
import os
import resource
import signal
import threading
from pathlib import Path

import msgspec
import pytest
from scripted import NORM, SOFTMAX, VIEW, ScriptedJudge, kernel, make_project, write_writer

from forge_tui.engine import events
from forge_tui.engine.cards import load_operators, save_operators
from forge_tui.engine.document import Document
from forge_tui.engine.forge import run
from forge_tui.engine.options import RunOptions
from forge_tui.engine.report import document, render_table
from forge_tui.engine.state import load_state
from forge_tui.errors import ProjectLocked
from forge_tui.store.lock import ProjectLock

QUICK = RunOptions(device="host", seeds=False, package=False)


def forge(paths, config, judge=None, **options) -> tuple[Document, list]:
    seen: list = []
    merged = msgspec.structs.replace(QUICK, **options)
    return run(paths, config, merged, seen.append, (judge or ScriptedJudge()).open), seen


def of(seen, kind):
    return [event for event in seen if isinstance(event, kind)]


def test_a_run_finds_the_best_confirms_it_and_ends_done(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p")
    judge = ScriptedJudge()
    provider = write_writer(tmp_path, kernel("verified 20"), kernel("wrong"), kernel("verified 10"), kernel("verified 15"))
    result, seen = forge(paths, config, judge, provider=provider)
    assert result.status == "done" and seen[-1].exit_code == 0
    by_key = {item.variant: item for item in result.operators}
    assert by_key[SOFTMAX.key].status == "verified" and by_key[SOFTMAX.key].best_us == 10
    assert by_key[SOFTMAX.key].speedup is None and by_key[SOFTMAX.key].baseline_us is None
    assert (by_key[SOFTMAX.key].tried, by_key[SOFTMAX.key].verified) == (4, 3)
    assert by_key[VIEW.key].status == "skipped" and by_key[VIEW.key].reason == "a view moves no data"
    assert sorted(key for key, _ in judge.confirmed) == sorted([SOFTMAX.key, NORM.key])
    assert [type(event).__name__ for event in seen[:3]] == ["RunStarted", "Captured", "Selected"]
    again = document(paths, load_operators(paths), load_state(paths))
    assert msgspec.structs.replace(again, elapsed_s=0) == msgspec.structs.replace(result, elapsed_s=0), "`show` says the same"


def test_every_event_is_in_the_journal_in_order(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p")
    _, seen = forge(paths, config, provider=write_writer(tmp_path, kernel("verified 20"), kernel("no_build")))
    from forge_tui.store.journal import JournalReader

    assert [events.decode(record) for record in JournalReader(paths.journal).poll()] == seen


def test_values_are_log_ratios_to_the_first_verified(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX)
    _, seen = forge(paths, config, provider=write_writer(tmp_path, kernel("verified 20"), kernel("verified 10"),
                                                         kernel("verified 40"), kernel("fault")))
    values = [event.value for event in of(seen, events.Judged)]
    assert values[0] == 0 and values[1] == pytest.approx(0.6931, abs=1e-3)
    assert values[2] == pytest.approx(-0.6931, abs=1e-3) and values[3] is None


def test_the_same_text_is_judged_once(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX)
    judge = ScriptedJudge()
    result, seen = forge(paths, config, judge, provider=write_writer(tmp_path, kernel("verified 20")), jobs=3)
    assert len(judge.judged) == 1
    doubles = [event.duplicate_of for event in of(seen, events.Judged)]
    assert doubles[0] is None and set(doubles[1:]) == {of(seen, events.Judged)[0].node}
    assert result.operators[0].tried == 4 and result.operators[0].verified == 1


def test_the_same_image_and_plan_is_a_double_and_another_plan_is_not(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=3)
    first = kernel("verified 20", "note one")
    other_plan = first.replace("format = 1", "format = 1\ngrid = 7").replace("note one", "note two")
    provider = write_writer(tmp_path, first, kernel("verified 20", "note three"), other_plan)
    _, seen = forge(paths, config, provider=provider)
    assert [event.duplicate_of for event in of(seen, events.Judged)] == [None, f"{SOFTMAX.key}/1", None]


def test_a_winner_that_fails_its_confirmation_is_none(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=2)
    provider = write_writer(tmp_path, kernel("verified 20"), kernel("verified 5 then wrong"))
    result, seen = forge(paths, config, provider=provider)
    assert [event.verdict.outcome for event in of(seen, events.Confirmed)] == ["wrong", "verified"]
    assert result.operators[0].best_us == 20 and result.operators[0].verified == 1


def test_no_kernel_passes(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX)
    result, _ = forge(paths, config, provider=write_writer(tmp_path, kernel("wrong"), kernel("no_build"), "no plan\n"))
    item = result.operators[0]
    assert item.status == "failed" and item.verified == 0 and item.best_kernel is None
    assert "no kernel passed" in item.reason and "no_build" in item.reason


def test_a_finished_project_has_nothing_left_to_do(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p")
    provider = write_writer(tmp_path, kernel("verified 20"), kernel("verified 10"))
    first, _ = forge(paths, config, provider=provider)
    judge = ScriptedJudge()
    second, seen = forge(paths, config, judge, provider=provider)
    assert judge.opened == 0 and not of(seen, events.Proposed) and not of(seen, events.OperatorDone)
    assert second.operators == first.operators
    third, seen = forge(paths, config, judge, provider=provider, iterations=6)
    assert len(of(seen, events.Proposed)) == 4, "two more for each of the two operators"
    assert third.operators[0].tried == 6


def test_fresh_keeps_the_old_journal(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=1)
    provider = write_writer(tmp_path, kernel("verified 20"))
    forge(paths, config, provider=provider)
    old = paths.journal.read_bytes()
    from forge_tui.engine.forge import set_aside

    set_aside(paths)
    assert paths.journal.with_name("journal.msgpack.1").read_bytes() == old and not paths.journal.exists()


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p")
    with ProjectLock(paths), pytest.raises(ProjectLocked):
        forge(paths, config)


@pytest.mark.parametrize(("options", "words"), [
    ({"policy": "best"}, "no policy"), ({"provider": "openai:here"}, "no base URL"),
    ({"provider": "oracle"}, "no provider"), ({"ops": ("sofmax",)}, "did you mean `softmax`"), ({"jobs": 0}, "jobs is 0"),
    ({"ops": ("view",)}, "a view moves no data"),
])
def test_what_cannot_be_is_refused_with_exit_2(tmp_path: Path, options, words) -> None:
    paths, config = make_project(tmp_path / "p")
    result, seen = forge(paths, config, **options)
    assert result.status == "failed" and seen[-1].exit_code == 2 and words in result.error


def test_a_provider_that_fails_ends_the_run_with_exit_4(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p")
    result, seen = forge(paths, config, provider="command:false")
    assert seen[-1].exit_code == 4 and "status 1" in result.error
    result, seen = forge(paths, config, provider=write_writer(tmp_path, kernel("verified 20")))
    assert result.status == "done", "the node that was not answered is asked again"
    assert result.operators[0].tried == 4


def test_the_budget_is_kept_and_an_unknown_price_is_no_price(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p")
    result, seen = forge(paths, config, provider=write_writer(tmp_path, kernel("verified 20")), budget_usd=1.0)
    assert result.status == "limit" and seen[-1].exit_code == 5 and "price" in seen[-1].reason
    assert len(of(seen, events.Proposed)) == 1 and result.cost_usd is None
    assert result.operators[0].status == "verified", "what is there is concluded"


def test_a_question_left_open_is_not_asked_over_budget(tmp_path: Path) -> None:
    """A run that ended with a question in flight, then a budget that is used up: it stays open, and the run ends."""
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=3)
    good = write_writer(tmp_path, kernel("verified 20"))
    forge(paths, config, provider=good, iterations=1)
    forge(paths, config, provider="command:false")
    result, seen = forge(paths, config, provider=good, budget_usd=1.0)
    assert result.status == "limit" and not of(seen, events.Replied)
    result, _ = forge(paths, config, provider=good)
    assert result.status == "done" and result.operators[0].tried == 3


def test_the_time_limit_ends_a_run_resumably(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p")
    provider = write_writer(tmp_path, kernel("verified 20"))
    result, seen = forge(paths, config, ScriptedJudge(threading.Event()), provider=provider, time_limit_s=0.5)
    assert result.status == "limit" and seen[-1].exit_code == 5 and not of(seen, events.Judged)
    result, seen = forge(paths, config, provider=provider)
    assert result.status == "done"


def test_a_stop_request_and_a_signal_end_a_run_in_order(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p")
    provider = write_writer(tmp_path, kernel("verified 20"))

    def stop(event: events.AnyEvent) -> None:
        if isinstance(event, events.Replied):
            paths.stop_request.touch()

    result = run(paths, config, msgspec.structs.replace(QUICK, provider=provider), stop,
                 ScriptedJudge(threading.Event()).open)
    assert result.status == "interrupted" and load_state(paths).ended.exit_code == 143

    for number, handler_kind in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)):
        sent: list[int] = []

        def kill(event: events.AnyEvent, number=number, sent=sent) -> None:
            if isinstance(event, events.Replied | events.Judged) and not sent:  # a second one would end the process
                sent.append(number)
                os.kill(os.getpid(), number)

        before = signal.getsignal(number)
        result = run(paths, config, msgspec.structs.replace(QUICK, provider=provider), kill, ScriptedJudge().open)
        assert result.status == "interrupted" and load_state(paths).ended.exit_code == handler_kind
        assert signal.getsignal(number) == before


def test_a_required_speedup_that_nothing_measured_is_not_met(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=1)
    result, seen = forge(paths, config, provider=write_writer(tmp_path, kernel("verified 20")), require_speedup=1.1)
    assert result.status == "done" and seen[-1].exit_code == 7


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_exchange_has_as_many_requests_as_jobs(tmp_path: Path, jobs: int) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=6, jobs=jobs)
    judge = ScriptedJudge()
    judge.count = 2                                          # an idle judge asks for no further reply
    result, _ = forge(paths, config, judge, provider="exchange")
    assert result.status == "waiting" and len(list(paths.requests.glob("*.md"))) == jobs


def test_exchange_waits_then_goes_on(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=2, jobs=2)
    result, seen = forge(paths, config, provider="exchange")
    assert result.status == "waiting" and seen[-1].exit_code == 75
    requests = sorted(paths.requests.iterdir())
    assert [path.name for path in requests] == [f"{SOFTMAX.key}-1.md", f"{SOFTMAX.key}-2.md"]
    assert "softmax" in requests[0].read_text()
    paths.answers.mkdir(parents=True)
    reply = f"Idea.\n```cuda\n{kernel('verified 20')}```\n<!-- end of reply -->"
    (paths.answers / requests[0].name).write_text(reply)
    result, seen = forge(paths, config, provider="exchange")
    assert result.status == "waiting" and len(of(seen, events.Judged)) == 1 and not of(seen, events.Proposed)
    assert not requests[0].exists() and requests[1].exists()
    (paths.answers / requests[1].name).write_text(reply.replace("20", "10"))
    result, seen = forge(paths, config, provider="exchange")
    assert result.status == "done" and result.operators[0].best_us == 10 and result.cost_usd is None


def test_a_replay_makes_the_same_tree(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", iterations=6)
    provider = write_writer(tmp_path, kernel("verified 20"), kernel("wrong"), kernel("verified 10"), kernel("no_build"))
    forge(paths, config, provider=provider)
    again, config = make_project(tmp_path / "q", iterations=6)
    result, _ = forge(again, config, provider=f"replay:{paths.root}")

    def shape(state):
        return {node.id: (node.parent.id, node.strategy, node.origin, node.kernel, node.outcome, node.value)
                for operator in state.operators.values() for node in operator.tree.nodes.values()}

    assert shape(load_state(again)) == shape(load_state(paths)) and len(shape(load_state(paths))) == 12
    assert result.cost_usd == 0.0


@pytest.mark.parametrize(("kernels", "status", "words", "exit_code"), [
    ([("verified 10", "speedup: 1.5 1.4 1.6"), ("verified 8", "speedup: 1.9 1.8 2.0")], "won", "1.90x over compile", 0),
    ([("verified 10", "speedup: 1.02 0.97 1.06")], "no_gain", "not surely faster", 7),
    ([("verified 10", "speedup: 1.3 1.2 1.4")], "won", "1.30x", 7),
    ([("wrong", ""), ("fault", "")], "failed", "no kernel passed (1 wrong, 1 fault)", 7),
    ([("skipped", ""), ("skipped", "other")], "skipped", "2 skipped", 7),
])
def test_an_operator_wins_only_with_its_interval_above_one(tmp_path: Path, kernels, status, words, exit_code) -> None:
    """As where a device is timed: status, sentence, figures, and `--require-speedup 1.8`."""
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=len(kernels))
    provider = write_writer(tmp_path, *(kernel(verdict, note) for verdict, note in kernels))
    result, seen = forge(paths, config, provider=provider, require_speedup=1.8)
    item = result.operators[0]
    assert item.status == status and words in item.reason and seen[-1].exit_code == exit_code and result.status == "done"
    if status == "won":
        assert item.baseline == "compile" and item.baseline_us == pytest.approx(item.best_us * item.speedup)
        assert item.interval[0] > 1 and of(seen, events.Confirmed)[0].value == pytest.approx(math.log(item.speedup))


GOLDEN = Path(__file__).parent / "golden" / "document.json"


def test_the_document_is_the_golden_one(tmp_path: Path) -> None:
    """`--json` is a contract: every field, its name, order and form. Only place and time differ between runs."""
    paths, config = make_project(tmp_path / "p", iterations=3)
    result, _ = forge(paths, config, provider=write_writer(tmp_path, kernel("verified 20"), kernel("wrong"), kernel("verified 8")))
    plain = msgspec.structs.replace(result, project="PROJECT", elapsed_s=1.5)
    assert msgspec.json.format(msgspec.json.encode(plain), indent=1).decode() + "\n" == GOLDEN.read_text()


def test_events_as_json_lines_are_the_journals_own(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=2)
    _, seen = forge(paths, config, provider=write_writer(tmp_path, kernel("verified 20"), "nothing\n"))
    lines = [msgspec.json.encode(event) for event in seen]
    assert [msgspec.json.decode(line, type=events.AnyEvent) for line in lines] == seen
    assert [msgspec.json.decode(line)["type"] for line in lines] == [
        "run_started", "captured", "selected", "proposed", "replied", "judged", "proposed", "replied", "confirmed",
        "operator_done", "run_ended"]


def test_a_full_disk_ends_the_run_with_its_reason_and_loses_nothing(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=8)
    provider = write_writer(tmp_path, *(kernel(f"verified {number}") for number in range(20, 10, -1)))
    forge(paths, config, provider=provider, iterations=1)
    before = paths.journal.stat().st_size
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before + 1500, limit[1]))
        result, seen = forge(paths, config, provider=provider)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert result.status == "failed" and seen[-1].exit_code == 3 and "free space" in result.error
    result, seen = forge(paths, config, provider=provider)
    assert result.status == "done" and result.operators[0].tried == 8


def test_cards_of_a_new_capture_make_the_package_stale(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p", SOFTMAX, iterations=1)
    provider = write_writer(tmp_path, kernel("verified 20"))
    forge(paths, config, provider=provider)
    save_operators(paths, msgspec.structs.replace(load_operators(paths), captured_at=2000.0))
    _, seen = forge(paths, config, provider=provider)
    assert [event.captured_at for event in of(seen, events.Captured)] == [2000.0] and load_state(paths).package_stale


def test_the_table_fits_80_columns_and_says_modelled(tmp_path: Path) -> None:
    paths, config = make_project(tmp_path / "p")
    result, _ = forge(paths, config, provider=write_writer(tmp_path, kernel("verified 20"), kernel("wrong")))
    table = render_table(result)
    rows = [line for line in table.splitlines() if not line.startswith(str(paths.root))]
    assert all(len(line) <= 80 for line in rows), table
    assert "modelled" in table and "verified" in table and "softmax" in table and "a view moves no data: view" in table
