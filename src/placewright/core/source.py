"""The model behind a graph, with what is needed to find its ops in the model again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from placewright.core.signature import Signature


@dataclass(frozen=True)
class ModelSource:
    """The model behind a graph; plans store it and runtimes use it.

    Attributes:
        path: file or folder, or ``"zoo:NAME"``.
        sha256: hash of the content (of the model file and what it refers to).
        format: of the ops' names; one framework declares that it knows them.
        shapes: input name -> the dimensions that were fixed.
        reader_version: version of the library that read it.
        native_names: op name -> the name that the runtime knows the op by, where they differ.
        options: reader options that change the graph, for example ``{"fold_constants": "no"}``.
        signature: inputs and outputs in the model's own order; None where no runtime can run the
            model, and in files of versions that did not store it.
        state: paths of all parameters and buffers of the PyTorch module that the model was made
            from, those that no op reads among them; empty where there is none.
    """

    path: str
    sha256: str
    format: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reader_version: str = ""
    native_names: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    signature: Signature | None = None
    state: tuple[str, ...] = ()

    def native_name(self, op_name: str) -> str:
        """The name by which the runtime knows an op."""
        return self.native_names.get(op_name, op_name)
