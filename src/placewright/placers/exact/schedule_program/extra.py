"""What makes a unit last longer in the constraint program: overheads of segments, contention."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.placers.exact.schedule_program.variables import Variables


class Extra:
    """What makes a unit last longer than its seconds: overheads of segments, and contention."""

    def __init__(self, program: Variables) -> None:
        self._program = program
        arrays = program.arrays
        self._has_overheads = bool(arrays.dispatch.any() or arrays.has_cuts)
        self._crowds = self._crowded()
        self.is_needed = self._has_overheads or bool(self._crowds)

    def duration(self, unit: int, plain: dict[int, int]) -> Any:
        """A variable that is at least what the unit takes where it is."""
        program = self._program
        literals = program.x[int(program.group_of[unit])]
        duration = program.time()
        program.model.add(duration >= sum(literals[d] * ticks for d, ticks in plain.items()))
        remote = self._reads_remote(unit) if self._has_overheads else None
        overhead = {device: self._overhead_seconds(unit, device) for device in literals}
        if remote is not None:
            longer = [
                literals[device] * (ticks + program.ticks.down(overhead[device]))
                for device, ticks in plain.items()
            ]
            program.model.add(duration >= sum(longer)).only_enforce_if(remote)
        for domain, factor, is_crowded in self._crowds:
            own = {
                device: float(program.arrays.seconds[unit, device]) * factor
                for device in literals
                if program.arrays.domain[device] == domain
            }
            slower = [literals[d] * program.ticks.down(seconds) for d, seconds in own.items()]
            program.model.add(duration >= sum(slower)).only_enforce_if(is_crowded)
            if remote is not None:
                both = [
                    literals[d] * program.ticks.down(seconds + overhead[d])
                    for d, seconds in own.items()
                ]
                program.model.add(duration >= sum(both)).only_enforce_if([is_crowded, remote])
        return duration

    def _reads_remote(self, unit: int) -> Any | None:
        """A literal that is true where a producer is elsewhere; None where none can be."""
        program = self._program
        producers = program.problem.unit_graph.predecessors.row(unit)
        groups = np.unique(program.group_of[producers]).tolist()
        own = int(program.group_of[unit])
        if not [group for group in groups if group != own]:
            return None
        is_remote = program.literal()
        for group in groups:
            for device, there in program.x[group].items():
                here = program.x[own].get(device)
                rest = [here] if here is not None else []
                program.model.add_bool_or([there.negated(), *rest, is_remote])
        return is_remote

    def _overhead_seconds(self, unit: int, device: int) -> float:
        """Of a segment that begins with the unit: dispatch, and each tensor that enters."""
        arrays, graph = self._program.arrays, self._program.problem.unit_graph
        tensors = graph.op_inputs.row(unit)
        made = tensors[arrays.producer[tensors] >= 0]
        made = np.unique(made)
        sizes = arrays.tensor_bytes[made]
        computed = sizes[arrays.has_layout[made]]
        cuts = len(sizes) * arrays.cut[device] + sizes.sum() * arrays.cut_per_byte[device]
        cuts += len(computed) * arrays.layout[device]
        cuts += computed.sum() * arrays.layout_per_byte[device]
        return float(arrays.dispatch[device] + cuts)

    def _crowded(self) -> list[tuple[int, float, Any]]:
        """Memory domain, factor, and a literal: so many or more of its devices are in use."""
        program, crowds = self._program, []
        for domain, factors in enumerate(program.arrays.factors):
            devices = np.flatnonzero(program.arrays.domain == domain).tolist()
            used = {device: program.literal() for device in devices}
            for row in program.x:
                for device in devices:
                    if device in row:
                        program.model.add_implication(row[device], used[device])
            for count in range(1, len(devices) + 1):
                # The least factor from this count on, should factors ever fall.
                factor = float(factors[count : len(devices) + 1].min())
                if factor > 1.0:
                    is_crowded = program.literal()
                    program.model.add(sum(used.values()) <= count - 1).only_enforce_if(
                        is_crowded.negated()
                    )
                    crowds.append((domain, factor, is_crowded))
        return crowds
