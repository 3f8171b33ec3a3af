"""OpenVINO's throughput mode with samples that OpenVINO refuses, and callers that stop early."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.errors import RuntimeFailure
from placewright.frameworks.openvino.runtime import OpenVinoThroughput

openvino = pytest.importorskip("openvino")

SIZE = 1024
SAMPLE = [np.eye(SIZE, dtype=np.float32)]
N_PRODUCTS = 4


@pytest.fixture(scope="module")
def throughput() -> OpenVinoThroughput:
    """Two requests of a model that takes some time: it multiplies by 2 so many times."""
    return multiplying(SIZE, 2.0, N_PRODUCTS)


def multiplying(size: int, factor: float, n_products: int) -> OpenVinoThroughput:
    """A model that multiplies a square matrix so many times."""
    ops = openvino.opset13
    node = entry = ops.parameter([size, size], np.float32)
    by = ops.constant(factor * np.eye(size, dtype=np.float32))
    for _ in range(n_products):
        node = ops.matmul(node, by, False, False)
    settings = {"NUM_STREAMS": "2", "INFERENCE_NUM_THREADS": "2"}
    model = openvino.Model([node.output(0)], [entry])
    compiled = openvino.Core().compile_model(model, "CPU", settings)
    return OpenVinoThroughput(openvino, compiled, 2)


def is_right(throughput: OpenVinoThroughput) -> bool:
    outputs = [execution.outputs[0] for execution in throughput.run_many([SAMPLE] * 3)]
    return all(np.array_equal(output, 2**N_PRODUCTS * SAMPLE[0]) for output in outputs)


def test_requests_are_free_after_a_sample_that_is_refused(throughput: OpenVinoThroughput) -> None:
    """The request under way must end before the next call uses it."""
    assert throughput.in_flight == 2
    with pytest.raises(RuntimeError, match="shape"):
        throughput.run_many([SAMPLE, [np.zeros((3, 5), dtype=np.float32)]])
    assert is_right(throughput)


def test_requests_are_free_after_a_caller_that_stops_early(throughput: OpenVinoThroughput) -> None:
    outcomes = throughput.outcomes([SAMPLE] * 4)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert is_right(throughput)


def test_transposed_inputs_stay_until_they_were_read() -> None:
    """OpenVINO reads the memory of a copy that nobody else has, while further samples come."""
    throughput = multiplying(128, 1.0, 200)
    rng = np.random.default_rng(0)
    # Whole numbers below 256 are exact in every precision that a processor may choose.
    samples = [[rng.integers(0, 256, (128, 128)).astype(np.float32).T] for _ in range(24)]
    answers = throughput.run_many(samples)
    wrong = [
        at
        for at, (answer, sample) in enumerate(zip(answers, samples, strict=True))
        if not np.array_equal(answer.outputs[0], sample[0])
    ]
    assert wrong == []


def test_a_sample_that_fails_while_it_is_computed_is_told(throughput: OpenVinoThroughput) -> None:
    """OpenVINO calls nothing back for it: waiting for its answer would never end."""
    ops = openvino.opset13
    entry, shape = ops.parameter([6], np.float32), ops.parameter([2], np.int64)
    model = openvino.Model([ops.reshape(entry, shape, False).output(0)], [entry, shape])
    compiled = openvino.Core().compile_model(model, "CPU")
    reshaping = OpenVinoThroughput(openvino, compiled, 2)
    values = np.arange(6, dtype=np.float32)
    good = [values, np.array([2, 3])]
    with pytest.raises(RuntimeFailure, match="throughput mode"):
        reshaping.run_many([good, [values, np.array([4, 5])], good])
    answers = reshaping.run_many([good] * 3)
    assert [answer.outputs[0].shape for answer in answers] == [(2, 3)] * 3
    reshaping.close()
