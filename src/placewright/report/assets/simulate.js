// Execution model `event`, time: one placement played from its first unit to its last output.
(function (root) {
  "use strict";
  const { Heap, eventPrecedes, hopSeconds, copySeconds, ranksOf, contentionOf } = root;

  /** One placement through time; `play` fills start, end, hops and copies. */
  class Run {
    constructor(model, deviceOf, order) {
      this.model = model;
      this.deviceOf = deviceOf;
      this.start = new Float64Array(model.nUnits).fill(NaN);
      this.end = new Float64Array(model.nUnits).fill(NaN);
      this.segment = new Int32Array(model.nUnits).fill(-1);
      this.hops = [];
      this.cutOff = -1;
      this.copies = [];
      this.cause = new Int32Array(model.nUnits).fill(-1);  // unit, or nUnits + hop, that came last
      this.causeTime = new Float64Array(model.nUnits).fill(-1);
      this.copyAt = new Map();
      this.busyUntil = new Float64Array(model.link.nChannels);
      this.events = new Heap(eventPrecedes);
      this.running = new Int32Array(model.nDevices);
      this.openSegment = new Int32Array(model.nDevices).fill(-1);
      this.nSegments = 0;
      this.paidIn = new Map();
      this.factor = contentionOf(model, deviceOf);
      this.touched = new Set(model.devices.keys());
      this.prepareUnits(order);
    }

    prepareUnits(order) {
      const { model, deviceOf } = this;
      const { start } = model.tensors.inputsOf;
      this.missing = new Int32Array(model.nUnits);
      for (let unit = 0; unit < model.nUnits; unit += 1) {
        this.missing[unit] = start[unit + 1] - start[unit];
      }
      this.lists = order ? model.devices.map(() => []) : null;
      this.next = new Int32Array(model.nDevices);
      if (order) {
        for (const unit of order) this.lists[deviceOf[unit]].push(unit);
        return;
      }
      this.readySince = new Float64Array(model.nUnits);
      const precedes = this.dispatchOrder();
      this.ready = model.devices.map(() => new Heap(precedes));
      for (let unit = 0; unit < model.nUnits; unit += 1) {
        if (this.missing[unit] === 0) this.ready[deviceOf[unit]].push(unit);
      }
    }

    /** Which of two ready units a device begins first. */
    dispatchOrder() {
      const { readySince } = this;
      if (this.model.dispatch === "fifo") {
        return (a, b) => readySince[a] < readySince[b] || (readySince[a] === readySince[b] && a < b);
      }
      const rank = ranksOf(this.model, this.deviceOf);
      return (a, b) => rank[a] > rank[b] || (rank[a] === rank[b] && a < b);
    }

    /** Until nothing more happens; the time of the last event. */
    play() {
      const { model, events } = this;
      for (let tensor = 0; tensor < model.tensors.n; tensor += 1) {
        if (model.tensors.producer[tensor] < 0) this.handOn(tensor, model.host, 0);
      }
      let now = 0;
      for (;;) {
        while (events.size > 0 && events.first.time === now) {
          const event = events.pop();
          if (event.sending) this.endHop(event.sending, now);
          else this.endUnit(event.unit, now);
        }
        for (const device of [...this.touched].sort((a, b) => a - b)) this.beginUnits(device, now);
        this.touched.clear();
        if (events.size === 0) return now;
        now = events.first.time;
      }
    }

    beginUnits(device, now) {
      while (this.running[device] < this.model.devices[device].streams) {
        const unit = this.nextUnit(device);
        if (unit < 0) return;
        this.begin(unit, device, now);
      }
    }

    nextUnit(device) {
      if (!this.lists) return this.ready[device].size > 0 ? this.ready[device].pop() : -1;
      const list = this.lists[device];
      const at = this.next[device];
      if (at === list.length || this.missing[list[at]] > 0) return -1;
      this.next[device] += 1;
      return list[at];
    }

    begin(unit, device, now) {
      const { model } = this;
      const { outputsOf } = model.tensors;
      let seconds = model.seconds[unit * model.nDevices + device] * this.factor[device];
      seconds += this.segmentSeconds(unit, device);
      this.start[unit] = now;
      this.running[device] += 1;
      for (let at = outputsOf.start[unit]; at < outputsOf.start[unit + 1]; at += 1) {
        this.newCopy(outputsOf.indices[at], device, now);
      }
      this.events.push({ time: now + seconds, unit, tensor: -1, target: -1, sending: null });
    }

    /** Open or join a segment; seconds of its dispatch and of the tensors that enter it. */
    segmentSeconds(unit, device) {
      const { model, deviceOf } = this;
      const { inputsOf, producer } = model.tensors;
      const first = inputsOf.start[unit];
      const stop = inputsOf.start[unit + 1];
      let seconds = 0;
      let isFromElsewhere = false;
      for (let at = first; at < stop; at += 1) {
        const source = producer[inputsOf.indices[at]];
        if (source >= 0 && deviceOf[source] !== device) isFromElsewhere = true;
      }
      if (this.openSegment[device] < 0 || isFromElsewhere) {
        this.openSegment[device] = this.nSegments;
        this.nSegments += 1;
        seconds += model.devices[device].dispatch;
      }
      const segment = this.openSegment[device];
      this.segment[unit] = segment;
      for (let at = first; at < stop; at += 1) {
        seconds += this.cutSeconds(inputsOf.indices[at], device, segment);
      }
      if (this.isReadElsewhere(unit, device)) this.openSegment[device] = -1;
      return seconds + this.sentSeconds(unit, device);
    }

    /** Seconds in which a device copies the outputs of a unit, once to each other device. */
    sentSeconds(unit, device) {
      const { outputsOf, readers } = this.model.tensors;
      let seconds = 0;
      if (!this.model.link.occupied) return seconds;
      for (let at = outputsOf.start[unit]; at < outputsOf.start[unit + 1]; at += 1) {
        const tensor = outputsOf.indices[at];
        const targets = new Set();
        for (let i = readers.start[tensor]; i < readers.start[tensor + 1]; i += 1) {
          targets.add(this.deviceOf[readers.indices[i]]);
        }
        for (const target of targets) seconds += copySeconds(this.model, tensor, device, target, 1);
      }
      return seconds;
    }

    cutSeconds(tensor, device, segment) {
      const { producer, bytes, hasLayout } = this.model.tensors;
      const key = tensor * this.model.nDevices + device;
      const source = producer[tensor];
      if (source < 0 || this.segment[source] === segment) return 0;
      if (this.paidIn.get(key) === segment) return 0;
      const copied = this.paidIn.has(key) ? 0
        : copySeconds(this.model, tensor, this.deviceOf[source], device, 2);
      this.paidIn.set(key, segment);
      const table = this.model.devices[device];
      const cut = table.cut + bytes[tensor] * table.cut_per_byte;
      return copied + cut + (hasLayout[tensor] ? table.layout + bytes[tensor] * table.layout_per_byte : 0);
    }

    isReadElsewhere(unit, device) {
      const { outputsOf, readers } = this.model.tensors;
      for (let at = outputsOf.start[unit]; at < outputsOf.start[unit + 1]; at += 1) {
        const tensor = outputsOf.indices[at];
        for (let i = readers.start[tensor]; i < readers.start[tensor + 1]; i += 1) {
          if (this.deviceOf[readers.indices[i]] !== device) return true;
        }
      }
      return false;
    }

    newCopy(tensor, endpoint, start) {
      const { nEndpoints, nDevices, tensors } = this.model;
      const copy = { device: endpoint, bytes: tensors.bytes[tensor], start, users: 0, end: Infinity };
      if (endpoint < nDevices) this.copies.push(copy);
      this.copyAt.set(tensor * nEndpoints + endpoint, copy);
      return copy;
    }

    release(tensor, endpoint, now) {
      const copy = this.copyAt.get(tensor * this.model.nEndpoints + endpoint);
      copy.users -= 1;
      if (copy.users === 0) copy.end = now;
    }

    endUnit(unit, now) {
      const { outputsOf, inputsOf } = this.model.tensors;
      const device = this.deviceOf[unit];
      this.end[unit] = now;
      this.running[device] -= 1;
      this.touched.add(device);
      for (let at = outputsOf.start[unit]; at < outputsOf.start[unit + 1]; at += 1) {
        this.handOn(outputsOf.indices[at], device, now);
      }
      for (let at = inputsOf.start[unit]; at < inputsOf.start[unit + 1]; at += 1) {
        this.release(inputsOf.indices[at], device, now);
      }
    }

    /** A tensor exists at `source`: readers here have it, others are sent it, the host last. */
    handOn(tensor, source, now) {
      const { model, deviceOf } = this;
      const { readers, isOutput, producer } = model.tensors;
      const here = [];
      const there = new Map();
      for (let at = readers.start[tensor]; at < readers.start[tensor + 1]; at += 1) {
        const reader = readers.indices[at];
        const target = deviceOf[reader];
        if (target === source) here.push(reader);
        else if (there.has(target)) there.get(target).push(reader);
        else there.set(target, [reader]);
      }
      if (isOutput[tensor] && source !== model.host && !there.has(model.host)) {
        there.set(model.host, []);
      }
      const key = tensor * model.nEndpoints + source;
      const copy = this.copyAt.get(key) ?? this.newCopy(tensor, source, now);
      copy.users = here.length + there.size + isOutput[tensor];
      if (copy.users === 0) copy.end = now;
      for (const reader of here) this.arrive(reader, now, producer[tensor]);
      for (const [target, waiting] of there) {
        const route = model.link.route[source * model.nEndpoints + target];
        if (route === 3) {
          this.cutOff = tensor;
          continue;
        }
        const way = route === 1 ? [source, target] : [source, model.host, target];
        this.queue({ tensor, target, way, home: source, readers: waiting }, now);
      }
    }

    queue(sending, now) {
      const { model } = this;
      const { tensor, target, way } = sending;
      const pair = way[0] * model.nEndpoints + way[1];
      const channel = model.link.channel[pair];
      const queues = model.link.queues[pair] === 1;
      const begin = queues ? Math.max(now, this.busyUntil[channel]) : now;
      const end = begin + hopSeconds(model, tensor, way[0], way[1]);
      if (queues) this.busyUntil[channel] = end;
      if (way.length === 2) {
        const stays = target === model.host && model.tensors.isOutput[tensor];
        this.newCopy(tensor, target, begin).users = sending.readers.length + (stays ? 1 : 0);
      }
      sending.hop = this.hops.length;
      this.hops.push({ tensor, source: way[0], target: way[1], channel, start: begin, end });
      const unit = model.tensors.producer[tensor];
      this.events.push({ time: end, unit, tensor, target, sending });
    }

    endHop(sending, now) {
      const [source] = sending.way.splice(0, 1);
      if (source === sending.home) this.release(sending.tensor, source, now);
      if (sending.way.length > 1) {
        this.queue(sending, now);
        return;
      }
      for (const reader of sending.readers) {
        this.arrive(reader, now, this.model.nUnits + sending.hop);
      }
    }

    arrive(unit, now, cause) {
      const device = this.deviceOf[unit];
      this.missing[unit] -= 1;
      if (now > this.causeTime[unit]) {
        this.causeTime[unit] = now;
        this.cause[unit] = cause;
      }
      if (this.missing[unit] > 0) return;
      this.touched.add(device);
      if (!this.ready) return;
      this.readySince[unit] = now;
      this.ready[device].push(unit);
    }
  }

  Object.assign(root, { Run });
})((globalThis.placewright = globalThis.placewright || {}));
