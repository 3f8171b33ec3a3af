// Execution model `event`, tables: what docs/reference/simulation.md says of devices, links and tensors.
// A second implementation of the simulator in Python, for moves that the reader of a page makes.
(function (root) {
  "use strict";
  const NEVER = Infinity;

  const floats = (values) => Float64Array.from(values, (value) => (value === null ? NEVER : value));

  /** Rows of integers: row i is indices[start[i]] .. indices[start[i + 1] - 1]. */
  function rowsOf(lengths, indices) {
    const start = new Int32Array(lengths.length + 1);
    for (let i = 0; i < lengths.length; i += 1) start[i + 1] = start[i] + lengths[i];
    return { start, indices: Int32Array.from(indices) };
  }

  /** Turn rows of tensors -> units into rows of units -> tensors, each ascending. */
  function transposed(rows, nColumns) {
    const start = new Int32Array(nColumns + 1);
    for (const column of rows.indices) start[column + 1] += 1;
    for (let i = 0; i < nColumns; i += 1) start[i + 1] += start[i];
    const indices = new Int32Array(rows.indices.length);
    const next = start.slice();
    for (let row = 0; row + 1 < rows.start.length; row += 1) {
      for (let at = rows.start[row]; at < rows.start[row + 1]; at += 1) {
        indices[next[rows.indices[at]]++] = row;
      }
    }
    return { start, indices };
  }

  function flags(length, indices) {
    const found = new Uint8Array(length);
    for (const index of indices) found[index] = 1;
    return found;
  }

  /** 0 local, 1 one hop, 2 through the host, 3 no way; shape (endpoints, endpoints). */
  function routesOf(channel, n, host) {
    const route = new Uint8Array(n * n);
    for (let from = 0; from < n; from += 1) {
      for (let to = 0; to < n; to += 1) {
        const through = channel[from * n + host] >= 0 && channel[host * n + to] >= 0;
        if (from === to) route[from * n + to] = 0;
        else if (channel[from * n + to] >= 0) route[from * n + to] = 1;
        else route[from * n + to] = through ? 2 : 3;
      }
    }
    return route;
  }

  function tensorsOf(data, nUnits) {
    const n = data.bytes.length;
    const producer = Int32Array.from(data.producer);
    const readers = rowsOf(data.reader_counts, data.readers);
    const made = Array.from({ length: n }, (_, tensor) => (producer[tensor] < 0 ? 0 : 1));
    const madeBy = rowsOf(made, Array.from(producer).filter((unit) => unit >= 0));
    return {
      n,
      bytes: floats(data.bytes),
      own: data.own_seconds ? floats(data.own_seconds) : null,
      producer,
      readers,
      isOutput: flags(n, data.outputs),
      hasLayout: flags(n, data.layouts),
      inputsOf: transposed(readers, nUnits),
      outputsOf: transposed(madeBy, nUnits),
    };
  }

  function classesOf(groups, nUnits) {
    const classOf = new Int32Array(nUnits).fill(-1);
    groups.forEach((units, index) => units.forEach((unit) => { classOf[unit] = index; }));
    return classOf;
  }

  /** Lay out what a page carries of its problem (`what_if.model`) for the simulation. */
  function eventModel(data) {
    const nUnits = data.n_units;
    const ends = data.endpoints;
    const channel = Int32Array.from(data.links.channel);
    return {
      nUnits,
      nDevices: data.devices.length,
      nEndpoints: ends,
      host: data.host,
      pools: data.pools,
      devices: data.devices.map((device) => ({ ...device, memory: device.memory ?? NEVER })),
      contention: data.contention,
      seconds: floats(data.seconds),
      pins: new Map(data.pins),
      classes: data.classes,
      classOf: classesOf(data.classes, nUnits),
      order: data.order,
      dispatch: data.dispatch,
      topological: Int32Array.from(data.topological),
      tensors: tensorsOf(data.tensors, nUnits),
      kept: { ...rowsOf(data.kept.counts, data.kept.units), bytes: floats(data.kept.bytes) },
      link: {
        latency: floats(data.links.latency),
        perByte: floats(data.links.seconds_per_byte),
        occupied: data.links.occupied,
        copyLatency: floats(data.links.copy_latency),
        copyPerByte: floats(data.links.copy_per_byte),
        channel,
        queues: Uint8Array.from(data.links.queues),
        nChannels: data.links.n_channels,
        route: routesOf(channel, ends, data.host),
      },
    };
  }

  /** Seconds of one hop of a tensor. */
  function hopSeconds(model, tensor, from, to) {
    if (model.tensors.own) return model.tensors.own[tensor];
    const pair = from * model.nEndpoints + to;
    return model.link.latency[pair] + model.tensors.bytes[tensor] * model.link.perByte[pair];
  }

  /** Seconds in which the sender (1) or receiver (2) of a tensor copies it; 0 if it need not. */
  function copySeconds(model, tensor, from, to, who) {
    const { occupied, copyLatency, copyPerByte } = model.link;
    const pair = from * model.nEndpoints + to;
    if (!occupied || !(occupied[pair] & who)) return 0;
    return copyLatency[pair] + model.tensors.bytes[tensor] * copyPerByte[pair];
  }

  /** Seconds of all hops of a tensor between two endpoints. */
  function waySeconds(model, tensor, from, to) {
    const route = model.link.route[from * model.nEndpoints + to];
    if (route === 0) return 0;
    if (route === 1) return hopSeconds(model, tensor, from, to);
    if (route === 3) return NEVER;
    return hopSeconds(model, tensor, from, model.host) + hopSeconds(model, tensor, model.host, to);
  }

  /** Upward ranks with the placement's own costs (Topcuoglu et al. 2002, equation 8). */
  function ranksOf(model, deviceOf) {
    const { readers, outputsOf } = model.tensors;
    const rank = new Float64Array(model.nUnits);
    for (let at = model.nUnits - 1; at >= 0; at -= 1) {
      const unit = model.topological[at];
      let longest = 0;
      for (let i = outputsOf.start[unit]; i < outputsOf.start[unit + 1]; i += 1) {
        const tensor = outputsOf.indices[i];
        for (let j = readers.start[tensor]; j < readers.start[tensor + 1]; j += 1) {
          const reader = readers.indices[j];
          const way = waySeconds(model, tensor, deviceOf[unit], deviceOf[reader]);
          longest = Math.max(longest, rank[reader] + way);
        }
      }
      rank[unit] = model.seconds[unit * model.nDevices + deviceOf[unit]] + longest;
    }
    return rank;
  }

  /** The factor >= 1 of each device for the devices in use of its memory domain. */
  function contentionOf(model, deviceOf) {
    const used = new Set(deviceOf);
    return model.devices.map((device) => {
      const factors = model.contention[device.domain];
      if (!factors) return 1;
      let count = 0;
      model.devices.forEach((other, at) => {
        if (other.domain === device.domain && used.has(at)) count += 1;
      });
      return factors[Math.min(count, factors.length) - 1] ?? 1;
    });
  }

  Object.assign(root, { eventModel, hopSeconds, copySeconds, ranksOf, contentionOf });
})((globalThis.placewright = globalThis.placewright || {}));
