"""A region for which no kernel wins hides nothing: what is inside it is worked on, by the run itself and by the next one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted import ScriptedJudge, kernel, make_project, make_variant, write_writer
from screenkit import read
from test_forge import forge, of

from forge_tui.engine import events
from forge_tui.engine.cards import Variant, load_operators
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.overlap import once
from forge_tui.engine.report import document, render_table
from forge_tui.engine.state import load_state
from forge_tui.screens.operatorrows import SHARE, OperatorRows
from forge_tui.specs import Call
from forge_tui.store.journal import JournalWriter

NORM, RELU = make_variant("layer_norm", 64, calls=2), make_variant("relu", 32, calls=3)


def region(operator: str, *inside: Variant) -> Variant:
    call = Call(operator, NORM.call.arguments, NORM.call.outputs)
    return msgspec.structs.replace(NORM, key=operator[-4:] * 3, call=call, covers={item.key: 2 for item in inside})


PAIR = region("torch.nn.functional.layer_norm+torch.nn.functional.relu", NORM, RELU)
WHOLE = region("torch.nn.functional.conv9d+torch.nn.functional.layer_norm+torch.nn.functional.gelu", PAIR, NORM, RELU)


def project(root: Path, *variants: Variant) -> Any:
    paths, config = make_project(root, *once(list(variants), False))
    return paths, config


class Verifying(ScriptedJudge):
    """Takes every kernel for right."""

    def judge(self, variant_key: str, text: str, filename: str, **more: Any) -> Verdict:
        return super().judge(variant_key, f"{text}// verdict: verified 9\n", filename, **more)


def status(result: Any) -> dict[str, str]:
    return {item.variant: item.status for item in result.operators}


def test_builtin_has_nothing_for_the_region_and_something_inside(tmp_path: Path) -> None:
    """Inside: a smaller region that it has kernels for, which keeps what is inside that one."""
    paths, config = project(tmp_path / "p", WHOLE, PAIR, NORM, RELU)
    result, seen = forge(paths, config, Verifying(), provider="builtin")
    chosen = [event.operators for event in of(seen, events.Selected)]
    assert chosen[0] == (WHOLE.key, RELU.key) and chosen[1] == (WHOLE.key, RELU.key, PAIR.key)
    assert status(result)[WHOLE.key] == "skipped" and any("one by one" in event.text for event in of(seen, events.Note))


@pytest.mark.parametrize(("first", "inner"), [
    ("wrong", True), ("verified 10", False), ("verified 10\n// speedup: 1.0 0.98 1.02\n// over eager: 0.97 1.01", True),
    ("verified 10\n// speedup: 1.0 0.98 1.02\n// over eager: 1.7 1.9", False)])
def test_whoever_wrote_the_kernel(tmp_path: Path, first: str, inner: bool) -> None:
    paths, config = project(tmp_path / "p", PAIR, NORM, RELU)
    provider = write_writer(tmp_path, *[kernel(first, str(number)) for number in range(4)], *[kernel("verified 7", str(n)) for n in range(9)])
    result, seen = forge(paths, config, provider=provider)
    worked = {event.variant for event in of(seen, events.OperatorDone)}
    assert (NORM.key in worked) == inner and PAIR.key in worked and RELU.key in worked
    again, more = forge(paths, config, provider=provider)
    assert status(again) == status(result) and not of(more, events.Proposed), "the next run finds nothing left to do"
    assert (NORM.key in load_state(paths).selected) == inner


WON, LOST = ("verified 10\n// speedup: 1.5 1.4 1.6", "verified 10\n// speedup: 1.0 0.98 1.02\n// over eager: 0.97 1.01")


@pytest.mark.parametrize(("kinds", "patterns", "exit_code"), [
    ({"+": LOST, "norm": WON, "relu": WON}, (), 0),          # the region's place is taken by what reached it
    ({"+": "wrong", "norm": WON, "relu": WON}, (), 0),
    ({"+": LOST, "norm": LOST, "relu": WON}, (), 7),         # what is inside has to reach it
    ({"+": LOST, "norm": "wrong", "relu": WON}, (), 7),
    ({"+": WON, "norm": LOST, "relu": WON}, (), 0),          # what is inside a region that won is nobody's concern
    ({"+": WON, "norm": WON, "relu": LOST}, (), 7),          # relu is called elsewhere too
    ({"+": LOST, "norm": WON, "relu": WON}, ("*+*",), 7),    # whoever names the region wants the region
])
def test_a_required_speedup_is_asked_of_what_stands(tmp_path: Path, kinds: dict[str, str], patterns: tuple[str, ...], exit_code: int) -> None:
    """By the run itself and by the next one, which finds all of it done."""
    class ByOperator(ScriptedJudge):
        def judge(self, variant_key: str, text: str, filename: str, **more: Any) -> Verdict:
            kind = kinds["+" if variant_key == PAIR.key else "norm" if variant_key == NORM.key else "relu"]
            return super().judge(variant_key, f"{text}// verdict: {kind}\n", filename, **more)

    paths, config = project(tmp_path / "p", PAIR, NORM, RELU)
    provider = write_writer(tmp_path, *(f"/*forge\nformat = 1\n*/\n// candidate {number}\n__global__ void k() {{}}\n" for number in range(12)))
    for _ in range(2):
        result, seen = forge(paths, config, ByOperator(), provider=provider, require_speedup=1.3, ops=patterns)
        assert (result.status, seen[-1].exit_code) == ("done", exit_code)


def test_whoever_names_the_region_wants_the_region(tmp_path: Path) -> None:
    paths, config = project(tmp_path / "p", WHOLE, PAIR, NORM, RELU)
    _, seen = forge(paths, config, provider="builtin", ops=("*conv9d*",))
    assert [event.operators for event in of(seen, events.Selected)] == [(WHOLE.key,)]


def test_what_was_in_flight_inside_goes_on_with_the_next_run(tmp_path: Path) -> None:
    """A node inside that an earlier run asked for and never had an answer to is asked again."""
    paths, config = project(tmp_path / "p", PAIR, NORM, RELU)
    provider = write_writer(tmp_path, *[kernel("wrong", str(number)) for number in range(4)])
    forge(paths, config, provider=provider, iterations=2)
    name = f"{NORM.key}/{len(load_state(paths).operator(NORM.key).tree.nodes) + 1}"
    with JournalWriter(paths.journal) as writer:
        writer.append(events.encode(events.Proposed(at=1.0, node=name, variant=NORM.key, parent=None, strategy="tiling",
                                                    provider="command")), sync=True)
    result, seen = forge(paths, config, provider=provider, iterations=3)
    assert result.status == "done" and name in {event.node for event in of(seen, events.Replied)}


@pytest.mark.parametrize(("variants", "relu"), [                       # every call takes 50 us
    ((WHOLE, PAIR, NORM, RELU), 1 / 3), ((PAIR, NORM, RELU), 1 / 3),   # two calls of the region, and relu's third
    ((msgspec.structs.replace(PAIR, offered=False), NORM, RELU), 3 / 5), ((NORM, RELU), 3 / 5)])
def test_shares_count_every_call_once(tmp_path: Path, variants: tuple[Variant, ...], relu: float) -> None:
    """In the app, in `show` and in what a capture prints: a column that sums to 100 %, the rest in brackets."""
    paths, _ = project(tmp_path / "p", *variants)
    cards = load_operators(paths)
    counted = cards.counted()
    assert sum(counted.values()) == pytest.approx(1.0)
    taken = {item.key for item in cards.variants if item.taken_by or (item.covers and not item.offered)}
    assert {key for key, share in counted.items() if not share} == taken
    assert counted[RELU.key] == pytest.approx(relu)
    rows = OperatorRows(read(paths.root))
    shares = {key: rows.row(key).cells[SHARE].text.strip() for key in rows.keys()}  # noqa: SIM118
    assert {key for key, text in shares.items() if text.startswith("(") and text.endswith("%)")} == taken
    assert sum(int(text.split()[-1][:-1]) for key, text in shares.items() if key not in taken) == pytest.approx(100, abs=2)
    state = load_state(paths)
    state.apply(events.Selected(at=1.0, operators=tuple(counted)))
    result = document(paths, cards, state)
    assert [item.share for item in result.operators] == [round(cards.share(item), 6) for item in cards.variants], "as ever in --json"
    table = render_table(result, 200, cards)
    assert sum(map(float, re.findall(r" ([\d.]+)%(?!\))", table))) == pytest.approx(100, abs=0.3) and table.count("%)") == len(taken)
