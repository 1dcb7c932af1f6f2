"""The contract of those who write kernels: what they are asked, what they answer, how they fail."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from msgspec import Struct

from forge_tui.cuda.device import DeviceFacts
from forge_tui.engine.cards import Variant
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.providers.live import Listener
from forge_tui.engine.search.policy import Move


class ParentKernel(Struct, frozen=True):
    """The kernel to improve, or to repair."""

    node: str
    source: str
    """The whole kernel file."""
    verdict: Verdict
    idea: str = ""


class Tried(Struct, frozen=True):
    """One earlier try, in a line."""

    node: str
    strategy: str
    idea: str
    outcome: str
    """A verdict's outcome, `duplicate`, `no kernel` or `pending`."""
    sentence: str
    us: float | None = None


class Ask(Struct, frozen=True, kw_only=True):
    """One request for one kernel file."""

    id: str
    """File-name safe, unique in the project, the same when asked again after a restart: `VARIANTKEY-NUMBER`."""
    turn: int
    """How many proposals of this operator went to this provider before this one."""
    variant: Variant
    device: DeviceFacts
    time_kind: Literal["device", "modelled"]
    strategy: str
    """A name in `search.strategies`."""
    origin: Literal["search", "repair", "human"] = "search"
    parent: ParentKernel | None = None
    """None: from the operator itself."""
    tried: tuple[Tried, ...] = ()
    """Siblings and lineage, the most useful first."""
    hint: str = ""
    """A person's words."""
    llm: str = ""
    """Which of the provider's language models; empty: its own choice."""


class Reply(Struct, frozen=True, kw_only=True):
    """What came back."""

    source: str | None
    """A kernel file, unchecked."""
    idea: str = ""
    """One line."""
    problem: str = ""
    """What could not be used, exactly; never empty without a source."""
    prompt: str = ""
    """As sent; empty where none was."""
    text: str = ""
    """As received."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    """None: unknown. 0.0: really free."""
    model: str = ""
    reasoning: str = ""
    """What the model showed of its thinking; empty where it showed none."""


class Exhausted(Exception):
    """Signal: this provider has nothing more to offer for the operator."""


class ReplyPending(Exception):
    """Signal: the question is out, the reply is not there yet. Ask again later with the same `Ask.id`."""


class Cancelled(Exception):
    """Signal: `cancel` was set before the reply was complete."""


class Provider(ABC):
    """Who writes kernels.

    Ownership: `Ask` and `Reply` are frozen and hold no open resources. Threads: `propose` is called from several
    threads at once; the other methods from the run's thread only. Asking the same `Ask` twice (a run that was killed)
    must be harmless. Keys never appear in a Reply, in an exception's text or in a log.
    """

    name: ClassVar[str]
    llm: str = ""
    """The model asked, where there is one to name."""
    llms: tuple[str, ...] = ()
    """Models that the run may choose among, where there are several (`Ask.llm`)."""
    deadline_s: float = 600.0
    """Of one `propose`."""
    listener: Listener | None = None
    """Told of replies while they come, by providers whose replies come in pieces."""

    @abstractmethod
    def propose(self, ask: Ask, cancel: threading.Event) -> Reply:
        """Answer, blocking at most `deadline_s`.

        A reply without a usable kernel is a Reply with `problem`, not an error. Raises ProviderError when the provider
        itself failed after its retries, Exhausted, ReplyPending, or Cancelled soon after `cancel` is set.
        """

    def exhausted(self, variant: Variant, turn: int) -> bool:
        """Whether there is nothing to offer at `turn` (see `Ask.turn`). Cheap; may not block."""
        return False

    def why_exhausted(self, variant: Variant) -> str:
        """In a sentence, why there is nothing to offer; empty where nothing more is to be said."""
        return ""

    def fixed_move(self, variant: Variant, turn: int) -> Move | None:
        """What the reply of `turn` will be, where the provider and not the policy decides it. Cheap; may not block."""
        return None

    def close(self) -> None:
        """Release what is held; idempotent."""
