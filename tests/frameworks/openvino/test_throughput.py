"""OpenVINO's throughput mode with samples that OpenVINO refuses, and callers that stop early."""

from __future__ import annotations

import numpy as np
import pytest

from placewright.frameworks.openvino.runtime import OpenVinoThroughput

openvino = pytest.importorskip("openvino")

SIZE = 1024
SAMPLE = [np.eye(SIZE, dtype=np.float32)]
N_PRODUCTS = 4


@pytest.fixture(scope="module")
def throughput() -> OpenVinoThroughput:
    """Two requests of a model that takes some time: it multiplies by 2 so many times."""
    ops = openvino.opset13
    node = entry = ops.parameter([SIZE, SIZE], np.float32)
    twice = ops.constant(2 * np.eye(SIZE, dtype=np.float32))
    for _ in range(N_PRODUCTS):
        node = ops.matmul(node, twice, False, False)
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
