// The rows of the timeline: streams of devices, then processors that several devices share, then
// channels; each with its items by start.
(function (root) {
  "use strict";

  class Row {
    constructor(label, kind, items, start, end) {
      this.label = label;
      this.kind = kind; // "unit" or "hop"
      this.items = items.sort((a, b) => start[a] - start[b] || end[a] - end[b] || a - b);
      this.start = Float64Array.from(this.items, (item) => start[item]);
      this.end = Float64Array.from(this.items, (item) => end[item]);
      this.until = new Float64Array(this.items.length); // the latest end so far: ascending
      let latest = 0;
      this.end.forEach((time, at) => {
        latest = Math.max(latest, time);
        this.until[at] = latest;
      });
    }

    /** Place of the first item that may end after a time. */
    firstAfter(time) {
      let low = 0;
      let high = this.items.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.until[middle] < time) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    /** Place of the item at a time, or of one within `slack` of it; -1 for none. */
    at(time, slack) {
      let best = -1;
      let distance = slack;
      for (let at = this.firstAfter(time - slack); at < this.items.length; at += 1) {
        if (this.start[at] > time + slack) break;
        const away = Math.max(this.start[at] - time, time - this.end[at], 0);
        if (away < distance || (away === 0 && best < 0)) {
          best = at;
          distance = away;
        }
      }
      return best;
    }
  }

  function timelineRows(state, view, prefix) {
    const rows = [];
    const lanes = state.devices.map(() => []);
    view.device.forEach((device, unit) => {
      const lane = view.lane[unit];
      (lanes[device][lane] ??= []).push(unit);
    });
    state.devices.forEach((device, at) => {
      if (lanes[at].length === 0) lanes[at].push([]);
      lanes[at].forEach((units, lane) => {
        const label = lane === 0 ? prefix + device.name : "";
        rows.push(new Row(label, "unit", units ?? [], view.start, view.end));
      });
    });
    state.data.processors.forEach(({ name, devices }) => {
      const units = devices.flatMap((at) => lanes[at].flat());
      if (new Set(units.map((unit) => view.device[unit])).size < 2) return;
      rows.push(new Row(`${prefix}processor ${name}`, "unit", units, view.start, view.end));
    });
    const channels = view.channels ?? state.plan.channels; // those of another plan may be others
    const hops = channels.map(() => []);
    view.hops.channel.forEach((channel, hop) => hops[channel].push(hop));
    hops.forEach((items, channel) => {
      if (items.length === 0) return;
      rows.push(new Row(prefix + channels[channel], "hop", items, view.hops.start, view.hops.end));
    });
    rows.forEach((row) => {
      const steps = (view.critical ?? []).filter(([isHop]) => Boolean(isHop) === (row.kind === "hop"));
      row.critical = new Set(steps.map(([, at]) => at));
      row.view = view;
    });
    return rows;
  }

  Object.assign(root, { timelineRows });
})((globalThis.placewright = globalThis.placewright || {}));
