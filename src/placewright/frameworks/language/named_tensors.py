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
_INPUTS = ("token_", "position_", "rope_", "per_layer_token_embd")
# Tensors without a number that llama.cpp keeps with the first layer, and with the head.
_OF_FIRST_LAYER = ("token_embd_norm", "per_layer_model_proj", "per_layer_proj_norm")
_OF_HEAD = ("output", "altup_proj", "altup_unembd_proj")
_EXPERTS = re.compile(r"ffn_(up|down|gate|gate_up)_exps")
# Tensors of a layer with experts, by what `writers.llama_cpp` moves together; others of
# `ffn_` are the router's. Those without `ffn_` stay with the layer.
_BESIDE: tuple[tuple[re.Pattern[str], Part], ...] = (
    (_EXPERTS, "experts"),
    (re.compile(r"ffn_(up|down|gate|gate_inp)_(shexp|chexps)"), "shared-experts"),
    (re.compile(r"ffn_(up|down|gate)(/|$)"), "feed-forward"),
)

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
        layers: tensors of each layer by the middle of their names. After a slash stands what is no
            plain weight, such as a bias.

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
        self._head = [t for t in self._tensors.values() if t.name.startswith(_OF_HEAD)]

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
            if not _LAYER.fullmatch(name)
            and name not in known
            and not name.startswith(_OF_FIRST_LAYER)
        ]
        for tensor in others:
            if not tensor.name.startswith(_INPUTS):
                raise Contradiction(
                    f"tensor '{shown_name(tensor.name)}' belongs to no part of a decoder"
                )
        return tuple(map(_weight, [self.embedding, *others]))

    def parts(self) -> tuple[dict[Part, tuple[Weight, ...]], ...]:
        """Weights of each layer by modules."""
        return tuple(_parts(layer) for layer in self.layers)

    def require_whole_layers(self) -> None:
        """Refuse layers that have a tensor without another one that it needs.

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
            if _EXPERTS.fullmatch(name)
        }

    def _by_layer(self) -> list[dict[str, GgufTensor]]:
        found: dict[int, dict[str, GgufTensor]] = {}
        for name, tensor in self._tensors.items():
            number, own = 0, name
            if match := _LAYER.fullmatch(name):
                number, own = int(match[1]), match[2]
            elif not name.startswith(_OF_FIRST_LAYER):
                continue
            layer = found.setdefault(number, {})
            own = own if name.endswith(f"{own}.weight") else f"{own}/{name.rpartition('.')[2]}"
            layer[f"{own}/{len(layer)}" if own in layer else own] = tensor
        if not found:
            raise Contradiction("no tensor has the name of one in a layer")
        if sorted(found) != list(range(len(found))):
            raise Contradiction(f"{len(found)} layers have tensors, and their numbers have gaps")
        if len(found) > _MOST_LAYERS:
            raise Contradiction(f"it has {len(found)} layers; at most {_MOST_LAYERS} are read")
        return [found[number] for number in range(len(found))]


def has_experts(layer: Mapping[str, GgufTensor]) -> bool:
    """True if a layer has routed experts."""
    return any(_EXPERTS.fullmatch(name) for name in layer)


def _parts(layer: Mapping[str, GgufTensor]) -> dict[Part, tuple[Weight, ...]]:
    routes = has_experts(layer)
    found: dict[Part, list[Weight]] = {}
    for name, tensor in layer.items():
        found.setdefault(_part(name, routes), []).append(_weight(tensor))
    return {part: tuple(weights) for part, weights in found.items()}


def _part(name: str, routes: bool) -> Part:
    """The module of a tensor of a layer, by the middle of its name."""
    if not name.startswith("ffn_"):
        return "router" if routes and name.startswith("exp_probs_b") else "attention"
    if not routes:
        return "feed-forward"
    return next((part for pattern, part in _BESIDE if pattern.match(name)), "router")


def _weight(tensor: GgufTensor) -> Weight:
    # biases of experts are stacked, too
    multiplies = len(tensor.shape) > 1 and not tensor.name.endswith(".bias")
    return Weight(tensor.n_elements, tensor.n_bytes, tensor.dtype, multiplies)
