"""Transfers of the constraint program: when a tensor leaves, over which channels, who waits."""

from __future__ import annotations

from typing import Any

import numpy as np

from placewright.placers.exact.schedule_program.variables import ChannelUse, Variables
from placewright.simulation.event.arrays import DIRECT, VIA_HOST


def add_transfers(program: Variables) -> None:
    """Every tensor once to each endpoint that needs it and does not have it."""
    arrays, graph = program.arrays, program.problem.unit_graph
    for tensor in range(graph.n_tensors):
        producer = int(arrays.producer[tensor])
        consumers = graph.tensor_consumers.row(tensor).tolist()
        if producer >= 0:
            own = program.group_of[producer]
            consumers = [unit for unit in consumers if program.group_of[unit] != own]
        for target in range(arrays.route.shape[0]):
            is_wanted = target == arrays.host and arrays.is_output[tensor] and producer >= 0
            readers = [unit for unit in consumers if program.on(unit, target) is not None]
            if readers or is_wanted:
                _Delivery(program, tensor, target, readers, bool(is_wanted)).add()


class _Delivery:
    """One tensor to one endpoint, from wherever it is made."""

    def __init__(
        self,
        program: Variables,
        tensor: int,
        target: int,
        readers: list[int],
        is_wanted: bool,
    ) -> None:
        self._program, self._tensor, self._target = program, tensor, target
        self._readers, self._is_wanted = readers, is_wanted
        self._producer = int(program.arrays.producer[tensor])
        self._leaves: Any = None
        self._goes_on: Any = None

    def add(self) -> None:
        """One case for each place where the tensor can be made."""
        arrays = self._program.arrays
        if self._producer < 0:
            if arrays.host != self._target:
                self._from(arrays.host, None)
            return
        literals = self._program.x[int(self._program.group_of[self._producer])]
        for source, made_there in literals.items():
            if source != self._target:
                self._from(source, made_there)

    def _from(self, source: int, made_there: Any) -> None:
        """What holds when the tensor is made at `source`; `made_there` is None where it always is.

        The transfer takes place where the tensor is made there and is wanted here.
        """
        program, route = self._program, self._program.arrays.route[source, self._target]
        given = [] if made_there is None else [made_there]
        if route not in (DIRECT, VIA_HOST):
            for case in self._cases(given):
                program.model.add_bool_or([literal.negated() for literal in case])
            return
        is_sent = self._is_sent(given)
        if route == DIRECT:
            arrival = self._hop(source, self._target, self._made(), self._leaving(), is_sent)
        else:
            host = program.arrays.host
            at_host = self._hop(source, host, self._made(), self._leaving(), is_sent)
            if self._goes_on is None:
                self._goes_on = program.time()
            program.model.add(self._goes_on >= at_host).only_enforce_if(is_sent)
            arrival = self._hop(host, self._target, at_host, self._goes_on, is_sent, True)
        for unit in self._readers:
            case = [*given, program.on(unit, self._target)]
            program.model.add(program.start[unit] >= arrival).only_enforce_if(case)
        if self._is_wanted:
            program.model.add(program.makespan >= arrival).only_enforce_if(given)

    def _cases(self, given: list[Any]) -> list[list[Any]]:
        """Conjunctions of literals, each of which makes the transfer necessary."""
        if self._is_wanted:
            return [given]
        classes = sorted({int(self._program.group_of[unit]) for unit in self._readers})
        return [[*given, self._program.x[group][self._target]] for group in classes]

    def _is_sent(self, given: list[Any]) -> Any:
        cases = self._cases(given)
        if len(cases) == 1 and len(cases[0]) == 1:
            return cases[0][0]
        is_sent = self._program.literal()
        for case in cases:
            self._program.model.add_bool_or([*(one.negated() for one in case), is_sent])
        return is_sent

    def _made(self) -> Any:
        """When the tensor is there: at the end of its producer; a graph input from the start."""
        return self._program.end[self._producer] if self._producer >= 0 else 0

    def _leaving(self) -> Any:
        """When the transfer begins: not before its producer has ended."""
        if self._leaves is None:
            self._leaves = self._program.time()
            if self._producer >= 0:
                self._program.model.add(self._leaves >= self._program.end[self._producer])
        return self._leaves

    def _hop(
        self,
        source: int,
        target: int,
        queued: Any,
        start: Any,
        is_sent: Any,
        is_passed_on: bool = False,
    ) -> Any:
        """Wait from `queued`, occupy a channel from `start`; the arrival."""
        program, arrays = self._program, self._program.arrays
        size = program.ticks.down(self._seconds(source, target))
        if size > 0 and arrays.queues[source, target]:
            made = (self._producer, self._tensor, self._target)
            transfer = ChannelUse(queued, start, size, is_sent, *made, is_passed_on)
            channel = int(arrays.channel[source, target])
            program.channels.setdefault(channel, []).append(transfer)
        return start + size

    def _seconds(self, source: int, target: int) -> float:
        arrays = self._program.arrays
        if len(arrays.own_transfer):
            return float(arrays.own_transfer[self._tensor])
        size = float(arrays.tensor_bytes[self._tensor])
        return float(
            np.asarray(arrays.latency)[source, target]
            + size * np.asarray(arrays.seconds_per_byte)[source, target]
        )
