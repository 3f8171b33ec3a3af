"""The problem of a request to a language model."""

from __future__ import annotations

import json
from dataclasses import replace

from placewright.core.cluster import Cluster
from placewright.core.problem import Problem
from placewright.errors import FieldError, InputError
from placewright.execution.token_work import TokenRequest
from placewright.files.cluster_file import ClusterDocument, cluster_data, cluster_of
from placewright.profiling.catalogue import named_cluster
from placewright.profiling.token_costs import token_problem
from placewright.session.devices import CATALOGUE, catalogue_for
from placewright.session.models import Model
from placewright.session.request import Request

_CLUSTER = "cluster"  # option of the source: the devices, as the file of a cluster has them
_PROMPT, _GENERATE = 512, 128  # tokens, as llama-bench has them
_LEAST_CONTEXT = 4096


def language_problem(read: Model, request: Request) -> Problem:
    """The problem of a request to a language model.

    Raises:
        FieldError: a field does not fit a language model, or devices are missing.
        UnknownNameError: there is no such device.
    """
    assert read.works is not None
    _refuse_others(request)
    cluster = _devices(request)
    for name, size in request.memory.items():
        cluster = cluster.with_limit(name, size)
    work = read.works(asked_tokens(request, read.trained_context))
    text = json.dumps(cluster_data(cluster), separators=(",", ":"))
    source = replace(work.source, options={**work.source.options, _CLUSTER: text})
    return token_problem(replace(work, source=source), cluster)


def asked_tokens(request: Request, trained_context: int = 0) -> TokenRequest:
    """The tokens of a request; the context has room for them, and for 4096 if the model has.

    Raises:
        FieldError: a number is too small, too large, or contradicts another.
    """
    prompt = _PROMPT if request.prompt is None else request.prompt
    generate = _GENERATE if request.generate is None else request.generate
    usual = max(prompt + generate, min(_LEAST_CONTEXT, trained_context or _LEAST_CONTEXT))
    return TokenRequest(
        prompt,
        generate,
        usual if request.context is None else request.context,
        request.micro_batch or 512,
        request.sequences or 1,
        request.kv or "f16",
    )


def _refuse_others(request: Request) -> None:
    """Refuse fields that mean nothing for a language model.

    Raises:
        FieldError: the message names the field.
    """
    model = request.execution_model
    if request.objective != "latency":
        raise FieldError("objective", f"of a language model is latency, got '{request.objective}'")
    if model is not None and getattr(model, "name", model) != "sequential":
        raise FieldError("execution_model", "of a language model is sequential; leave it out")
    if request.precision is not None:
        raise FieldError("precision", "of a language model is that of its file; leave it out")
    if request.evaluator != "simulated":
        raise FieldError("evaluator", "of a language model is simulated; leave it out")


def refuse_tokens(request: Request) -> None:
    """Refuse fields that only language models have.

    Raises:
        FieldError: the message names the field.
    """
    for name in ("prompt", "generate", "context", "micro_batch", "sequences", "kv"):
        if getattr(request, name) is not None:
            raise FieldError(name, f"is of a language model, which '{request.name}' is not")


def _devices(request: Request) -> Cluster:
    names = request.devices
    if names is None and request.cluster is None:
        raise FieldError(
            "devices",
            "are needed for a language model, such as rtx-4090,cpu: names of the catalogue, or a "
            "cluster file with peak and bandwidth",
        )
    if names is None or names.startswith(CATALOGUE):
        found = catalogue_for(names, request.cluster)
        if found is None:
            raise FieldError("cluster", "needs peak and bandwidth for a language model")
        return found
    if request.cluster is not None:
        raise FieldError("devices", "or a cluster, not both")
    return named_cluster([name.strip() for name in names.split(",") if name.strip()])


def is_of_tokens(problem: Problem) -> bool:
    """True if a problem is that of a request to a language model."""
    return problem.source is not None and _CLUSTER in problem.source.options


def physical_cluster(problem: Problem) -> Cluster:
    """The devices behind the columns of a problem."""
    assert problem.source is not None
    return cluster_of(ClusterDocument.model_validate(json.loads(problem.source.options[_CLUSTER])))


def tokens_of(problem: Problem) -> TokenRequest:
    """The request behind a problem.

    Raises:
        InputError: there is none.
    """
    found = None if problem.source is None else TokenRequest.of_options(problem.source.options)
    if found is None:
        raise InputError("this problem is not that of a language model")
    return found
