"""Floating-point operations of the usual operators, from their shapes.

Conventions, the same for every reader:

* a multiply-add is two operations (as vendors count peak rates);
* an element-wise function is one operation per element of its output, whatever it computes;
* a softmax is five per element (maximum, subtract, exponential, sum, divide), a normalisation five
  (mean, subtract, square and sum, scale), an affine batch normalisation two;
* pooling and reductions are one per element that they read;
* moving, reshaping or looking up data is none;
* of two branches the more expensive counts, and a body as often as it runs, or once if that is
  known only at run time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

Rule = TypeVar("Rule")
SOFTMAX_PER_ELEMENT = 5
NORMALISATION_PER_ELEMENT = 5
BATCH_NORMALISATION_PER_ELEMENT = 2


def by_operator(operators_of: Mapping[Rule, str]) -> dict[str, Rule]:
    """Operator -> its rule, from a text of all operators of each rule."""
    return {name: rule for rule, names in operators_of.items() for name in names.split()}


def convolution(
    output: Sequence[int], kernel: Sequence[int], inputs_per_group: int, *, bias: bool = False
) -> float:
    """A convolution, grouped or not.

    Args:
        output: shape of the output.
        kernel: spatial extents of the kernel.
        inputs_per_group: input channels that each output channel reads.
        bias: whether one number is added per output element.
    """
    elements = math.prod(output)
    return elements * (2.0 * math.prod(kernel) * inputs_per_group + bias)


def transposed_convolution(
    input_shape: Sequence[int], kernel: Sequence[int], outputs_per_group: int
) -> float:
    """A transposed convolution: every input element is spread over a kernel of each output."""
    return 2.0 * math.prod(input_shape) * math.prod(kernel) * outputs_per_group


def matmul(output: Sequence[int], inner: int) -> float:
    """A (batched) matrix product whose output has shape `output`, contracted over `inner`."""
    return 2.0 * math.prod(output) * inner


def einsum(equation: str, inputs: Sequence[Sequence[int]]) -> float:
    """A multiply-add per combination of all indices, which is exact for two operands."""
    extents: dict[str, int] = {}
    for letters, shape in zip(equation.split("->")[0].split(","), inputs, strict=False):
        before, _, after = letters.replace(" ", "").partition("...")
        # Dimensions in place of the dots are counted from their end, and may be 1 in one operand.
        rest = range(len(shape) - len(before) - len(after), 0, -1)
        for index, extent in zip([*before, *rest, *after], shape, strict=False):
            extents[str(index)] = max(extent, extents.get(str(index), 1))
    return 2.0 * math.prod(extents.values())


def attention(query: Sequence[int], keys: int, value_width: int) -> float:
    """Scaled dot-product attention.

    Args:
        query: shape (..., queries, width).
        value_width: width of the values.
    """
    *batch, queries, width = query
    scores = math.prod(batch) * queries * keys
    # Query times key, scaling, softmax, weights times value.
    return scores * (2.0 * width + 1 + SOFTMAX_PER_ELEMENT + 2.0 * value_width)


def lstm(batch: int, steps: int, inputs: int, hidden: int) -> float:
    """An LSTM layer, one direction: two products with four gates, then the gates' arithmetic.

    Per hidden unit and step: four bias additions, three sigmoids, two tanh, three multiplications
    and one addition.
    """
    products = 2.0 * 4 * hidden * (inputs + hidden)
    return batch * steps * (products + 13.0 * hidden)


def gru(batch: int, steps: int, inputs: int, hidden: int) -> float:
    """A GRU layer, one direction: two products with three gates, then the gates' arithmetic.

    Per hidden unit and step: three bias additions, two sigmoids, one tanh, three multiplications,
    one subtraction and one addition.
    """
    products = 2.0 * 3 * hidden * (inputs + hidden)
    return batch * steps * (products + 11.0 * hidden)


def rnn(batch: int, steps: int, inputs: int, hidden: int) -> float:
    """A plain recurrent layer, one direction: two products, bias and one activation."""
    return batch * steps * (2.0 * hidden * (inputs + hidden) + 2.0 * hidden)


def pooling(output: Sequence[int], kernel: Sequence[int]) -> float:
    """Maximum or average pooling."""
    return float(math.prod(output) * math.prod(kernel))


def elementwise(output: Sequence[int]) -> float:
    """An element-wise function."""
    return float(math.prod(output))


def softmax(output: Sequence[int]) -> float:
    """A softmax or its logarithm."""
    return float(SOFTMAX_PER_ELEMENT * math.prod(output))


def normalisation(output: Sequence[int]) -> float:
    """A layer, instance, group or mean-variance normalisation."""
    return float(NORMALISATION_PER_ELEMENT * math.prod(output))


def batch_normalisation(output: Sequence[int]) -> float:
    """A batch normalisation with fixed statistics: one multiply-add per element."""
    return float(BATCH_NORMALISATION_PER_ELEMENT * math.prod(output))
