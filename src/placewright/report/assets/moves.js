// What if: moves an op or a group, simulates at once, says what it gains or which limit it breaks.
(function (root) {
  "use strict";
  const { eventModel, simulate, withClasses, timeText, bytesText, WAIT } = root;
  const CLOSE = 1e-9; // relative difference to the value from Python that is still rounding

  class WhatIf {
    constructor(state, panel) {
      this.state = state;
      this.panel = panel;
      this.moves = [];
      this.reason = state.data.what_if.why_not ?? "";
      this.output = panel.querySelector("#what-if-value");
      if (this.reason) {
        panel.hidden = true;
        return;
      }
      const select = panel.querySelector("#move-to");
      state.devices.forEach((device, at) => select.append(new Option(device.name, String(at))));
      state.onChange((what) => what === "selected" && this.name());
    }

    /** Laid out when it is needed first, since that takes a moment with a large graph. */
    get model() {
      this.laidOut ??= eventModel(this.state.data.what_if.model);
      return this.laidOut;
    }

    /** The page's own value of the plan, and a warning where it is not Python's. */
    check() {
      if (this.reason) return null;
      const { value } = simulate(this.model, this.state.plan.device, this.model.order);
      const stated = this.state.data.plan.value;
      const difference = Math.abs(value - stated) / Math.max(stated, 1e-300);
      if (!(difference <= CLOSE)) {
        this.output.textContent = `This page's simulation gives ${timeText(value, this.state.unit)} for the plan, `
          + `the plan says ${timeText(stated, this.state.unit)}: do not trust what it says of moves.`;
        this.output.className = "worse";
      }
      return difference;
    }

    chosen() {
      const { selected } = this.state;
      if (selected?.unit !== undefined) return { units: [selected.unit], name: this.state.names[selected.unit] };
      if (selected?.node > 0) return { units: this.state.unitsOf(selected.node), name: this.state.nodeName(selected.node) };
      return null;
    }

    name() {
      const chosen = this.chosen();
      const text = chosen ? `${chosen.name}${chosen.units.length > 1 ? ` (${chosen.units.length} units)` : ""}` : "(choose something first)";
      this.panel.querySelector("#moved-what").textContent = text;
    }

    move() {
      const chosen = this.chosen();
      if (!chosen) return;
      const device = Number(this.panel.querySelector("#move-to").value);
      const units = withClasses(this.model, chosen.units);
      const more = units.length > chosen.units.length ? `, with ${units.length - chosen.units.length} that must share its device` : "";
      this.moves.push({ units, device, text: `${chosen.name}${more} to ${this.state.devices[device].name}` });
      this.show();
    }

    undo() {
      this.moves.pop();
      this.show();
    }

    reset() {
      this.moves = [];
      this.show();
    }

    devices() {
      const deviceOf = this.state.plan.device.slice();
      for (const { units, device } of this.moves) units.forEach((unit) => { deviceOf[unit] = device; });
      return deviceOf;
    }

    /** Value of the plan with its moves, without showing it. */
    value(deviceOf) {
      return simulate(this.model, deviceOf, this.model.order);
    }

    show() {
      const { state } = this;
      const list = this.panel.querySelector("#moves");
      list.replaceChildren(...this.moves.map(({ text }) => Object.assign(document.createElement("li"), { textContent: text })));
      state.movedUnits = new Set(this.moves.flatMap(({ units }) => units));
      if (this.moves.length === 0) {
        this.output.textContent = "";
        state.movedUnits = state.otherMoved;
        state.show(state.plan);
        return;
      }
      const deviceOf = this.devices();
      const result = this.value(deviceOf);
      if (result.broken) {
        this.output.textContent = `Not possible: ${this.brokenText(result.broken)}`;
        this.output.className = "worse";
        state.show(state.plan); // not an earlier what-if
        return;
      }
      const before = state.plan.value;
      const change = before > 0 ? result.value / before - 1 : 0;
      this.output.textContent = `${timeText(result.value, state.unit)} instead of ${timeText(before, state.unit)} `
        + `(${change >= 0 ? "+" : "−"}${Math.abs(change * 100).toFixed(2)}%)`;
      this.output.className = change > 0 ? "worse" : "better";
      state.show(this.view(deviceOf, result));
    }

    brokenText({ constraint, unit, device, pool, excess }) {
      const name = unit >= 0 ? this.state.names[unit] : "graph input";
      const at = device >= 0 ? this.state.devices[device].name : "";
      if (pool !== undefined) return `pool ${this.state.data.pools[pool].name} is ${bytesText(excess)} short of memory`;
      if (constraint === "memory") return `${at} is ${bytesText(excess)} short of memory`;
      if (constraint === "pin") return `${name} is pinned to ${at}`;
      if (constraint === "support") return `${name} cannot run on ${at}`;
      if (constraint === "route") return `the output of ${name} has no link to a device that reads it`;
      return `${name} must share a device with another op`;
    }

    /** A simulated run in the form in which the plan's timeline comes. */
    view(deviceOf, { run, value }) {
      const hops = { tensor: [], source: [], target: [], channel: [], start: [], end: [] };
      run.hops.forEach((hop) => Object.keys(hops).forEach((key) => hops[key].push(hop[key])));
      const n = deviceOf.length;
      const wait = new Array(n).fill(WAIT.none);
      const waitOn = new Array(n).fill(-1);
      const ended = new Map();
      run.end.forEach((time, unit) => ended.set(`${deviceOf[unit]} ${time}`, unit));
      for (let unit = 0; unit < n; unit += 1) {
        if (run.start[unit] === 0) continue;
        const isByHop = run.cause[unit] >= n;
        if (run.causeTime[unit] >= run.start[unit]) {
          wait[unit] = isByHop ? WAIT.hop : WAIT.unit;
          waitOn[unit] = isByHop ? run.cause[unit] - n : run.cause[unit];
        } else {
          const before = ended.get(`${deviceOf[unit]} ${run.start[unit]}`);
          wait[unit] = before === undefined ? WAIT.none : WAIT.stream;
          waitOn[unit] = before ?? -1;
        }
      }
      const lane = this.lanes(deviceOf, run);
      return { value, device: deviceOf, start: run.start, end: run.end, lane, hops, wait, wait_on: waitOn, critical: [], hasTimeline: true };
    }

    lanes(deviceOf, run) {
      const free = this.model.devices.map(({ streams }) => new Array(Math.min(streams, deviceOf.length)).fill(0));
      const lane = new Array(deviceOf.length).fill(0);
      const order = deviceOf.map((_, unit) => unit).sort((a, b) => run.start[a] - run.start[b] || run.end[a] - run.end[b] || a - b);
      for (const unit of order) {
        const ends = free[deviceOf[unit]];
        const at = Math.max(0, ends.findIndex((end) => end <= run.start[unit]));
        ends[at] = run.end[unit];
        lane[unit] = at;
      }
      return lane;
    }
  }

  Object.assign(root, { WhatIf });
})((globalThis.placewright = globalThis.placewright || {}));
