"""`project.toml`: what the user decides. Read strictly, written once; never rewritten where the user edited it."""

from __future__ import annotations

from msgspec import Struct

FORMAT = 1


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the model comes from."""

    source: str
    """`hf:ORG/NAME`, a local transformers folder, `FILE.py`, or `package.module:callable`."""
    weights: str = ""
    """Empty: the source's own. `random`: said out loud. Otherwise a safetensors file or a state dict."""
    dtype: str = ""
    """Empty: as the source has it."""
    attention: str = ""
    """transformers' `attn_implementation`; empty: its default."""
    model_class: str = ""
    """transformers class name; empty: from the config's architectures."""
    arguments: dict[str, bool | int | float | str] = {}
    """Keyword arguments of a factory."""


class InputsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What the model is given."""

    spec: str = ""
    """`text:FILE` or `text:=words`, `image:FILE`, `audio:FILE`, `FILE.safetensors`, `FILE.npz`, `FILE.py:function`;
    empty: the source's own (`sample_inputs`, `get_inputs`), else small inputs made for the model's signature."""
    batch: int = 1


class DeviceConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Where kernels are judged."""

    target: str = "auto"
    """`auto`, `cuda`, `cuda:N` or `host`."""


class ProviderConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Who writes the kernels."""

    name: str = "builtin"
    llm: str = ""


class SearchConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How the search goes."""

    policy: str = "uct"
    iterations: int = 12
    """Candidates per operator."""
    operators: tuple[str, ...] = ()
    """Patterns (`*softmax*`, or a variant key); empty: all offered ones by recoverable time."""
    seed: int | None = None
    """None: an unpredictable one, recorded in the journal."""
    jobs: int = 2
    tune_points: int = 16
    """Most settings tried of one kernel file."""


class BudgetConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """When to stop. Zero: no limit."""

    usd: float = 0.0
    seconds: float = 0.0


class CaptureConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What capture keeps."""

    samples: int = 2
    """Most distinct calls kept of a variant."""
    byte_cap: int = 256 * 1024 * 1024
    """Most bytes of tensors kept over all variants, weights aside."""


class ProjectConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    format: int
    model: ModelConfig
    inputs: InputsConfig = InputsConfig()
    device: DeviceConfig = DeviceConfig()
    provider: ProviderConfig = ProviderConfig()
    search: SearchConfig = SearchConfig()
    budget: BudgetConfig = BudgetConfig()
    capture: CaptureConfig = CaptureConfig()
