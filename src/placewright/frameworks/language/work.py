"""The work that a request makes for each module of a language model, by formats of weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from placewright.core.source import ModelSource
from placewright.errors import FieldError
from placewright.execution.engine.buffers import streaming_buffer
from placewright.execution.token_work import (
    Matrix,
    ModuleWork,
    Pass,
    Product,
    RequestedWork,
    TokenRequest,
)
from placewright.frameworks.language.modules import (
    CACHE_FORMATS,
    Cache,
    LanguageModel,
    ModelStep,
    Part,
    Weight,
    modules_graph,
    whole_cells,
)

# Kernels that llama.cpp starts for a module: nodes of its graph that compute, with fused norms.
_KERNELS: dict[Part, int] = {
    "embedding": 1,
    "attention": 11,
    "feed-forward": 5,
    "router": 7,
    "experts": 6,
    "shared-experts": 5,
    "head": 3,
}
_ACTIVATION_BYTES = 4  # of an element between kernels
_STATES = 2  # hidden states that are alive at once, beside the middle of a module


def requested_work(
    model: LanguageModel, source: ModelSource, request: TokenRequest
) -> RequestedWork:
    """The graph of a request, and the work of its modules.

    Raises:
        FieldError: the context is beyond the model's, or the format of the cache is unknown, or
            does not divide its heads.
    """
    _require(model, request)
    per_sequence = request.prompt + request.generate
    batch = min(request.micro_batch, request.sequences * request.context)  # as engines reserve
    modules = dict(_modules(model))
    activations = {
        name: _activation_bytes(model, *of, batch, request.context) for name, of in modules.items()
    }
    converted = {name: _converted_bytes(request, cache) for name, (_, _, cache) in modules.items()}
    inner = [name for name in modules if name != "head"]
    own = max(activations[name] for name in inner)
    buffers = max(activations[name] + converted[name] for name in inner)
    step = ModelStep(
        request.sequences * per_sequence,
        request.context,
        request.cache,
        request.sequences,
        per_sequence,
        request.sequences * (1 + request.generate),
        max(0.0, activations["head"] - buffers),
        request.micro_batch,
    )
    graph = modules_graph(model, step)
    work = tuple(
        tuple(_work(model, request, pass_, *modules[name]) for pass_ in request.passes)
        for name in graph.op_names
    )
    found = RequestedWork(
        graph,
        replace(source, options={**source.options, **request.options}),
        request,
        work,
        [
            request.sequences
            * modules[name][2].n_bytes(request.context, request.cache, request.micro_batch)
            for name in graph.op_names
        ],
        buffers,
        0.0,
        float(_ACTIVATION_BYTES * batch * _STATES * model.hidden),
        step.scratch_bytes,
        [_matrices(model, *modules[name][:2], batch) for name in graph.op_names],
        [converted[name] for name in graph.op_names],
        buffers - max(own, min(buffers, activations["head"])),
    )
    return replace(found, streamed_bytes=max(0.0, streaming_buffer(found) - buffers))


def _require(model: LanguageModel, request: TokenRequest) -> None:
    """Refuse a request that an engine refuses for this model."""
    if model.trained_context and request.context > model.trained_context:
        raise FieldError(
            "context",
            f"{request.context} tokens is beyond the {model.trained_context} of the model; give "
            "fewer",
        )
    if request.cache not in CACHE_FORMATS:
        raise FieldError("kv", f"is one of {', '.join(CACHE_FORMATS)}, got '{request.cache}'")
    block, _ = CACHE_FORMATS[request.cache]
    if odd := next((cache.head for cache in model.caches if cache.head % block), 0):
        raise FieldError(
            "kv",
            f"is {request.cache}, whose blocks of {block} elements do not divide keys and values "
            f"of {odd}; llama.cpp refuses it, so give f16",
        )


_Module = tuple[Part, Sequence[Weight], Cache]


def _modules(model: LanguageModel) -> Iterator[tuple[str, _Module]]:
    """Name of each op, with what it is made of."""
    yield "embedding", ("embedding", (), Cache())
    for number, layer in enumerate(model.layers):
        for part, weights in layer.items():
            cache = model.caches[number] if part == "attention" else Cache()
            yield f"layers.{number}.{part}", (part, weights, cache)
    head = [*model.head, *(model.embedding[:1] if model.tied else ())]
    yield "head", ("head", head, Cache())


def _work(
    model: LanguageModel,
    request: TokenRequest,
    of: Pass,
    part: Part,
    weights: Sequence[Weight],
    cache: Cache,
) -> ModuleWork:
    tokens = float(of.tokens)
    if part == "head" and of.phase == "prefill":
        tokens = 1.0  # at most: engines compute logits of a prompt's last token only
    touched, rows = 1.0, tokens
    share = model.share_of_experts if part == "experts" else 1.0
    if part == "experts":
        touched = 1.0 - (1.0 - share) ** tokens  # of experts that are drawn uniformly
        rows = tokens * share / touched
    products: dict[str, Product] = {}
    for weight in weights:
        if not weight.multiplies:
            continue
        before = products.get(weight.dtype, Product(weight.dtype, 0.0, 0.0, rows))
        products[weight.dtype] = replace(
            before,
            flops=before.flops + 2.0 * weight.n_elements * tokens * share,
            n_bytes=before.n_bytes + weight.n_bytes * touched,
        )
    read, looked_at = _cache_reads(request, of, cache)
    return ModuleWork(
        tuple(products.values()),
        touched * sum(weight.n_bytes for weight in weights),
        read,
        cache.score_flops * looked_at,
        _KERNELS[part],
        float(_ACTIVATION_BYTES * of.tokens * cache.elements_per_token),
    )


def _cache_reads(request: TokenRequest, of: Pass, cache: Cache) -> tuple[float, float]:
    """Bytes of the cache that a pass moves in all repeats, and pairs of tokens that it compares."""
    block, size = CACHE_FORMATS[request.cache]
    each = cache.elements_per_token * size / block
    state = 2.0 * cache.state_bytes * of.repeats  # read, and written again
    whole = request.prompt // request.micro_batch
    if of.phase == "decode":
        pairs = cache.looked_at(request.generate, request.prompt + request.generate)
        pairs *= of.repeats * of.tokens // request.generate  # sequences of these passes
        return each * pairs + state * of.tokens, float(pairs)
    if of.tokens == request.micro_batch and whole:
        kept = cache.kept_at_ends(request.micro_batch, whole)
        pairs = cache.looked_at(whole * request.micro_batch, whole * request.micro_batch)
    else:
        kept = cache.tokens(request.prompt)
        pairs = cache.looked_at(of.tokens, request.prompt)
    return request.sequences * each * kept + state, float(request.sequences * pairs)


def _activation_bytes(
    model: LanguageModel,
    part: Part,
    weights: Sequence[Weight],
    cache: Cache,
    batch: int,
    context: int,
) -> float:
    """Bytes of activations while a micro-batch passes a module, with the mask of attention.

    Beside the states, what its matrices make is alive. The output matrix of attention makes its
    result where keys were; it is as large as the one of queries, or smaller than a fused one.
    Queries of latent attention are as wide as the latent in each head, and joined with positions
    into a copy (``src/models/deepseek2.cpp``).
    """
    if part == "embedding":
        return 0.0
    if part == "head":
        return float(_ACTIVATION_BYTES * batch * (model.vocabulary + model.hidden))
    share = model.share_of_experts if part == "experts" else 1.0
    sizes = [weight.n_elements * share for weight in weights if weight.multiplies]
    whole, largest = sum(sizes), max(sizes, default=0.0)
    made = max(largest, whole - largest) if part == "attention" else whole
    elements = max(made / model.hidden, cache.absorbed)
    states = _ACTIVATION_BYTES * batch * (_STATES * model.hidden + elements)
    return states + 2.0 * batch * whole_cells(context)


def _converted_bytes(request: TokenRequest, cache: Cache) -> float:
    """Bytes of a module's keys and values in f16, which cards make of other formats.

    Their attention reads no other in prefill (`ggml_cuda_flash_attn_ext_get_alloc_size`; SYCL and
    Metal have such functions, too). Metal makes room for them with f16, too, which is left out.
    Vulkan needs none, but cards of servers do not tell what they are. The processor converts as it
    reads.
    """
    if request.cache == "f16":
        return 0.0
    tokens = replace(cache, state_bytes=0)
    return request.sequences * tokens.n_bytes(request.context, "f16", request.micro_batch)


def _matrices(
    model: LanguageModel, part: Part, weights: Sequence[Weight], batch: int
) -> tuple[Matrix, ...]:
    """The matrices of a module in the order in which llama.cpp multiplies with them.

    The last one of attention is that behind the cache, as large as the one of queries, or smaller
    than one of queries, keys and values. The last one of others makes a state again; a gate of one
    row is left out. A module without any changes the state alone.
    """
    used = model.experts_used if part == "experts" else 1
    share = model.share_of_experts if part == "experts" else 1.0
    found = sorted((w for w in weights if w.multiplies), key=lambda w: -w.n_elements)
    if part == "attention" and len(found) > 2:
        found = [found[0], *found[2:], found[1]]
    elif found and part != "attention":
        found = [weight for weight in found if weight.n_elements * 8 >= found[0].n_elements]
    row = _ACTIVATION_BYTES * batch
    state = float(row * model.hidden * used)
    return tuple(
        Matrix(float(weight.n_bytes), state, row * weight.n_elements * share / model.hidden)
        for weight in found
    ) or (Matrix(0.0, state, state),)
