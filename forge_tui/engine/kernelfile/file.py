"""The kernel file: parsed once, then asked whether it takes a call, with which settings, and bound to a program."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.program import Program
from forge_tui.engine.kernelfile.binding import Unfit, bind_launches, bind_workspaces
from forge_tui.engine.kernelfile.evaluation import is_reference, truth, why_false
from forge_tui.engine.kernelfile.expressions import ExpressionError
from forge_tui.engine.kernelfile.facts import C_TYPES, call_tensors, dtype_macro
from forge_tui.engine.kernelfile.names import Names, depends, tuned_names
from forge_tui.engine.kernelfile.plan import Entry, LaunchPlan, Plan, read_plan
from forge_tui.engine.kernelfile.source import Source, inspect
from forge_tui.engine.kernelfile.spread import spread
from forge_tui.errors import KernelFileError
from forge_tui.specs import Call, Items, TensorSpec


def parse(text: str, filename: str) -> KernelFile:
    """Read a kernel file. Raises KernelFileError (`where` is `filename:line`, with a cure) for every refusal."""
    source = inspect(text, filename)
    plan = read_plan(source.plan, source.plan_line, filename)
    for launch in plan.launches:
        _check_kernel(launch, source, filename)
    return KernelFile(text, filename, plan, source)


class KernelFile:
    """One parsed kernel file. Immutable; safe to share between threads."""

    def __init__(self, text: str, filename: str, plan: Plan, source: Source) -> None:
        self.text = text
        self.filename = filename
        self.plan = plan
        self.operator = plan.operator
        self.warnings = (*source.warnings, *_macro_warnings(plan, filename))
        """`FILE:LINE: ...`, for things that are legal and perhaps not meant."""
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        """SHA-256 (hex) of the text: the file's name under `kernels/`."""
        self._kernels = source.kernels
        self._tuned = tuned_names(plan)

    def refusal(self, call: Call, device: DeviceFacts) -> str | None:
        """Why this file does not take this call on this device, or None when it does (some setting is legal)."""
        names, unfit = self._guard(call, device)
        if unfit is not None:
            return unfit.message
        first: Unfit | None = None
        for setting in self.plan.settings:
            reason = self._unfit(names, setting, device)
            if reason is None:
                return None
            first = first or reason
        return self._no_setting(first)

    def points(self, call: Call, device: DeviceFacts, limit: int | None = None) -> list[dict[str, int]]:
        """The legal settings, the plan's first guess first (if it is legal); empty when the file does not take the call.

        With a limit, a deterministic spread over all of them.
        """
        names, unfit = self._guard(call, device)
        if unfit is not None:
            return []
        legal = [dict(setting) for setting in self.plan.settings if self._unfit(names, setting, device) is None]
        return legal if limit is None else spread(legal, limit)

    def bind(self, call: Call, device: DeviceFacts, settings: dict[str, int]) -> Program:
        """The program for one call and one of the plan's settings. Raises KernelFileError, with the plan's line."""
        if settings not in self.plan.settings:
            raise KernelFileError(f"{_shown(settings)} is not a setting of [tune]", where=self._where("tune"),
                                  cure="use one of points(call, device)")
        names, unfit = self._guard(call, device)
        unfit = unfit or self._filtered(names.with_setting(settings))
        if unfit is not None:
            raise self._error(unfit)
        chosen = names.with_setting(settings)
        try:
            workspaces = bind_workspaces(self.plan.workspaces, chosen)
            launches = bind_launches(self.plan.launches, chosen, device, self._kernels)
            macros = (*((name, str(settings[name])) for name in self.plan.tune), *self._defines(chosen), *self._dtypes(call))
        except Unfit as error:
            raise self._error(error) from None
        return Program(
            filename=self.filename, source=self.text, macros=macros, launches=launches, workspaces=workspaces,
            inputs=tuple(name for name, _ in call.tensors()), outputs=tuple(call.output_names()), aliases=dict(call.aliases))

    # -- why not

    def _guard(self, call: Call, device: DeviceFacts) -> tuple[Names, Unfit | None]:
        """Names of the call, and what keeps the file from taking it whatever the setting."""
        names = Names(self.plan, call, device)
        if call.operator != self.operator:
            return names, Unfit(f"this file is for {self.operator}, not {call.operator}", self._line("operator"),
                                "choose a file for that operator")
        for check in (self._hidden(call), self._guards(names), self._lets(names), self._unwritten(call)):
            unfit = next(check, None)
            if unfit is not None:
                return names, unfit
        return names, None

    def _guards(self, names: Names) -> Iterator[Unfit]:
        for entry in self.plan.require:
            if not depends(entry.expression, self._tuned):
                yield from self._false(entry, names)

    def _filtered(self, names: Names) -> Unfit | None:
        for entry in self.plan.require:
            if depends(entry.expression, self._tuned):
                for unfit in self._false(entry, names):
                    return unfit
        return None

    def _false(self, entry: Entry, names: Names) -> Iterator[Unfit]:
        try:
            if not truth(entry.expression, names.lookup):
                yield Unfit(why_false(entry.expression, names.lookup), entry.line,
                            f"the plan's [require] {entry.name} says what this file is for")
        except ExpressionError as error:
            yield Unfit(error.message, entry.line, error.cure)

    def _lets(self, names: Names) -> Iterator[Unfit]:
        for entry in (*self.plan.let, *self.plan.define):
            value = names.values.get(entry.name)
            if isinstance(value, ExpressionError):
                yield Unfit(f"{entry.name}: {value.message}", entry.line, value.cure)

    def _unfit(self, names: Names, setting: dict[str, int], device: DeviceFacts) -> Unfit | None:
        """Why a setting is not legal: filters first, then what the launches themselves say."""
        chosen = names.with_setting(setting)
        unfit = self._filtered(chosen)
        if unfit is not None:
            return unfit
        try:
            self._defines(chosen)
            bind_workspaces(self.plan.workspaces, chosen)
            bind_launches(self.plan.launches, chosen, device, self._kernels)
        except Unfit as error:
            return error
        return None

    def _hidden(self, call: Call) -> Iterator[Unfit]:
        """A name of the plan that stands before a tensor of the call would make `args` ambiguous."""
        own = {name: self._line(f"{table}.{name}") for table, names in
               (("let", [e.name for e in self.plan.let]), ("tune", self.plan.tune), ("define", [e.name for e in self.plan.define]))
               for name in names}
        for name, line in own.items():
            if isinstance(call.arguments.get(name), TensorSpec | Items):
                yield Unfit(f"`{name}` hides the operator's own `{name}`", line, "choose another name")
        for workspace in self.plan.workspaces:
            if workspace.name in call.arguments:
                yield Unfit(f"workspace `{workspace.name}` hides the operator's own `{workspace.name}`", workspace.line,
                            "choose another name")

    def _unwritten(self, call: Call) -> Iterator[Unfit]:
        passed = {argument.expression.text for launch in self.plan.launches for argument in launch.args
                  if argument.kind == "auto" and is_reference(argument.expression)}
        for name, spec in zip(call.output_names(), call.outputs, strict=True):
            if spec.numel and name not in passed and call.aliases.get(name) not in passed:
                yield Unfit(f"no launch gets `{name}`, so nothing writes it", self._line("launch"),
                            f"pass it: args = [..., \"{name}\"]")

    def _no_setting(self, first: Unfit | None) -> str:
        reason = first.message if first else "there is none"
        if not self.plan.tune:
            return reason
        return f"no setting of [tune] fits: with {_shown(self.plan.settings[0])}, {reason}"

    # -- parts of a program

    def _defines(self, names: Names) -> list[tuple[str, str]]:
        found = []
        for entry in self.plan.define:
            value = names.values[entry.name]
            if isinstance(value, ExpressionError):
                raise Unfit(f"{entry.name}: {value.message}", entry.line, value.cure)
            found.append((entry.name, _literal(value)))
        return found

    def _dtypes(self, call: Call) -> list[tuple[str, str]]:
        dtypes = {name: spec.dtype for name, spec in call_tensors(call).items()}
        dtypes.update((workspace.name, workspace.dtype) for workspace in self.plan.workspaces)
        return [(dtype_macro(name), C_TYPES[dtype]) for name, dtype in dtypes.items() if dtype in C_TYPES]

    def _error(self, unfit: Unfit) -> KernelFileError:
        return KernelFileError(unfit.message, where=f"{self.filename}:{unfit.line}", cure=unfit.cure)

    def _line(self, path: str) -> int:
        return self.plan.lines.get(path, 1)

    def _where(self, path: str) -> str:
        return f"{self.filename}:{self._line(path)}"


def _check_kernel(launch: LaunchPlan, source: Source, filename: str) -> None:
    """The launched kernel is there, callable by its plain name, and takes as many arguments."""
    line = launch.lines["kernel"]
    found = [kernel for kernel in source.kernels.get(launch.kernel, []) if kernel.defined]
    if not found:
        there = ", ".join(name for name, kernels in source.kernels.items() if any(k.defined for k in kernels))
        raise KernelFileError(
            f"the plan launches `{launch.kernel}`, and no __global__ function has that name", where=f"{filename}:{line}",
            cure=f"the code has: {there or 'none'}; write extern \"C\" __global__ void {launch.kernel}(...) out, not by a macro")
    if not any(kernel.extern_c for kernel in source.kernels[launch.kernel]):
        raise KernelFileError(f"kernel `{launch.kernel}` is not extern \"C\"", where=f"{filename}:{found[0].line}",
                              cure=f"write extern \"C\" __global__ void {launch.kernel}(...)")
    counts = [None if kernel.parameters is None else len(kernel.parameters) for kernel in found]
    if None not in counts and len(launch.args) not in counts:
        raise KernelFileError(
            f"kernel `{launch.kernel}` takes {counts[0]} arguments (line {found[0].line}) and the plan passes {len(launch.args)}",
            where=f"{filename}:{launch.lines['args']}", cure="make args and parameters agree")


def _macro_warnings(plan: Plan, filename: str) -> tuple[str, ...]:
    names = [(f"tune.{name}", name) for name in plan.tune] + [(f"define.{entry.name}", entry.name) for entry in plan.define]
    return tuple(
        f"{filename}:{plan.lines.get(path, 1)}: macro `{name}` has lower-case letters only and also replaces that word in headers"
        for path, name in names if name == name.lower())


def _literal(value: int) -> str:
    """A macro's text: negative numbers in parentheses, numbers over 32 bits with a suffix."""
    suffix = "" if -2**31 < value < 2**31 else "LL"
    return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"


def _shown(settings: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items()) or "the empty setting"
