"""Bound of the memory that the tensors of a ``.pt2`` file take.

A tensor names its sizes and strides beside a record of raw bytes. With a stride of 0 it repeats its
elements, so that a record of 4 bytes may stand for any number of bytes. Whoever copies or hashes
such a tensor needs all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from placewright.errors import FileFormatError
from placewright.frameworks.torch.pt2.grammar import shown

_MOST_TIMES = 20  # bytes of the tensors of a record that repeat elements, over those of the record
_ALWAYS_BYTES = 64 << 20  # that all tensors of a file together may have beyond these
_MOST_BYTES = 2**63
# Number of a type in the file (``torch._export.serde.schema.ScalarType``) -> bytes of an element.
_ELEMENT_BYTES: Mapping[int, int] = {
    **dict.fromkeys((1, 2, 12, 29, 30, 31, 32, 33), 1),
    **dict.fromkeys((3, 6, 13, 28), 2),
    **dict.fromkeys((4, 7, 9, 34), 4),
    **dict.fromkeys((5, 8, 10, 35), 8),
}
_LARGEST_ELEMENT = 16


def require_bounded_tensors(config: Mapping[str, Any], stored: Mapping[str, int]) -> None:
    """Check that the tensors of a file take hardly more memory than their records.

    Args:
        config: name of each tensor -> its entry, as `pt2.program.checked_tensors` returns it.
        stored: record -> its bytes.

    Raises:
        FileFormatError: a tensor repeats its elements too often.
    """
    left, left_of = _ALWAYS_BYTES, {record: _MOST_TIMES * size for record, size in stored.items()}
    first: dict[str, Any] = {}  # PyTorch takes type and device of a record from its first tensor
    for name, entry in config.items():
        record = entry["path_name"]
        meta = first.setdefault(record, entry["tensor_meta"])
        size = _bytes_of(entry["tensor_meta"]["sizes"], meta["dtype"])
        if size <= stored.get(record, 0) or meta["device"]["type"] == "meta":
            continue
        own = min(size, left_of.get(record, 0))
        left_of[record] = left_of.get(record, 0) - own
        left -= size - own
        if left < 0:
            raise FileFormatError(
                f"tensor {shown(name)} repeats {stored.get(record, 0)} bytes as {size}; export the "
                "model with a tensor that is expanded when it is used"
            )


def _bytes_of(sizes: Iterable[Mapping[str, int]], dtype: int) -> int:
    """Bytes of a tensor; any number above the largest that PyTorch takes is as good as another."""
    size = _ELEMENT_BYTES.get(dtype, _LARGEST_ELEMENT)
    extents = [extent["as_int"] for extent in sizes]
    for extent in extents if 0 not in extents else (0,):
        size *= extent
        if size > _MOST_BYTES:
            break
    return size
