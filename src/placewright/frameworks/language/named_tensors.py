"""Tensors with the names of llama.cpp, by layers and modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from placewright.frameworks.language.gguf_file import GgufTensor
from placewright.frameworks.language.modules import Part, Weight
from placewright.io.opened import shown_name

_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)(?:\..*)?")
_MOST_LAYERS = 10_000
_EMBEDDING = "token_embd.weight"
_ATTENTION = ("attn_", "ssm_", "shortconv", "post_attention_norm", "indexer", "time_mix")
EXPERTS = re.compile(r"ffn_\w+_exps")
_SHARED = re.compile(r"ffn_\w+_(shexp|chexps)")
_OF_EXPERT_LAYERS = ("ffn_gate_inp", "exp_probs_b", "ffn_norm", "post_ffw_norm")

# Tensors of a layer -> those of which one must be there, too.
_TOGETHER = (
    (("attn_q", "attn_q_b", "attn_qkv"), ("attn_output", "ssm_out")),
    (("ffn_gate", "ffn_up"), ("ffn_down",)),
    (("ffn_down",), ("ffn_up",)),
    (("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"), ("ffn_down_exps",)),
    (("ffn_down_exps",), ("ffn_up_exps", "ffn_gate_up_exps")),
)


class Contradiction(Exception):
    """A file contradicts itself; its reader puts the file's name before the text."""


class NamedTensors:
    """Tensors of a decoder.

    Args:
        tensors: with the names of llama.cpp.

    Attributes:
        embedding: matrix of the tokens.
        layers: tensors of each layer by the middle of their names, biases after a slash.

    Raises:
        Contradiction: they are no decoder.
    """

    def __init__(self, tensors: Iterable[GgufTensor]) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        if _EMBEDDING not in self._tensors:
            raise Contradiction(
                f"it holds no decoder: '{_EMBEDDING}' or its architecture is missing; give the "
                "file of the language model itself"
            )
        self.embedding = self._tensors[_EMBEDDING]
        if len(self.embedding.shape) != 2:
            raise Contradiction(f"'{_EMBEDDING}' is no matrix")
        self.layers = self._by_layer()
        self._head = [t for t in self._tensors.values() if t.name.startswith("output")]

    @property
    def tied(self) -> bool:
        """True if the head has no matrix of its own."""
        return "output.weight" not in self._tensors

    @property
    def head(self) -> tuple[Weight, ...]:
        """Weights of the last norm and of the output matrix."""
        return tuple(map(_weight, self._head))

    def beside_layers(self) -> tuple[Weight, ...]:
        """Weights of the embedding, its matrix first.

        Raises:
            Contradiction: a tensor belongs to no part of a decoder.
        """
        known = {tensor.name for tensor in (*self._head, self.embedding)}
        others = [
            tensor
            for name, tensor in self._tensors.items()
            if not _LAYER.fullmatch(name) and name not in known
        ]
        for tensor in others:
            if not tensor.name.startswith(("token_", "position_", "rope_", "per_layer_")):
                raise Contradiction(
                    f"tensor '{shown_name(tensor.name)}' belongs to no part of a decoder"
                )
        return tuple(map(_weight, [self.embedding, *others]))

    def parts(self) -> tuple[dict[Part, tuple[Weight, ...]], ...]:
        """Weights of each layer by modules."""
        return tuple(_parts(layer) for layer in self.layers)

    def require_whole_layers(self) -> None:
        """Refuse layers with one of the tensors that each other need.

        Raises:
            Contradiction: the message names the layer and both tensors.
        """
        for number, layer in enumerate(self.layers):
            for some, needed in _TOGETHER:
                there = next((name for name in some if name in layer), None)
                if there is not None and not any(name in layer for name in needed):
                    raise Contradiction(
                        f"layer {number} has '{there}' and no '{needed[0]}'; tensors are missing"
                    )

    def expert_counts(self) -> set[int]:
        """Numbers of experts that layers have; 0 for tensors that do not stack them."""
        return {
            layer[name].shape[-1] if len(layer[name].shape) == 3 else 0
            for layer in self.layers
            for name in layer
            if EXPERTS.fullmatch(name)
        }

    def _by_layer(self) -> list[dict[str, GgufTensor]]:
        found: dict[int, dict[str, GgufTensor]] = {}
        for name, tensor in self._tensors.items():
            if match := _LAYER.fullmatch(name):
                own = f"{match[2]}/bias" if name.endswith(".bias") else match[2]
                layer = found.setdefault(int(match[1]), {})
                layer[f"{own}/{len(layer)}" if own in layer else own] = tensor
        if not found or sorted(found) != list(range(len(found))):
            raise Contradiction(f"{len(found)} layers have tensors, and their numbers have gaps")
        if len(found) > _MOST_LAYERS:
            raise Contradiction(f"it has {len(found)} layers; at most {_MOST_LAYERS} are read")
        return [found[number] for number in range(len(found))]


def has_experts(layer: Mapping[str, GgufTensor]) -> bool:
    """True if a layer has routed experts."""
    return any(EXPERTS.fullmatch(name) for name in layer)


def _parts(layer: Mapping[str, GgufTensor]) -> dict[Part, tuple[Weight, ...]]:
    routes = has_experts(layer)
    found: dict[Part, list[Weight]] = {}
    for name, tensor in layer.items():
        found.setdefault(_part(name, routes), []).append(_weight(tensor))
    return {part: tuple(weights) for part, weights in found.items()}


def _part(name: str, routes: bool) -> Part:
    """The module of a tensor of a layer, by the middle of its name."""
    if name.startswith(_ATTENTION):
        return "attention"
    if not routes:
        return "feed-forward"
    if _SHARED.match(name) or name.startswith("ffn_gate_inp_shexp"):
        return "shared-experts"
    if EXPERTS.match(name):
        return "experts"
    return "router" if name.startswith(_OF_EXPERT_LAYERS) else "feed-forward"


def _weight(tensor: GgufTensor) -> Weight:
    multiplies = len(tensor.shape) > 1
    return Weight(tensor.n_elements, tensor.n_bytes, tensor.dtype, multiplies)
