"""The example inputs of a ``.pt2`` file: a pickle, read as tensors and written anew.

Where PyTorch's restricted unpickler fails, its loader of exported programs takes the full one,
which runs what a pickle names. So the restricted one must succeed here, and PyTorch is then given a
pickle that was written from its result, never the one of the file.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any

from placewright.errors import FileFormatError
from placewright.frameworks.torch.pt2.grammar import identifier
from placewright.io.archives import require_bounded

_DEEPEST = 20
_NUMBERS = (bool, int, float, complex, str, type(None))


def plain_inputs(data: bytes) -> bytes:
    """A new pickle of the tensors and containers in `data`; an empty one stays empty.

    Raises:
        FileFormatError: it holds more than plain tensors, numbers, texts and containers.
    """
    import torch

    if not data:
        return b""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            require_bounded(archive, len(data))
    try:
        inputs = torch.load(io.BytesIO(data), weights_only=True)
    except Exception:  # the unpickler raises many types; each means that this is not plain data
        raise FileFormatError("it is not made of tensors alone") from None
    if not (isinstance(inputs, tuple) and [type(part) for part in inputs] == [tuple, dict]):
        raise FileFormatError("it does not hold the inputs of a call")
    for name in inputs[1]:
        identifier(name)
    _check_plain(inputs, 0)
    buffer = io.BytesIO()
    torch.save(inputs, buffer)
    return buffer.getvalue()


def _check_plain(value: Any, depth: int) -> None:
    import torch

    if depth > _DEEPEST:
        raise FileFormatError(f"its inputs are nested more than {_DEEPEST} deep")
    if type(value) in (tuple, list):
        parts = list(value)
    elif type(value) is dict:
        parts = [*value.keys(), *value.values()]
    elif type(value) in (torch.Tensor, torch.nn.Parameter, *_NUMBERS):
        return
    else:
        raise FileFormatError(f"an input is a {type(value).__name__}, which is no plain tensor")
    for part in parts:
        _check_plain(part, depth + 1)
