"""A zoo model as a file that a runtime reads, with the names that the module itself has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from placewright.core.source import ModelSource
from placewright.errors import UnknownNameError

if TYPE_CHECKING:
    from placewright.zoo.model import ZooModel


@dataclass(frozen=True)
class ZooSource:
    """A model that the zoo has built.

    Attributes:
        name: with its variant, as the user gave it.
        built: module, example inputs and names of inputs.
    """

    name: str
    built: ZooModel

    @classmethod
    def named(cls, name: str) -> ZooSource:
        """Build the model of a name such as ``bert_base/tiny``.

        Raises:
            UnknownNameError: the zoo has no such model or variant.
        """
        from placewright import zoo

        known, _, variant = name.partition("/")
        variant = variant or "default"
        if variant not in zoo.variants(known):
            raise UnknownNameError(f"variant of zoo:{known}", variant, zoo.variants(known))
        return cls(name, zoo.build(known, variant=variant))

    def file(self, source_format: str) -> Path:
        """The ``.onnx`` or IR file, converted once and then found again."""
        from placewright import zoo
        from placewright.frameworks.onnxruntime.conversion import onnx_file_of
        from placewright.frameworks.openvino.conversion import openvino_file_of

        built, version = self.built, str(zoo.ZOO_VERSION)
        file_of = onnx_file_of if source_format == "onnx" else openvino_file_of
        return file_of(
            self.name, built.module, built.example_inputs, built.input_names, version=version
        )

    def named_ports(self, source: ModelSource) -> ModelSource:
        """A source by the module's names, whichever file it was read from."""
        from placewright.execution.exported_program import Interface

        n_outputs = 0 if source.signature is None else len(source.signature.outputs)
        outputs = [f"output_{at}" for at in range(n_outputs)] if n_outputs != 1 else ["output"]
        module = self.built.module
        state = [*module.state_dict(), *(name for name, _ in module.named_buffers())]
        names = tuple(self.built.input_names), tuple(outputs), tuple(dict.fromkeys(state))
        return Interface(*names).applied_to(source)
