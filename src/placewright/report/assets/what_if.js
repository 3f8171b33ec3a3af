// The value of a placement under execution model `event`, or which constraint it breaks.
(function (root) {
  "use strict";
  const { Run } = root;

  /** Peak bytes of each device: what is kept, once, plus the most that is alive at one time. */
  function peaksOf(model, run) {
    const changes = model.devices.map(() => []);
    for (const copy of run.copies) {
      if (!(copy.end > copy.start)) continue;
      changes[copy.device].push([copy.start, copy.bytes], [copy.end, -copy.bytes]);
    }
    const peaks = keptBytes(model, run.deviceOf);
    return peaks.map((resident, device) => {
      const sorted = changes[device].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
      let used = 0;
      let most = 0;
      for (const [, bytes] of sorted) {
        used += bytes;
        most = Math.max(most, used);
      }
      return resident + most;
    });
  }

  function keptBytes(model, deviceOf) {
    const { start, indices, bytes } = model.kept;
    const held = new Array(model.nDevices).fill(0);
    for (let entry = 0; entry < bytes.length; entry += 1) {
      const seen = new Set();
      for (let at = start[entry]; at < start[entry + 1]; at += 1) seen.add(deviceOf[indices[at]]);
      for (const device of [...seen].sort((a, b) => a - b)) held[device] += bytes[entry];
    }
    return held;
  }

  /** The first broken constraint of support, pins and colocation, or null. */
  function brokenRule(model, deviceOf) {
    const deviceOfClass = new Map();
    for (let unit = 0; unit < model.nUnits; unit += 1) {
      const device = deviceOf[unit];
      const pinned = model.pins.get(unit);
      if (pinned !== undefined && pinned !== device) {
        return { constraint: "pin", unit, device: pinned };
      }
      if (!Number.isFinite(model.seconds[unit * model.nDevices + device])) {
        return { constraint: "support", unit, device };
      }
      const group = model.classOf[unit];
      if (group < 0) continue;
      if (!deviceOfClass.has(group)) deviceOfClass.set(group, device);
      if (deviceOfClass.get(group) !== device) return { constraint: "colocation", unit, device };
    }
    return null;
  }

  /**
   * Value of a placement.
   *
   * @param model from `eventModel`.
   * @param deviceOf device of each unit.
   * @param order topological order of all units, or null for the model's rule of dispatch.
   * @returns value (Infinity where infeasible), broken (null where feasible), run, peaks.
   */
  function simulate(model, deviceOf, order) {
    const rule = brokenRule(model, deviceOf);
    if (rule) return { value: Infinity, broken: rule, run: null, peaks: null };
    const run = new Run(model, deviceOf, order);
    const last = run.play();
    if (run.cutOff >= 0) {
      const unit = model.tensors.producer[run.cutOff];
      return { value: Infinity, broken: { constraint: "route", unit, device: -1 }, run, peaks: null };
    }
    const peaks = peaksOf(model, run);
    const over = peaks.findIndex((bytes, device) => bytes > model.devices[device].memory);
    if (over >= 0) {
      const excess = peaks[over] - model.devices[over].memory;
      const broken = { constraint: "memory", unit: -1, device: over, excess };
      return { value: Infinity, broken, run, peaks };
    }
    for (const [pool, { bytes, devices, shares }] of model.pools.entries()) {
      const taken = devices.reduce((sum, device, at) => sum + peaks[device] * shares[at], 0);
      if (taken > bytes) {
        const broken = { constraint: "memory", unit: -1, device: -1, pool, excess: taken - bytes };
        return { value: Infinity, broken, run, peaks };
      }
    }
    return { value: last, broken: null, run, peaks };
  }

  /** All units that must move with some: their colocation classes. */
  function withClasses(model, units) {
    const found = new Set(units);
    for (const unit of units) {
      const group = model.classOf[unit];
      if (group >= 0) model.classes[group].forEach((other) => found.add(other));
    }
    return [...found].sort((a, b) => a - b);
  }

  Object.assign(root, { simulate, withClasses });
})((globalThis.placewright = globalThis.placewright || {}));
