"""The problem of a request to a language model."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from placewright.core.cluster import Cluster
from placewright.core.pools import pools_text
from placewright.core.problem import Problem
from placewright.core.source import CLUSTER
from placewright.errors import FieldError, InputError
from placewright.execution.token_work import MOST_TOKENS, TokenRequest
from placewright.files.cluster_file import ClusterDocument, cluster_data, cluster_of
from placewright.profiling.catalogue import named_cluster
from placewright.profiling.token_costs import token_problem
from placewright.session.devices import CATALOGUE, catalogue_for
from placewright.session.language.kept_rates import kept_engine_cluster
from placewright.session.models import Model
from placewright.session.request import Request

_PROMPT, _GENERATE = 512, 128  # tokens, as llama-bench has them
_LEAST_CONTEXT = 4096
_MICRO_BATCH = 512  # tokens, as llama.cpp has them
_WITHOUT_EFFECT = {  # field -> what to do instead
    "granularity": "its modules move as a whole",
    "state": "its caches stay where their layers are",
    "resident": "its caches stay where their layers are",
    "shapes": "give `prompt`, `generate` and `context`",
    "dispatch": "its modules run one after the other",
    "samples_in_flight": "give `sequences`",
    "runtime": "llama.cpp runs it; export the plan",
    "compiled": "llama.cpp runs it; export the plan",
    "remeasure": "its costs come from data sheets",
}


def language_problem(read: Model, request: Request) -> Problem:
    """The problem of a request to a language model.

    Raises:
        FieldError: a field does not fit a language model, or devices are missing.
        UnknownNameError: there is no such device.
    """
    assert read.works is not None
    cluster = cluster_of_request(request)
    work = read.works(asked_tokens(request, read.trained_context))
    text = json.dumps(cluster_data(cluster), separators=(",", ":"))
    source = replace(work.source, options={**work.source.options, CLUSTER: text})
    return token_problem(replace(work, source=source), cluster)


def cluster_of_request(request: Request) -> Cluster:
    """The devices of a request with their limits; the model need not be read.

    Raises:
        FieldError: a field does not fit a language model, or devices are missing.
        UnknownNameError: there is no such device.
    """
    _refuse_others(request)
    asked_tokens(request)
    cluster = _without_pools(devices_of(request))
    for name, size in request.memory.items():
        cluster = cluster.with_limit(name, size)
    return cluster


def asked_tokens(request: Request, trained_context: int = 0) -> TokenRequest:
    """The tokens of a request; the context has room for them, and for 4096 if the model has.

    Raises:
        FieldError: a number is too small, too large, or contradicts another.
    """
    prompt = _PROMPT if request.prompt is None else request.prompt
    generate = _GENERATE if request.generate is None else request.generate
    if request.context is None and prompt + generate > MOST_TOKENS:
        raise FieldError(
            "prompt", f"and generated tokens are {prompt + generate}; at most {MOST_TOKENS} fit"
        )
    usual = max(prompt + generate, min(_LEAST_CONTEXT, trained_context or _LEAST_CONTEXT))
    return TokenRequest(
        prompt,
        generate,
        usual if request.context is None else request.context,
        _MICRO_BATCH if request.micro_batch is None else request.micro_batch,
        1 if request.sequences is None else request.sequences,
        "f16" if request.kv is None else request.kv,
    )


def _refuse_others(request: Request) -> None:
    """Refuse fields that mean nothing for a language model.

    Raises:
        FieldError: the message names the field.
    """
    model = request.execution_model
    if request.objective not in (None, "latency"):
        raise FieldError("objective", f"of a language model is latency, got '{request.objective}'")
    if request.limits:
        raise FieldError("limits", "of a language model is not known to its programs; leave it out")
    if model is not None and getattr(model, "name", model) != "sequential":
        raise FieldError("execution_model", "of a language model is sequential; leave it out")
    if request.precision is not None:
        raise FieldError("precision", "of a language model is that of its file; leave it out")
    if request.evaluator != "simulated":
        raise FieldError("evaluator", "of a language model is simulated; leave it out")
    usual = {field.name: field.default for field in fields(Request)}
    for name, instead in _WITHOUT_EFFECT.items():
        if getattr(request, name) not in (usual[name], None, {}):
            raise FieldError(name, f"has no effect on a language model; leave it out: {instead}")


def refuse_changes(request: Request) -> None:
    """Refuse fields that a stored problem of a language model does not take.

    Raises:
        FieldError: the message names the field.
    """
    _refuse_others(replace(request, runtime=None))  # a plan brings the one that it names
    if request.memory:
        raise FieldError(
            "memory",
            "of a language model is that of whole devices, and a stored problem has what the "
            "engine's buffers leave of it; give it with the model's file instead",
        )


def refuse_tokens(request: Request) -> None:
    """Refuse fields that only language models have.

    Raises:
        FieldError: the message names the field.
    """
    for name in ("prompt", "generate", "context", "micro_batch", "sequences", "kv"):
        if getattr(request, name) is not None:
            raise FieldError(name, f"is of a language model, which '{request.name}' is not")


def devices_of(request: Request) -> Cluster:
    """The devices of a request, with data sheets.

    Raises:
        FieldError: there are none.
    """
    names = request.devices
    kept = None if request.cluster is not None else _kept_devices(names)
    if kept is not None:
        return kept
    if names is None and request.cluster is None:
        raise FieldError(
            "devices",
            "are needed for a language model, such as rtx-4090,cpu: names of the catalogue, or a "
            "cluster file with peak and bandwidth; or measure those of this machine with "
            "`placewright profile` and argument `engine`",
        )
    if names is None or names.startswith(CATALOGUE):
        found = catalogue_for(names, request.cluster)
        if found is None:
            raise FieldError("cluster", "needs peak and bandwidth for a language model")
        return _with_one_host(found)
    if request.cluster is not None:
        raise FieldError("devices", "or a cluster, not both")
    return _with_one_host(named_cluster([n.strip() for n in names.split(",") if n.strip()]))


def _with_one_host(found: Cluster) -> Cluster:
    """The cluster; an engine has one processor, so that there must be no second.

    Raises:
        FieldError: there are several.
    """
    processors = [device.name for device in found.devices if device.kind == "cpu"]
    if len(processors) > 1:
        raise FieldError(
            "devices",
            f"has processors {' and '.join(processors)}; a language model has one host, so name "
            "one; its memory is argument `memory`",
        )
    return found


def _without_pools(cluster: Cluster) -> Cluster:
    """The cluster; its memory pools are not counted, so that there must be none.

    Raises:
        FieldError: devices share a pool.
    """
    for device in cluster.devices:
        if device.pool is not None:
            raise FieldError(
                "cluster",
                f"has device '{device.name}' in memory pool {pools_text(device.pool)}, which plans "
                "of language models do not count; leave the pool out, and give each device its "
                "part of the bytes, by argument `memory`",
            )
    return cluster


def _kept_devices(names: str | None) -> Cluster | None:
    """Devices that an engine measured on this machine, if all names are theirs."""
    kept = kept_engine_cluster()
    if kept is None or names is None:
        return kept
    asked = [name.strip() for name in names.split(",") if name.strip()]
    if not asked or not set(asked) <= set(kept.device_names):
        return None
    ends = {*asked, kept.host}
    links = tuple(link for link in kept.links if {link.source, link.destination} <= ends)
    return replace(
        kept, devices=tuple(kept.devices[kept.device_index[name]] for name in asked), links=links
    )


def is_of_tokens(problem: Problem) -> bool:
    """True if a problem is that of a request to a language model."""
    is_said = problem.source is not None and CLUSTER in problem.source.options
    return is_said and "embedding" in problem.graph.op_index


def physical_cluster(problem: Problem) -> Cluster:
    """The devices behind the columns of a problem.

    Raises:
        InputError: its file states none that can be read.
    """
    assert problem.source is not None
    try:
        document = json.loads(problem.source.options[CLUSTER])
        return cluster_of(ClusterDocument.model_validate(document))
    except (ValueError, RecursionError) as fault:
        first = next(iter(str(fault).splitlines()), "")
        raise InputError(
            f"the devices of this language model's problem cannot be read ({first:.80}); place it "
            "again"
        ) from None


def tokens_of(problem: Problem) -> TokenRequest:
    """The request behind a problem.

    Raises:
        InputError: there is none, or its numbers are none.
    """
    try:
        found = None if problem.source is None else TokenRequest.of_options(problem.source.options)
    except ValueError:
        found = None
    if found is None:
        raise InputError("this problem is not that of a language model")
    return found
