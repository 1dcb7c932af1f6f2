"""The search over all selected operators at once: who is asked what next, what is judged, when each search is over.

One thread owns tree, state and journal. Proposals and judgements run on other threads and come back through a queue.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from forge_tui.cuda.device import DeviceFacts
from forge_tui.engine import events, steering
from forge_tui.engine.allocation import Search, too_little, worth_of
from forge_tui.engine.asks import build_ask, plan_of
from forge_tui.engine.cards import Variant
from forge_tui.engine.halt import StopReason, Watch
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.judging import Judges
from forge_tui.engine.options import Settings
from forge_tui.engine.outcome import beats_eager, conclude, value_of
from forge_tui.engine.providers.base import Ask, Exhausted, Provider, Reply, ReplyPending
from forge_tui.engine.providers.live import LiveReplies
from forge_tui.engine.recorder import Recorder
from forge_tui.engine.search.models import choose_llm
from forge_tui.engine.search.policy import Policy
from forge_tui.engine.search.tree import Node
from forge_tui.store.atomic import write_atomic
from forge_tui.store.kernels import load_kernel, save_kernel
from forge_tui.store.paths import ProjectPaths

POLL_S = 0.2
"""How long the loop may sleep before it looks for signals, a stop request, or the time limit."""


class Scheduler:
    """`run` to the end or to a stop. Give it to nobody afterwards; `close` ends its threads.

    Invariants: every started proposal or judgement is one entry of `asking`, `judging` or `waiting` by node id; a node
    is judged by one judge at a time, and never again once it has a verdict.
    """

    def __init__(self, *, paths: ProjectPaths, settings: Settings, recorder: Recorder, watch: Watch, policy: Policy,
                 providers: Sequence[Provider], judges: Judges, device: DeviceFacts, modelled: bool,
                 variants: Sequence[Variant], inside: Callable[[Variant], Sequence[Variant]] = lambda region: ()) -> None:
        """inside: what is worked on in the place of a region for which no kernel was found that wins."""
        self.paths, self.settings, self.recorder, self.watch = paths, settings, recorder, watch
        self.policy, self.providers, self.judges, self.inside = policy, list(providers), judges, inside
        self.device, self.time_kind = device, "modelled" if modelled else "device"
        self.searches = [Search(variant, recorder.state.operator(variant.key)) for variant in variants]
        self.by_key = {search.variant.key: search for search in self.searches}
        self.replaced: set[str] = set()
        """Regions in whose place what is inside them is worked on."""
        self.asking: dict[str, Ask] = {}
        self.judging: set[str] = set()
        self.waiting: dict[str, Ask] = {}
        self.twins: dict[str, list[Node]] = {}
        self.asked_at: dict[str, float] = {}
        self.left: set[str] = set()
        """A person's requests for operators that this run does not work on."""
        self.paused = False
        self.cancel = threading.Event()
        self.live = LiveReplies(paths.replies)
        self.live.clear()  # of a run that was killed
        for provider in self.providers:
            provider.listener = self.live
        self._results: queue.Queue[Callable[[], None]] = queue.Queue()
        self._threads = ThreadPoolExecutor(settings.jobs, thread_name_prefix="ask")

    def run(self) -> StopReason:
        """Resume what was in flight, then propose, judge and conclude until nothing is left or something stops it."""
        for search in self.searches:
            self._resume(search)
        stop: StopReason | None = None
        while True:
            if stop is None:
                self._take_requests()
            self._conclude_finished(stop)
            if all(search.finished for search in self.searches):
                return stop or StopReason.DONE
            if stop is not None and not self.asking and not self.judging:
                return stop  # what is left was never answered
            found = self.watch.check(len(self.asking))
            if found is not None and not found.drains:
                return found
            stop = stop or found
            paused = stop is None and self._pause()
            if stop is None and not paused:
                self._fill()
            if self.asking or self.judging:
                self._take()
            elif paused:
                time.sleep(POLL_S)
            elif stop is None and self.waiting:
                if not self._poll_waiting():
                    return StopReason.WAITING
            elif stop is None and not any(self._over(search) for search in self.searches if not search.finished):
                raise AssertionError(f"policy {self.policy.name} has no move, and nothing is in flight")

    def standing(self) -> list[str]:
        """Keys of what was worked on, without regions in whose place what is inside them was."""
        return [search.variant.key for search in self.searches if search.variant.key not in self.replaced]

    def close(self) -> None:
        """Cancel what is in flight. What was not recorded is done again by the next run."""
        self.cancel.set()
        self.judges.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.live.clear()
        for provider in self.providers:
            provider.close()

    def note(self, text: str) -> None:
        """Something the user should read, said by any thread: recorded by the loop's own."""
        self._results.put(lambda: self.recorder.note("warning", text))

    def _pause(self) -> bool:
        """Whether the run is to propose nothing new; says so when that changes."""
        paused = self.watch.paused()
        if paused != self.paused:
            self.paused = paused
            self.recorder.note("info", "paused: what is in flight is judged, nothing new is asked for" if paused else "going on")
        return paused

    # -- a person's moves

    def _take_requests(self) -> None:
        """Record what people have asked for since; a file is deleted when its event is in the journal."""
        for path, request in steering.pending(self.paths):
            if request is None:
                self.recorder.note("warning", f"{path.name} in steering/ is no request and was set aside")
                path.rename(path.with_suffix(".bad"))
                continue
            search = self.by_key.get(request.node.partition("/")[0])
            if search is None:
                if request.id not in self.left:  # for a run that works on that operator
                    self.left.add(request.id)
                    self.recorder.note("warning", f"a request waits: this run does not work on {request.node}")
                continue
            if request.id not in self.recorder.state.requests:  # else a run recorded it that was killed before this line
                self._steer(search, request)
            path.unlink(missing_ok=True)

    def _steer(self, search: Search, request: steering.Request) -> None:
        tree, node = search.tree, request.node
        whole = "/" not in node
        if (not whole and node not in tree.nodes) or (whole and request.action not in ("kernel", "hint")):
            self.recorder.note("warning", f"`{request.action}` was asked of {node}, which is no kernel of this project")
            return
        made = f"{search.variant.key}/{len(tree.nodes) + 1}" if request.action == "kernel" else ""
        kernel = save_kernel(self.paths, request.text) if made else ""
        self.recorder.record(events.Steered(
            at=time.time(), request=request.id, action=request.action, node=node, text="" if made else request.text,
            made=made, kernel=kernel, idea=request.idea), sync=True)
        if made:
            search.finished = False
            self._judge(search, tree.nodes[made], request.text)

    # -- proposing

    def _resume(self, search: Search) -> None:
        """Nodes that an earlier run left: judge those with a kernel; ask again for the others, if the budget is not
        used up."""
        may_ask = self.watch.check(0) is None
        for node in search.tree.open_nodes():
            if node.kernel is not None:
                self._judge(search, node)
            elif may_ask:
                self._ask(search, node, self._provider_again(search, node))

    def _provider_again(self, search: Search, node: Node) -> Provider:
        """The one that was asked before; where this run has it not, the run's own."""
        for provider in self.providers:
            if provider.name == node.provider:
                return provider
        provider = self.providers[-1]
        self.recorder.record(events.Proposed(
            at=time.time(), node=node.id, variant=search.variant.key, parent=node.parent.id or None,
            strategy=node.strategy, provider=provider.name, model=provider.llm, origin=node.origin))
        return provider

    def _fill(self) -> None:
        """Propose while there is room: one node for each job, and one for each further judge so that none idles. With
        one job all is sequential, and the run a function of its seed and its provider's replies."""
        room = self.settings.jobs + self.judges.count - 1
        while (asked := len(self.asking) + len(self.waiting)) < self.settings.jobs and asked + len(self.judging) < room:
            if not self._propose_next():
                return

    def _propose_next(self) -> bool:
        mean_cost = self.recorder.state.mean_cost_usd
        for search in sorted(self._open_searches(), key=lambda search: -worth_of(search, mean_cost)):
            provider = self._provider_for(search)
            move = provider.fixed_move(search.variant, self._turn(search, provider)) or self.policy.select(search.tree)
            if move is None:
                continue
            parent = move.parent if move.parent in search.tree.nodes else None
            name = f"{search.variant.key}/{len(search.tree.nodes) + 1}"
            self.recorder.record(events.Proposed(
                at=time.time(), node=name, variant=search.variant.key, parent=parent, strategy=move.strategy,
                provider=provider.name, model=self._llm(provider), origin=move.origin))
            self._ask(search, search.tree.nodes[name], provider)
            return True
        return False

    def _llm(self, provider: Provider) -> str:
        """The language model to ask next; empty where there is none to name."""
        if len(provider.llms) < 2:
            return provider.llm
        return choose_llm(provider.llms, (search.tree for search in self.searches))

    def _open_searches(self) -> list[Search]:
        """Those that may be given another node."""
        return [search for search in self.searches
                if not search.finished and not search.confirming and not self._over(search)]

    def _over(self, search: Search) -> bool:
        """Whether the search makes no new nodes."""
        return (search.tree.asked >= self.settings.iterations or search.at_floor
                or too_little(search, self.settings.least_us_per_usd) or self._provider_for(search) is None)

    def _provider_for(self, search: Search) -> Provider | None:
        """The first that still has something to offer: shipped kernels come before models."""
        for provider in self.providers:
            if provider.name not in search.exhausted and not provider.exhausted(search.variant, self._turn(search, provider)):
                return provider
        return None

    @staticmethod
    def _turn(search: Search, provider: Provider) -> int:
        return sum(node.provider == provider.name for node in search.tree.nodes.values())

    def _ask(self, search: Search, node: Node, provider: Provider) -> None:
        ask = build_ask(self.paths, search.variant, search.tree, node, self.device, self.time_kind)
        self.asked_at.setdefault(node.id, time.monotonic())
        self.asking[node.id] = ask
        future = self._threads.submit(provider.propose, ask, self.cancel)
        self._on_result(future, lambda done: self._replied(search, node, provider, done))

    def _poll_waiting(self) -> bool:
        """Look once more for replies that were not there. Whether any came."""
        for name in list(self.waiting):
            del self.waiting[name]
            search = self.by_key[name.partition("/")[0]]
            node = search.tree.nodes[name]
            self._ask(search, node, self._provider_again(search, node))
        before = len(self.asking)
        while self.asking:
            self._take()
        return len(self.waiting) < before

    # -- results

    def _on_result(self, future: Future[Any], handle: Callable[[Future[Any]], None]) -> None:
        future.add_done_callback(lambda done: self._results.put(lambda: handle(done)))

    def _take(self) -> None:
        """Handle results until there is none for a moment."""
        try:
            handle = self._results.get(timeout=POLL_S)
        except queue.Empty:
            return
        handle()

    def _replied(self, search: Search, node: Node, provider: Provider, done: Future[Reply]) -> None:
        ask = self.asking.pop(node.id)
        try:
            reply = done.result()
        except ReplyPending:
            self.waiting[node.id] = ask
            return
        except Exhausted:
            search.exhausted.add(provider.name)
            reply = Reply(source=None, problem="the provider had nothing more to offer", cost_usd=0.0)
        self._record_reply(node, ask, reply)
        if node.kernel is not None:
            self._judge(search, node, reply.source)

    def _record_reply(self, node: Node, ask: Ask, reply: Reply) -> None:
        """Texts first: what the journal names is there."""
        kernel = save_kernel(self.paths, reply.source) if reply.source is not None else None
        self.recorder.record(events.Replied(
            at=time.time(), node=node.id, kernel=kernel, idea=reply.idea,
            prompt_file=self._keep(f"{ask.id}.prompt.md", reply.prompt), reply_file=self._keep(f"{ask.id}.reply.md", reply.text),
            reasoning_file=self._keep(f"{ask.id}.reasoning.md", reply.reasoning),
            tokens_in=reply.tokens_in, tokens_out=reply.tokens_out, cost_usd=reply.cost_usd, problem=reply.problem,
            model=reply.model, seconds=time.monotonic() - self.asked_at[node.id]), sync=True)
        self.live.ended(ask.id)

    def _keep(self, name: str, text: str) -> str | None:
        if not text:
            return None
        write_atomic(self.paths.replies / name, text)
        return name

    # -- judging

    def _judge(self, search: Search, node: Node, source: str | None = None) -> None:
        """Judge a node's kernel; the same text is judged once."""
        first = search.tree.by_kernel[node.kernel]
        if first is not node:
            if first.judged is not None:
                self._record_double(search, node, first)
            else:
                self.twins.setdefault(first.id, []).append(node)
            return
        text = source if source is not None else load_kernel(self.paths, node.kernel)
        self.judging.add(node.id)
        future = self.judges.judge(search.variant.key, text, f"{node.kernel[:12]}.cu")
        self._on_result(future, lambda done: self._judged(search, node, done))

    def _judged(self, search: Search, node: Node, done: Future[Verdict]) -> None:
        verdict = done.result()
        self.judging.discard(node.id)
        first = self._double(search, node, verdict)
        if first is not None:
            self._record_double(search, node, first)
        else:
            self.recorder.record(events.Judged(at=time.time(), node=node.id, verdict=verdict,
                                               value=value_of(verdict, search.tree.first_us)), sync=True)
        for twin in self.twins.pop(node.id, []):
            self._record_double(search, twin, first or node)

    def _double(self, search: Search, node: Node, verdict: Verdict) -> Node | None:
        """The earlier node with the same image and the same plan: the image alone does not know grid and arguments."""
        plan = plan_of(load_kernel(self.paths, node.kernel))
        return next((other for other in search.tree.by_image.get(verdict.image, [])
                     if plan_of(load_kernel(self.paths, other.kernel)) == plan), None)

    def _record_double(self, search: Search, node: Node, first: Node) -> None:
        self.recorder.record(events.Judged(at=time.time(), node=node.id, verdict=first.judged.verdict,
                                           value=first.judged.value, duplicate_of=first.id), sync=True)

    # -- the end of an operator

    def _conclude_finished(self, stop: StopReason | None) -> None:
        """Confirm the winner of each search that is over, then say so. The list may grow meanwhile: by what is inside regions."""
        for search in self.searches:
            if search.finished or search.confirming or search.tree.root.pending:
                continue
            if stop is not None or self._over(search):
                self._conclude(search, stop)

    def _conclude(self, search: Search, stop: StopReason | None) -> None:
        best = search.tree.best
        if best is not None and best.confirmed is None:
            self._confirm(search, best)
            return
        nothing = "; ".join(filter(None, (provider.why_exhausted(search.variant) for provider in self.providers)))
        status, reason, winner = conclude(search.tree, nothing)
        if search.at_floor:
            reason += "; at the least this device needs, so the search ended early"
        elif stop is None and too_little(search, self.settings.least_us_per_usd):
            least = self.settings.least_us_per_usd
            reason += f"; another dollar is expected to save less than {least:g} us of a forward"
        search.finished = True
        if stop is not None and status in ("failed", "skipped"):
            status, reason = "pending", stop.sentence
        done = self.recorder.state.operator(search.variant.key).done
        if done is None or (done.status, done.best) != (status, winner.id if winner else None):
            self.recorder.record(events.OperatorDone(at=time.time(), variant=search.variant.key, status=status,
                                                     reason=reason, best=winner.id if winner else None), sync=True)
        if stop is None and search.variant.covers and status not in ("won", "verified") and not beats_eager(winner):
            self._look_inside(search.variant)

    def _look_inside(self, region: Variant) -> None:
        """A region's calls are those of what is inside it from now on: search for that."""
        added = []
        if found := self.inside(region):
            self.replaced.add(region.key)
        for variant in found:
            if variant.key in self.by_key:
                self.by_key[variant.key].variant = variant
            else:
                added.append(Search(variant, self.recorder.state.operator(variant.key)))
                self.by_key[variant.key] = added[-1]
        if added:
            self.searches += added
            self.recorder.record(events.Selected(at=time.time(), operators=tuple(self.by_key)))
            self.recorder.note("info", f"no kernel for {region.operator} {region.key[:4]} wins: what is inside it is worked on one by one")
        for search in added:
            self._resume(search)

    def _confirm(self, search: Search, best: Node) -> None:
        search.confirming = True
        text = load_kernel(self.paths, best.kernel)
        self.judging.add(best.id)
        future = self.judges.confirm(search.variant.key, text, f"{best.kernel[:12]}.cu", best.judged.verdict.settings)
        self._on_result(future, lambda done: self._confirmed(search, best, done))

    def _confirmed(self, search: Search, node: Node, done: Future[Verdict]) -> None:
        verdict = done.result()
        self.judging.discard(node.id)
        search.confirming = False
        self.recorder.record(events.Confirmed(at=time.time(), node=node.id, verdict=verdict,
                                              value=value_of(verdict, search.tree.first_us)), sync=True)
