// What the page shows at the moment: the plan or a what-if of it, what is selected, who listens.
(function (root) {
  "use strict";
  const WAIT = { none: 0, unit: 1, hop: 2, stream: 3, order: 4 };

  class State {
    constructor(data) {
      this.data = data;
      this.unit = data.unit;
      this.names = data.units.names;
      this.devices = data.devices;
      this.plan = { value: data.plan.time, device: data.plan.device, ...(data.plan.timeline || {}) };
      this.plan.hasTimeline = Boolean(data.plan.timeline);
      this.current = this.plan;
      this.selected = null;
      this.listeners = [];
      this.readRows();
      this.indexGraph();
    }

    /** Start of each row of readers, and the tensors that each unit makes and reads. */
    readRows() {
      const { reader_counts: counts, readers, producer } = this.data.graph;
      this.outputs = this.names.map(() => []);
      this.inputs = this.names.map(() => []);
      this.readerStart = new Int32Array(counts.length + 1);
      counts.forEach((count, tensor) => {
        const start = this.readerStart[tensor];
        this.readerStart[tensor + 1] = start + count;
        if (producer[tensor] >= 0) this.outputs[producer[tensor]].push(tensor);
        for (let at = start; at < start + count; at += 1) this.inputs[readers[at]].push(tensor);
      });
    }

    readersOf(tensor) {
      return this.data.graph.readers.slice(this.readerStart[tensor], this.readerStart[tensor + 1]);
    }

    indexGraph() {
      const { parent, unit } = this.data.graph;
      this.nodeOf = new Int32Array(this.names.length);
      this.children = parent.map(() => []);
      unit.forEach((index, node) => {
        if (index >= 0) this.nodeOf[index] = node;
        if (parent[node] >= 0) this.children[parent[node]].push(node);
      });
    }

    unitsOf(node) {
      const found = [];
      const stack = [node];
      while (stack.length > 0) {
        const at = stack.pop();
        if (this.data.graph.unit[at] >= 0) found.push(this.data.graph.unit[at]);
        else stack.push(...this.children[at]);
      }
      return found.sort((a, b) => a - b);
    }

    nodeName(node) {
      const unit = this.data.graph.unit[node];
      return unit >= 0 ? this.names[unit] : this.data.graph.names[node];
    }

    onChange(listener) {
      this.listeners.push(listener);
    }

    tell(what) {
      this.listeners.forEach((listener) => listener(what));
    }

    /** Select {unit}, {hop} or {node}, with a {view} if it is of the other plan; null for nothing. */
    select(selected) {
      this.selected = selected;
      this.tell("selected");
    }

    show(current) {
      this.current = current;
      this.tell("current");
    }

    tensorName(tensor) {
      const unit = this.data.graph.producer[tensor];
      return unit < 0 ? "graph input" : this.names[unit];
    }

    /** Why a unit began no earlier, in words. */
    waitText(view, unit) {
      const kind = view.wait[unit];
      const other = view.wait_on[unit];
      if (kind === WAIT.none) return "waited for nothing";
      if (kind === WAIT.unit) return `waited for its input from ${this.names[other]}`;
      const what = view.device[other] === view.device[unit] ? "device" : "processor";
      if (kind === WAIT.stream) return `its ${what} was busy with ${this.names[other]}`;
      if (kind === WAIT.order) return `the order puts ${this.names[other]} before it`;
      const hops = view.hops;
      const tensor = hops.tensor[other];
      const producer = this.data.graph.producer[tensor];
      const made = producer < 0 ? 0 : view.end[producer];
      const late = hops.start[other] - made;
      const ends = view.endpoints ?? this.plan.endpoints;
      const way = `${ends[hops.source[other]]} → ${ends[hops.target[other]]}`;
      const busy = late > 1e-9 * view.value ? `, whose channel was busy for ${root.timeText(late, this.unit)} before` : "";
      return `waited for the transfer of ${this.tensorName(tensor)} (${way}${busy})`;
    }
  }

  Object.assign(root, { State, WAIT });
})((globalThis.placewright = globalThis.placewright || {}));
