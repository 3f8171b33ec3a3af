"""A builder of computation graphs, op by op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from placewright.core.arrays import Csr, frozen_bools, frozen_floats, frozen_ints
from placewright.core.graph import FORWARD, ComputationGraph, consumers_as_read
from placewright.errors import GraphError


@dataclass
class GraphBuilder:
    """Collects ops, tensors and weights; `build` checks and freezes them.

    >>> builder = GraphBuilder()
    >>> x = builder.add_input(4, shape=(1,), dtype="f32")
    >>> op = builder.add_op("double", "Multiply", inputs=[x], flops=1)
    >>> y = builder.add_tensor(op, 4, shape=(1,), dtype="f32", is_output=True)
    >>> builder.build().n_ops
    1
    """

    _names: list[str] = field(default_factory=list)
    _kinds: list[str] = field(default_factory=list)
    _flops: list[float] = field(default_factory=list)
    _phases: list[int] = field(default_factory=list)
    _modules: list[str] = field(default_factory=list)
    _colocation: list[int] = field(default_factory=list)
    _op_weights: list[list[int]] = field(default_factory=list)
    _weight_bytes: list[float] = field(default_factory=list)
    _weight_dtypes: list[str] = field(default_factory=list)
    _tensor_bytes: list[float] = field(default_factory=list)
    _producers: list[int] = field(default_factory=list)
    _consumers: list[dict[int, None]] = field(default_factory=list)
    _is_output: list[bool] = field(default_factory=list)
    _shapes: list[tuple[int, ...]] = field(default_factory=list)
    _dtypes: list[str] = field(default_factory=list)

    def add_op(
        self,
        name: str,
        kind: str,
        *,
        inputs: Iterable[int] = (),
        flops: float = 0.0,
        phase: int = FORWARD,
        module: str = "",
        colocation: int = -1,
        weights: Iterable[int] = (),
    ) -> int:
        """Add an op, and return its index.

        Args:
            inputs: indices of the tensors that it reads.
            flops, phase, module, colocation: entries of `ComputationGraph`.
            weights: indices of the weights that lie on its device.
        """
        inputs, op = list(inputs), len(self._names)
        if unknown := [t for t in inputs if not 0 <= t < len(self._consumers)]:
            raise GraphError(f"op '{name}' reads tensor {unknown[0]}, which is unknown")
        if colocation < -1:
            raise GraphError(
                f"op '{name}': a colocation class must be >= 0, or -1 for none, got {colocation}"
            )
        self._names.append(name)
        self._kinds.append(kind)
        self._flops.append(float(flops))
        self._phases.append(phase)
        self._modules.append(module)
        self._colocation.append(colocation)
        self._op_weights.append(list(dict.fromkeys(weights)))
        for tensor in inputs:
            self.connect(tensor, op)
        return op

    def add_input(
        self,
        size_bytes: float,
        *,
        shape: Sequence[int] = (),
        dtype: str = "",
        is_output: bool = False,
    ) -> int:
        """Add a graph input of `size_bytes`, and return its tensor index."""
        return self._add_tensor(-1, size_bytes, shape, dtype, is_output)

    def add_tensor(
        self,
        producer: int,
        size_bytes: float,
        *,
        shape: Sequence[int] = (),
        dtype: str = "",
        is_output: bool = False,
    ) -> int:
        """Add an output tensor of op `producer`, and return its tensor index."""
        return self._add_tensor(producer, size_bytes, shape, dtype, is_output)

    def add_weight(self, size_bytes: float, *, dtype: str = "") -> int:
        """Add a weight of `size_bytes` that ops may share, and return its weight index."""
        self._weight_bytes.append(float(size_bytes))
        self._weight_dtypes.append(dtype)
        return len(self._weight_bytes) - 1

    def connect(self, tensor: int, consumer: int) -> None:
        """Let op `consumer` read `tensor` (reading one twice counts once).

        Raises:
            GraphError: there is no such op or tensor.
        """
        if not 0 <= consumer < len(self._names):
            raise GraphError(f"op {consumer}, which reads tensor {tensor}, is unknown")
        if not 0 <= tensor < len(self._consumers):
            raise GraphError(
                f"op '{self._names[consumer]}' reads tensor {tensor}, which is unknown"
            )
        self._consumers[tensor][consumer] = None

    def mark_output(self, tensor: int) -> None:
        """Make `tensor` a graph output.

        Raises:
            GraphError: there is no such tensor.
        """
        if not 0 <= tensor < len(self._is_output):
            raise GraphError(f"tensor {tensor}, a graph output, is unknown")
        self._is_output[tensor] = True

    def build(self, *, as_read: bool = False) -> ComputationGraph:
        """Check the graph, and return it as an immutable one.

        Args:
            as_read: also store the order in which each tensor's consumers were connected, as
                `ComputationGraph.consumers_as_read`.

        Raises:
            GraphError: the ops and tensors are not a valid computation graph.
        """
        rows = [list(row) for row in self._consumers]
        return ComputationGraph(
            op_names=tuple(self._names),
            op_kinds=tuple(self._kinds),
            op_flops=frozen_floats(self._flops),
            op_phases=frozen_ints(self._phases),
            op_modules=tuple(self._modules),
            op_colocation=frozen_ints(self._colocation),
            op_weights=Csr.from_rows(self._op_weights),
            weight_bytes=frozen_floats(self._weight_bytes),
            tensor_bytes=frozen_floats(self._tensor_bytes),
            tensor_producers=frozen_ints(self._producers),
            tensor_consumers=Csr.from_rows([sorted(row) for row in rows]),
            tensor_is_output=frozen_bools(self._is_output),
            tensor_shapes=tuple(self._shapes),
            tensor_dtypes=tuple(self._dtypes),
            consumers_as_read=consumers_as_read(rows) if as_read else None,
            weight_dtypes=tuple(self._weight_dtypes) if any(self._weight_dtypes) else (),
        )

    def _add_tensor(
        self, producer: int, size_bytes: float, shape: Sequence[int], dtype: str, is_output: bool
    ) -> int:
        self._tensor_bytes.append(float(size_bytes))
        self._producers.append(producer)
        self._consumers.append({})
        self._is_output.append(is_output)
        self._shapes.append(tuple(int(extent) for extent in shape))
        self._dtypes.append(dtype)
        return len(self._tensor_bytes) - 1
