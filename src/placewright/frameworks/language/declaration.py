"""Declaration of the reader of language models, which become graphs of modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from placewright.execution.framework import ModelRead, ReadOptions

if TYPE_CHECKING:
    from placewright.frameworks.language.modules import LanguageModel, ModelStep


class LanguageReader:
    """Files of language models, as `execution.framework.ModelReader` describes it."""

    name: ClassVar[str] = "language"
    extra: ClassVar[str] = "language"
    suffixes: ClassVar[tuple[str, ...]] = (".gguf",)
    prefix: ClassVar[str] = "hf:"
    formats: ClassVar[tuple[str, ...]] = ("gguf", "config")

    def read(self, name: str, options: ReadOptions) -> ModelRead:
        """Read a header or a configuration; sizes `tokens` and `context` choose the step."""
        from placewright.core.source import PREDICTING, ModelSource
        from placewright.frameworks.language.modules import modules_graph, step_of
        from placewright.frameworks.language.work import requested_work

        model, sha256, weights = _read(name, options.weights)
        step = step_of(options.shapes, model.trained_context)
        sizes = {"tokens": (step.tokens,), "context": (step.context,)}
        stated = {"weights": weights} if weights else {}
        if model.predicting:
            stated[PREDICTING] = str(model.predicting)
        if options.weights is not None:
            stated |= _stored(name, weights)
        source = ModelSource(
            name, sha256, self.formats[bool(weights)], sizes, options=stated, state=model.state
        )
        plain = replace(source, shapes={})
        return ModelRead(
            modules_graph(model, step),
            source,
            model.facts(step),
            _lines(model, step),
            lambda request: requested_work(model, plain, request),
            model.trained_context,
        )

    def companions(self, path: Path) -> tuple[Path, ...]:
        """The further parts of a GGUF file, known by its name; a damaged file has them, too."""
        from placewright.frameworks.language.gguf_file import later_parts

        return later_parts(path)


def _read(name: str, weights: str | None) -> tuple[LanguageModel, str, str]:
    """The model, a hash of what was read, and the format of weights if the file has none."""
    from placewright.errors import FieldError

    if name.startswith(READER.prefix):
        from placewright.frameworks.language.config_model import read_config

        return read_config(Path(name.removeprefix(READER.prefix)), weights)
    if weights is not None:
        raise FieldError(
            "weights", f"is of a model hf:PATH; each tensor of '{name}' states its own"
        )
    from placewright.frameworks.language.gguf_model import read_gguf

    return (*read_gguf(Path(name)), "")


def _stored(name: str, weights: str) -> dict[str, str]:
    """The option of a source whose own weights have another format than the counted ones."""
    from placewright.core.source import STORED
    from placewright.frameworks.language.config_model import stored_format

    stored = stored_format(Path(name.removeprefix(READER.prefix)))
    return {} if stored in ("", weights) else {STORED: stored}


def _lines(model: LanguageModel, step: ModelStep) -> tuple[str, ...]:
    """Figures of a model as sentences."""
    from placewright.core.quantities import format_bytes
    from placewright.frameworks.language.modules import CACHE_FORMATS

    facts: Mapping[str, float | str] = model.facts(step)
    experts = f", {model.experts_used} of {model.n_experts} experts" if model.n_experts else ""
    active = model.n_active_parameters
    computing = f", {active / 1e9:.3g} billion for a token" if model.n_experts else ""
    growing = sum(cache.elements_per_token for cache in model.caches if not cache.window)
    added = [
        f"{format_bytes(growing * size / block)} as {dtype}"
        for dtype, (block, size) in CACHE_FORMATS.items()
        if dtype in ("f16", "q8_0", "q4_0")
    ]
    return (
        f"architecture {model.architecture}: {len(model.layers)} layers{experts}, "
        f"{model.n_parameters / 1e9:.3g} billion parameters{computing}",
        f"weights take {format_bytes(float(facts['model_bytes']))}; the cache takes "
        f"{format_bytes(float(facts['cache_bytes']))} for {step.context} tokens as f16",
        f"each token adds {', '.join(added)} to the cache of layers without a window",
    )


READER = LanguageReader()
