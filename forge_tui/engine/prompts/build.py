"""From an ask to the words a writer gets: rules and example first (never changing, cacheable), then the task."""

from __future__ import annotations

from functools import cache
from importlib import resources
from string import Template

from msgspec import Struct

from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.profile import KernelProfile
from forge_tui.cuda.remarks import remarks
from forge_tui.engine.cards import Statistics, Variant
from forge_tui.engine.judge.behaviour import Behaviour
from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.providers.base import Ask, ParentKernel, Tried
from forge_tui.engine.search.strategies import find_strategy
from forge_tui.specs import Dtype, Items, Opaque, TensorSpec, Value

VERSION = "v1"

MAX_PARENT_CHARS = 48_000
"""About 12,000 tokens: three times the longest hand-written kernel file known here."""

MAX_TRIED = 24
"""Lines of history: what is older repeats itself."""

MAX_LOG_CHARS = 3_000

MAX_REMARKS = 8
"""Lines of the parent that the counts have something to say of."""

CUT_SOURCE = "\n/* ... cut here ... */"


PROMPT_TOKENS = 24_000
"""Of a whole prompt, when nobody says otherwise: card, parent and history of a hard operator have 8,000 to 15,000."""

CHARS_PER_TOKEN = 3.0
"""An estimate on the safe side: code has 3 to 3.5 characters a token with the tokenizers of 2024 to 2026."""

MAX_CARD_CHARS = 12_000
"""Of signature and statistics each: a call with hundreds of tensors says the same of all."""


class Prompt(Struct, frozen=True):
    """What a model is sent."""

    system: str
    """The same for every ask of one version: providers may cache it."""
    task: str
    kernel: bool = True
    """Whether the reply is to be a kernel; else it is words."""

    @property
    def text(self) -> str:
        """Both, for providers that know one text only."""
        return f"{self.system}\n\n{self.task}"


def build_prompt(ask: Ask, plan: str = "", budget_tokens: int = PROMPT_TOKENS) -> Prompt:
    """The prompt for one ask. Holds no tensor values beyond the card's statistics and the worst element found.

    plan: an analyst's, in place of the strategy's general one. budget_tokens: card, device and task are always there;
    then the parent, then the history, the most useful first, as far as they fit.
    """
    return _fitted(ask, _template("system.md"), _task(ask, plan), budget_tokens)


def build_analysis(ask: Ask, budget_tokens: int = PROMPT_TOKENS) -> Prompt:
    """What an analyst is asked before a writer writes: the same facts, another task."""
    strategy = find_strategy(ask.strategy)
    plan = f" {strategy.plan}" if strategy else ""
    prompt = _fitted(
        ask,
        _template("analyst.md"),
        f"Name the bottleneck and one plan. Strategy: {ask.strategy}.{plan}",
        budget_tokens,
    )
    return Prompt(prompt.system, prompt.task, kernel=False)


def _fitted(ask: Ask, system: str, what: str, budget_tokens: int) -> Prompt:
    room = int(budget_tokens * CHARS_PER_TOKEN) - len(system) - len(_filled(ask, what, "", ""))
    parent = _parent(ask.parent, ask.origin, max(0, room))
    tried = _tried(ask.tried, max(0, room - len(parent)))
    return Prompt(system, _filled(ask, what, parent, tried).rstrip() + "\n")


def _filled(ask: Ask, what: str, parent: str, tried: str) -> str:
    variant = ask.variant
    modelled = " (modelled)" if ask.time_kind == "modelled" else ""
    return Template(_template("task.md")).substitute(
        operator=variant.operator,
        calls=variant.calls,
        baseline=_baseline(ask),
        floor=f"{variant.floor_us:.4g} us{modelled}",
        megabytes=f"{variant.bytes_moved / 1e6:.4g}",
        signature=_short(_signature(variant), MAX_CARD_CHARS),
        statistics=_short(_statistics(variant), MAX_CARD_CHARS),
        device=_device(ask.device),
        task=what,
        hint=f"\nA person adds: {ask.hint}\n" if ask.hint else "",
        parent=parent,
        tried=tried,
    )


def _short(text: str, most: int, mark: str = "\n... cut here ...") -> str:
    return text if len(text) <= most else text[: max(0, most - len(mark))] + mark


@cache
def _template(name: str) -> str:
    return (resources.files("forge_tui.engine.prompts") / VERSION / name).read_text(encoding="utf-8")


def _baseline(ask: Ask) -> str:
    if ask.time_kind == "modelled":
        return "not timed on this machine (times below are modelled from instruction and memory counts):"
    return f"{ask.variant.time_us:.4g} us"


def _signature(variant: Variant) -> str:
    lines = [f"- {name} = {_value(value)}" for name, value in variant.call.arguments.items()]
    for name, spec in zip(variant.call.output_names(), variant.call.outputs, strict=True):
        alias = variant.call.aliases.get(name)
        lines.append(f"- result {name}: {_value(spec)}" + (f", the memory of `{alias}` itself" if alias else ""))
    return "\n".join(lines)


def _value(value: Value) -> str:
    if isinstance(value, TensorSpec):
        kind = "contiguous" if value.contiguous else f"strides {list(value.stride)}"
        weight = ", a weight" if value.weight else ""
        return f"{value.dtype} tensor of shape {list(value.shape)}, {kind}, aligned to {value.align} bytes{weight}"
    if isinstance(value, Items):
        return "[" + "; ".join(_value(item) for item in value.items) + "]"
    if isinstance(value, Dtype):
        return value.name
    return value.text if isinstance(value, Opaque) else repr(value)


def _statistics(variant: Variant) -> str:
    if not variant.statistics:
        return ""
    return "Values seen:\n" + "\n".join(f"- {name}: {_figures(item)}" for name, item in variant.statistics.items())


def _figures(item: Statistics) -> str:
    parts = [f"{item.minimum:.4g} to {item.maximum:.4g}, mean {item.mean:.4g}, deviation {item.std:.4g}"]
    if item.zeros:
        parts.append(f"{item.zeros:.1%} zeros")
    if item.nonfinite:
        parts.append(f"{item.nonfinite:.1%} infinite or NaN")
    if item.lowest:
        parts.append(f"{item.lowest:.1%} at a mask value")
    return ", ".join(parts)


def _device(device: DeviceFacts) -> str:
    return (
        f"{device.name}, compute capability {device.cc / 10:.1f}: {device.sm_count} SMs at {device.clock_mhz} MHz, "
        f"{device.threads_per_sm} threads, {device.registers_per_sm} registers and {device.shared_per_sm // 1024} KiB "
        f"shared memory each ({device.max_shared // 1024} KiB a block), L2 {device.l2_bytes >> 20} MiB, "
        f"copy bandwidth {device.copy_bytes_per_s / 1e12:.3g} TB/s, an empty launch takes {device.launch_us:g} us."
    )


def _task(ask: Ask, analysis: str = "") -> str:
    if ask.origin == "repair":
        return "Mend the kernel below: keep its idea, correct what failed."
    strategy = find_strategy(ask.strategy)
    lines = [f"Write a new kernel{', starting from the one below' if ask.parent else ''}. Strategy: {ask.strategy}."]
    if strategy is not None:
        lines += [
            f"An analyst says:\n{analysis.strip()}" if analysis.strip() else strategy.plan,
            f"Pitfalls: {strategy.pitfalls}",
        ]
    return "\n".join(lines)


def _parent(parent: ParentKernel | None, origin: str, room: int) -> str:
    """Verdict and source, the source cut to what is left of `room` characters."""
    if parent is None:
        return ""
    title = "The kernel to mend" if origin == "repair" else "The kernel to start from"
    head = f"\n# {title}\n\n{_verdict(parent.verdict)}\n\n```cuda\n"
    left = min(MAX_PARENT_CHARS, room - len(head) - len("\n```\n"))
    return f"{head}{_short(parent.source.rstrip(), max(0, left), CUT_SOURCE)}\n```\n"


def _verdict(verdict: Verdict) -> str:
    lines = [f"Verdict: {verdict.outcome}. {verdict.sentence}"]
    if verdict.timing:
        settings = ", ".join(f"{name}={value}" for name, value in verdict.settings.items())
        lines.append(
            f"{verdict.timing.us:.4g} us ({verdict.timing.kind}) at its best setting {settings}".rstrip() + "."
        )
    timed = sorted((point for point in verdict.points if point.us is not None), key=lambda point: point.us)
    if len(timed) > 1:
        lines.append("Settings: " + "; ".join(f"{_settings(point.settings)}: {point.us:.4g} us" for point in timed[:6]))
    for kernel in timed[0].kernels if timed else ():
        if kernel.registers is not None:
            lines.append(f"`{kernel.name}`: {kernel.registers} registers, {kernel.spill_bytes or 0} bytes spilled.")
    if verdict.behaviour:
        lines.append(_behaviour(verdict.behaviour))
    if verdict.profile and verdict.profile.source == "ncu":
        lines += [_profile(kernel) for kernel in verdict.profile.kernels]
    for count in verdict.counts:
        lines.append(
            f"`{count.kernel}`: {count.blocks} blocks of {count.threads}, {count.warp_instructions} warp "
            f"instructions, {count.global_sectors} sectors for {count.global_bytes} bytes asked, "
            f"{count.shared_waves} shared passes for {count.shared_requests} requests, {count.barriers} barriers."
        )
    kernels = timed[0].kernels if timed else ()
    lines += [f"{remark.text}. Cure: {remark.cure}." for remark in remarks(verdict.counts, kernels)[:MAX_REMARKS]]
    if verdict.worst:
        worst = verdict.worst
        lines.append(
            f"Worst element: {worst.output}{list(worst.index)} is {worst.got:.9g}, expected {worst.expected:.9g}, "
            f"allowed difference {worst.allowed:.3g}."
        )
    if verdict.line is not None:
        lines.append(f"Line {verdict.line} of the file.")
    if verdict.build_log and not verdict.verified:
        lines.append(f"The compiler says:\n{verdict.build_log[:MAX_LOG_CHARS].rstrip()}")
    return "\n".join(lines)


def _behaviour(found: Behaviour) -> str:
    """Occupancy and how full each resource is, as far as it is known."""
    full = ", ".join(
        f"{share:.0%} of {name}"
        for name, share in (
            ("the memory bandwidth (for the bytes that must move)", found.dram),
            ("the instruction issue", found.sm),
            ("the L2 bandwidth", found.l2),
        )
        if share is not None
    )
    return (
        f"Blocks of {found.threads} threads and {found.shared_bytes} bytes of shared memory, occupancy {found.occupancy:.0%}"
        + (f"; it uses {full}." if full else ".")
    )


def _profile(kernel: KernelProfile) -> str:
    """One launch as the profiler saw it: shares of the device's peak, and what its warps wait for."""
    shares = ", ".join(
        f"{name} {percent:.0f} %"
        for name, percent in (
            ("SM", kernel.sm_percent),
            ("DRAM", kernel.dram_percent),
            ("L2", kernel.l2_percent),
            ("achieved occupancy", kernel.occupancy_percent),
        )
        if percent is not None
    )
    stalls = ", ".join(f"{reason} {warps:.1f}" for reason, warps in kernel.stalls[:3])
    return f"Profiled `{kernel.kernel}`: {shares}." + (f" Warps waiting an issue: {stalls}." if stalls else "")


def _settings(settings: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "no tunables"


def _tried(tried: tuple[Tried, ...], room: int) -> str:
    """The most useful lines that fit into `room` characters."""
    begin, end = "\n# Tried so far\n\n", "\n\nDo not repeat these.\n"
    room -= len(begin) + len(end)
    lines: list[str] = []
    for item in tried[:MAX_TRIED]:
        took = f", {item.us:.4g} us" if item.us is not None else ""
        line = f"- {item.strategy}: {item.idea or 'no idea given'} -> {item.outcome}{took}. {item.sentence}".rstrip()
        room -= len(line) + 1
        if room < 0:
            break
        lines.append(line)
    return begin + "\n".join(lines) + end if lines else ""
