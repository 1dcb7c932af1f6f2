"""Cards: what capture knows of each operator variant. Stored as `operators.msgpack`; free of torch."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec
from msgspec import Struct

from forge_tui import __version__
from forge_tui.cuda.device import DeviceFacts
from forge_tui.errors import ProjectError
from forge_tui.specs import Call, Items, TensorSpec, Value
from forge_tui.store.atomic import write_atomic
from forge_tui.store.paths import ProjectPaths

FORMAT = 1


class Statistics(Struct, frozen=True):
    """Values of one input over the captured samples: fresh draws are shaped like it, and prompts show it."""

    minimum: float
    """Over finite values; 0.0 when there are none."""
    maximum: float
    mean: float
    std: float
    zeros: float
    """Fraction of elements equal to zero."""
    nonfinite: float
    """Fraction that is NaN or infinite."""
    integral: bool
    """Every finite value is a whole number."""
    sorted_last: bool
    """Non-decreasing along the last dimension, everywhere."""
    lowest: float = 0.0
    """Fraction of elements at the most negative of a few repeated extreme values (attention masks of about -3.4e38)."""


class Callee(Struct, frozen=True):
    """A class or function of which a region's call is made, and what else the call depends on."""

    path: str
    source: str = ""
    """Digest of its text: another text is another operator. Empty for torch's own."""
    state: tuple[str, ...] = ()
    """Of a module: its parameters, buffers and attributes, in the order of the values in the form."""


class CallForm(Struct, frozen=True):
    """One way the model spells a variant's call, exactly as it was made: what a package recognizes without any binding."""

    function: str
    """Path of the function torch's override protocol reports: `torch.nn.functional.softmax`, `torch.Tensor.add_`. Of regions
    `module:PATH`, `function:PATH`, or the kind of a site with the paths of its callees: `act_mul:torch.nn.modules.activation.SiLU`."""
    positional: tuple[Value, ...]
    keywords: dict[str, Value]
    """In the order given."""
    names: tuple[str, ...]
    """Kernel-file name of each tensor among the arguments, positional ones first, depth first: `input`, `tensors[0]`."""
    callees: tuple[Callee, ...] = ()
    """Of regions."""


ROUTED_US = 10.0
"""CPU time of a call that a package routes to its kernel, at the most: guard, allocation and launch."""


class Variant(Struct, frozen=True):
    """One operator with one set of dtypes, shapes, strides, alignments and other arguments."""

    key: str
    """12 hex digits over the call without weight names; file-name safe and stable between captures."""
    call: Call
    calls: int
    """Calls in one forward of the model."""
    time_us: float
    """Time of one eager call: device time on a GPU, CPU time on `host`."""
    bytes_moved: int
    """Every input read once and every output written once."""
    operations: int
    """Arithmetic operations, by the operator's formula; 0 where none is known."""
    floor_us: float
    """The least the device needs: bytes over copy bandwidth, or its empty-launch time."""
    statistics: dict[str, Statistics]
    """By input tensor name."""
    samples: tuple[str, ...]
    """File names under `captures/`; each holds every tensor input of one call."""
    modules: tuple[str, ...]
    """Qualified names of the modules that make this call; the model itself is the empty string."""
    forms: tuple[CallForm, ...] = ()
    """Every distinct spelling met."""
    covers: dict[str, int] = {}
    """Of a region: calls of other variants that its calls of one forward make, by key, those inside regions in it included. Their
    time is the region's too, and is counted once: `OperatorFile.total_us`, `inside`."""
    offered: bool = True
    """Whether a kernel may replace it."""
    reason: str = ""
    """Why not: `a view moves no data`, `random`, `already at the floor`, ..."""
    inside: int = 0
    """Of `calls`: those that regions which are offered make. A kernel of the region's takes them."""
    taken_by: str = ""
    """The region that makes all of them, if one does: such a variant is not offered, but may be asked for by name."""
    issue_us: float = 0.0
    """CPU time to issue one eager call, where forwards wait for their CPU (`OperatorFile.launch_bound`); 0 elsewhere."""

    @property
    def open_calls(self) -> int:
        """Calls of one forward that a kernel of this operator's would take."""
        return self.calls - self.inside

    @property
    def operator(self) -> str:
        return self.call.operator

    @property
    def recoverable_us(self) -> float:
        """Microseconds a forward would save at the floor."""
        return self.open_calls * self.saving_us

    @property
    def saving_us(self) -> float:
        """Microseconds that a kernel at the floor would save of one call: of the device, or of the CPU that the device waits for."""
        return max(0.0, self.time_us - self.floor_us, self.issue_us - ROUTED_US)


class Skipped(Struct, frozen=True):
    """Calls that cannot be an operator."""

    operator: str
    calls: int
    reason: str


class OperatorFile(Struct, frozen=True):
    """`operators.msgpack`."""

    format: int
    model: str
    """One line: source, class, parameters, dtype."""
    device: DeviceFacts
    time_kind: Literal["device", "cpu"]
    """What `time_us` is: never compared across kinds."""
    forward_us: float
    variants: tuple[Variant, ...]
    """Most recoverable first; those not offered last."""
    skipped: tuple[Skipped, ...]
    torch: str
    """torch's version."""
    captured_at: float = 0.0
    """Unix seconds."""
    launch_bound: bool = False
    """Whether issuing the calls takes the CPU most of a forward, and longer than the device works: it waits for its CPU."""

    def share(self, variant: Variant) -> float:
        """The variant's part of the summed operator time, 0 to 1."""
        total = self.total_us
        return variant.calls * variant.time_us / total if total else 0.0

    def counted(self) -> dict[str, float]:
        """For people who add up: by key the part of all counted time, so that the parts sum to 1. A region's calls are not counted again
        for what is inside it, nor for a region that is not offered: these have 0."""
        parts = {item.key: item.open_calls * item.time_us if item.offered or not item.covers else 0.0 for item in self.variants}
        total = sum(parts.values())
        return {key: part / total if total else 0.0 for key, part in parts.items()}

    @property
    def total_us(self) -> float:
        """Summed operator time of a forward: regions are made of operators that are in the sum already."""
        return sum(item.calls * item.time_us for item in self.variants if not item.covers)

    def find(self, key: str) -> Variant | None:
        return next((variant for variant in self.variants if variant.key == key), None)


def variant_key(call: Call) -> str:
    """The identity of a variant: operator and arguments with weight names left out."""
    # msgpack, not JSON: JSON has no infinity, and a fill of -inf must not be the same call as one of +inf.
    plain = Call(call.operator, {name: _anonymous(value) for name, value in call.arguments.items()},
                 call.outputs, call.aliases)
    return hashlib.sha256(msgspec.msgpack.encode(plain, order="deterministic")).hexdigest()[:12]


def _anonymous(value: Value) -> Value:
    if isinstance(value, TensorSpec):
        return TensorSpec(value.dtype, value.shape, value.stride, value.align)
    if isinstance(value, Items):
        return Items(tuple(_anonymous(item) for item in value.items))
    return value


def save_operators(paths: ProjectPaths, operators: OperatorFile) -> None:
    """Writes `operators.msgpack`. Raises MissingEnvironment."""
    write_atomic(paths.operators, msgspec.msgpack.encode(operators))


def load_operators(paths: ProjectPaths) -> OperatorFile | None:
    """None where nothing was captured yet. Raises ProjectError for a damaged file or one of a newer format."""
    try:
        data = paths.operators.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProjectError(f"cannot be read: {error.strerror}", where=str(paths.operators),
                           cure="make it a file that you may read") from error
    try:
        version = msgspec.msgpack.decode(data, type=_FormatOnly).format
        if version > FORMAT:
            raise ProjectError(f"the cards have format {version}; forge-tui {__version__} reads formats up to {FORMAT}",
                               where=str(paths.operators), cure="use a newer forge-tui: pip install --upgrade forge-tui")
        return msgspec.msgpack.decode(data, type=OperatorFile)
    except msgspec.DecodeError as error:
        raise ProjectError(f"the cards are damaged: {error}", where=str(paths.operators),
                           cure=f"capture again: forge-tui capture {paths.root}") from error


class _FormatOnly(Struct, frozen=True):
    """Read first: what follows may have fields that this version does not know."""

    format: int
