"""Reads an untrusted `config.json`: bounded sizes, no code, nothing that names another file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placewright.errors import FileFormatError, InputError
from placewright.io.json_text import json_object, read_text
from placewright.io.opened import shown_name

_LARGEST = 4 << 20  # bytes; published ones have up to half a megabyte
_DEEPEST = 8  # objects in objects
_MOST = 1 << 31  # of any size
_COUNTS = re.compile(r"(num|n)_\w+|\w+_(layers|blocks|experts)|n_layer|depth")
_MOST_COUNTED = {"layer": 1000, "block": 1000, "expert": 4096, "": 1 << 20}
_FLOATS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Fields that make the library import code, load kernels, look for files or make objects that no
# decoder needs.
_LEFT_OUT = re.compile(
    r"auto_map|_?attn_implementation\w*|_?experts_implementation\w*|use_kernels?|architectures|"
    r"quantization_config|compression_config|id2label|label2id|num_labels|torch_dtype|dtype|"
    r"_?name_or_path|_commit_hash|pruned_heads|transformers_version|base_model_\w+|custom_\w+|"
    r"torchscript|return_dict|use_cache|output_\w+|_\w+"
)


class ConfigFile:
    """A configuration, checked.

    Args:
        path: of the file, or of the folder that holds it.

    Attributes:
        model_type: as the library names the architecture.
        fields: what the library is given.
        dtype: format of the stored weights, for example ``"bf16"``.
        is_quantized: the stored weights have another format, which only their files show.
        sha256: of the text.

    Raises:
        InputError: there is no such file.
        FileFormatError: it is no configuration, or states sizes that no model has.
    """

    def __init__(self, path: Path) -> None:
        file = path / "config.json" if path.is_dir() else path
        if not file.exists():
            raise InputError(f"folder '{shown_name(path)}' holds no config.json")
        self._name = shown_name(file)
        text = read_text(file, limit=_LARGEST)
        self.sha256 = hashlib.sha256(text.encode()).hexdigest()
        raw = json_object(text, file)
        model_type = raw.get("model_type")
        if not isinstance(model_type, str) or not re.fullmatch(r"[\w.-]{1,64}", model_type):
            raise self.fault("it has no 'model_type'; give the config.json of a language model")
        self.model_type = model_type
        self.fields = self._checked(raw, 0)
        self.dtype = self._dtype(raw)
        own = raw.get("text_config")
        inner = own if isinstance(own, dict) else {}
        self.is_quantized = any("quantization_config" in content for content in (raw, inner))

    def fault(self, text: str) -> FileFormatError:
        """An error about this file."""
        return FileFormatError(f"file '{self._name}': {text}")

    def _dtype(self, raw: Mapping[str, Any]) -> str:
        found = {raw[key] for key in ("dtype", "torch_dtype") if isinstance(raw.get(key), str)}
        if len(found) > 1:
            raise self.fault(f"it states two formats: dtype {raw['dtype']!r:.40} and torch_dtype "
                             f"{raw['torch_dtype']!r:.40}; remove one")  # fmt: skip
        inner = raw.get("text_config")
        if not found and isinstance(inner, dict):
            return self._dtype({**inner, "text_config": None})
        return _FLOATS.get(str(next(iter(found), "")).removeprefix("torch."), "bf16")

    def _checked(self, raw: Mapping[str, Any], depth: int) -> dict[str, Any]:
        if depth > _DEEPEST:
            raise self.fault(f"it nests more than {_DEEPEST} objects")
        found = {}
        for key, value in raw.items():
            if not key.isidentifier() or _LEFT_OUT.fullmatch(key):
                continue
            self._require_size(key, value)
            found[key] = self._checked(value, depth + 1) if isinstance(value, dict) else value
        return found

    def _require_size(self, key: str, value: Any) -> None:
        """Refuse numbers that would make the library count for hours."""
        if isinstance(value, bool) or not isinstance(value, int):
            return
        most = _MOST
        if _COUNTS.fullmatch(key):
            most = next(most for part, most in _MOST_COUNTED.items() if part in key)
        if not -most <= value <= most:
            raise self.fault(f"'{shown_name(key)}' is {value}; at most {most} is read")
