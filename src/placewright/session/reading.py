"""Model file or module -> computation graph and model source; one file per source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from placewright.core.graph import ComputationGraph
from placewright.core.source import ModelSource

_NO_SHAPES: Mapping[str, tuple[int, ...]] = {}


def read(
    path: Path | str,
    *,
    shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
    fold_constants: bool = True,
) -> tuple[ComputationGraph, ModelSource]:
    """Read a model of any format that is known here, by its suffix.

    ``.pt2`` is read through ``torch.export``, ``.json`` as a workload of Tarnawski et al. (see
    `files.tarnawski.read_workload`, which also returns its costs), all else through OpenVINO.

    Args:
        path: a file, or a SavedModel folder.
        shapes: input name -> dimensions to fix, where a model leaves them open.
        fold_constants: False keeps constants as ops of their own.

    Raises:
        InputError: there is no such file, or the shapes do not fit.
        FileFormatError: it is not what its name says, or is damaged.
        MissingExtraError: the library that reads it is not installed.
    """
    match Path(path).suffix.lower():
        case ".pt2":
            from placewright.frameworks.torch.reading.inference import read_torch

            return read_torch(path, fold_constants=fold_constants)
        case ".json":
            from placewright.files.tarnawski import read_workload

            problem = read_workload(path)
            assert problem.source is not None
            return problem.graph, problem.source
        case _:
            from placewright.frameworks.openvino.reader import read_openvino

            return read_openvino(path, shapes=shapes, fold_constants=fold_constants)
