"""The file of published comparisons: fields that the suite reads; others are passed over."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, TypeAdapter
from pydantic import ValidationError as Invalid

from placewright.errors import FileFormatError
from placewright.files.schema import fault_text
from placewright.io.json_text import json_object, read_text
from placewright.io.opened import shown_name

_TEXT = 200  # characters of an error


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Latent(_Read):
    """Sizes of latent attention."""

    q_lora_rank: PositiveInt
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt


class Heads(_Read):
    """Sizes of attention that some layers have instead."""

    kv_heads: PositiveInt
    head_dim: PositiveInt


class Linear(_Read):
    """Sizes of linear attention."""

    key_heads: PositiveInt
    value_heads: PositiveInt
    head_dim: PositiveInt


class Shapes(_Read):
    """Sizes of a model and bits of its weights."""

    hidden: PositiveInt
    layers: int = Field(ge=1, le=1000)
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    ffn: PositiveInt | None = None
    vocab: PositiveInt
    experts: PositiveInt | None = None
    experts_per_token: PositiveInt | None = None
    expert_ffn: PositiveInt | None = None
    shared_experts: int | None = None
    dense_layers: int | None = None
    mla: Latent | None = None
    tied_embeddings: bool = False
    bits_per_weight: PositiveFloat
    embedding_bits: PositiveFloat | None = None
    kv_bits: PositiveFloat = 16
    sliding_window: PositiveInt | None = None
    full_attention_layers: PositiveInt | None = None
    full_attention_every: PositiveInt | None = None
    global_attention: Heads | None = None
    linear_attention: Linear | None = None
    attention_gate: bool = False


class ModelFields(_Read):
    """The model of a comparison."""

    config: Shapes | None = None


class DeviceFields(_Read):
    """A device; rates in GB/s and Tflop/s, memory in GB."""

    id: str
    kind: str
    name: str = ""
    memory_GB: PositiveFloat | None = None
    bandwidth_GBps: PositiveFloat | None = None
    bandwidth_estimate_GBps: PositiveFloat | None = None
    peak_fp16_TFLOPs: PositiveFloat | None = None


class LinkFields(_Read):
    """A way between two devices, in both directions."""

    a: str
    b: str
    GBps: PositiveFloat
    latency_us: PositiveFloat | None = None
    kind: str = ""


class PartFields(_Read):
    """Modules that lie on a device, or a share of each of them."""

    part: str
    layers: str | list[int] = "all"  # first and last one
    experts: float | list[int] | None = None
    device: str
    share: PositiveFloat | None = None
    replica: int | None = None


class StreamFields(_Read):
    """Weights that one device keeps and another copies to compute."""

    what: str
    source: str = Field(alias="from")
    target: str = Field(alias="to")


class PlanFields(_Read):
    """Places of an option's modules."""

    parts: list[PartFields]
    stream: StreamFields | None = None
    concurrency: PositiveInt | None = None
    engine_flags: str | None = None
    replicas: PositiveInt | None = None
    link_kind: str | None = None
    graph_splits: PositiveInt | None = None


class OptionFields(_Read):
    """One side of a comparison; a text instead of a number says how it failed."""

    key: str
    measured: float | str
    plan: PlanFields | None = None

    @property
    def rate(self) -> float:
        """The number that was measured; not a number if the option failed."""
        found = self.measured
        return float(found) if not isinstance(found, str) and found > 0 else math.nan


class Expected(_Read):
    """Options that may be compared."""

    order: list[str] = []
    same_plan: list[list[str]] = []


class PublishedComparison(_Read):
    """Options that one source measured on the same hardware."""

    id: str
    source: str
    engine: str
    model: ModelFields
    devices: list[DeviceFields] = []
    links: list[LinkFields] = []
    phase: str
    context_tokens: PositiveInt | None = None
    batch: int | str | None = None
    unit: str
    higher_is_better: bool
    options: list[OptionFields]
    better_looking_option_lost: bool = False
    usable: bool = False
    expected: Expected | None = None

    @property
    def is_prefill(self) -> bool:
        """True if the prompt was timed."""
        return self.phase.startswith("prefill")


def read_comparisons(path: Path) -> list[PublishedComparison]:
    """The comparisons of a file, a JSON list.

    Raises:
        InputError: the file cannot be read.
        FileFormatError: it is no such list, or a field is missing or wrong.
    """
    text = read_text(path)
    name = shown_name(path)
    if not text.lstrip().startswith("["):
        raise FileFormatError(f"file '{name}' must hold a JSON list of comparisons")
    rows: Any = json_object(f'{{"rows": {text}}}', path)["rows"]
    cleaned = [_cleaned(row) for row in rows]
    try:
        found = TypeAdapter(list[PublishedComparison]).validate_python(cleaned)
    except Invalid as error:
        first = error.errors(include_url=False)[0]
        field = shown_name(".".join(str(part) for part in first["loc"]))
        fault = f"file '{name}': {field}: {fault_text(first)}"
        raise FileFormatError(fault[:_TEXT]) from None
    repeated = {row.id for row in found if sum(other.id == row.id for other in found) > 1}
    if repeated:
        raise FileFormatError(f"file '{name}' has comparison '{sorted(repeated)[0]}' twice")
    return found


def _cleaned(row: Any) -> Any:
    """Prepare a row: a context of 0 tokens is None, and unusable rows lose links and devices."""
    if not isinstance(row, dict):
        return row
    changed = {"context_tokens": row.get("context_tokens") or None}
    if not row.get("usable"):
        changed |= {"links": [], "devices": []}
    return {**row, **changed}
