"""NumPy arrays of OpenVINO's tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.execution.runtime import HostArray


def host_array(values: HostArray, element_type: Any) -> HostArray:
    """Copy what OpenVINO's Python gives as a tensor's array; bfloat16 becomes float32.

    NumPy has no bfloat16. OpenVINO gives its bits under the name of float16.

    Args:
        element_type: of the tensor, an ``openvino.Type``.
    """
    copied = np.array(values)
    if element_type.get_type_name() != "bf16":
        return copied
    bits = copied.view(np.uint16).astype(np.uint32)
    return np.asarray(bits << 16, dtype=np.uint32).view(np.float32)
