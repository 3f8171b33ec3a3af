// What is known of the op, transfer or group that is selected, with ways to its neighbours.
(function (root) {
  "use strict";
  const { timeText, bytesText, counted } = root;
  const MOST = 12;

  const line = (text) => Object.assign(document.createElement("p"), { textContent: text });

  class Details {
    constructor(state, panel, live) {
      this.state = state;
      this.panel = panel;
      this.live = live;
      state.onChange(() => this.draw());
    }

    draw() {
      const { selected } = this.state;
      if (!selected) return;
      const parts = selected.unit !== undefined ? this.ofUnit(selected.unit)
        : selected.hop !== undefined ? [line(selected.text)] : this.ofGroup(selected.node);
      this.panel.replaceChildren(...parts);
      this.panel.classList.add("chosen");
      this.live.textContent = parts[0].textContent;
    }

    /** The placement that the selection is of. */
    view() {
      return this.state.selected.view ?? this.state.current;
    }

    ofUnit(unit) {
      const { state } = this;
      const { data } = state;
      const current = this.view();
      const kind = data.units.kinds[data.units.kind[unit]];
      const device = state.devices[current.device[unit]].name;
      const ops = data.units.ops ? `, ${counted(data.units.ops[unit], "op")}` : "";
      const parts = [line(`${state.names[unit]}: ${kind} on ${device}${ops}`)];
      if (current.hasTimeline) {
        const [start, end] = [current.start[unit], current.end[unit]];
        const times = `${timeText(start, state.unit)} to ${timeText(end, state.unit)}, ${timeText(end - start, state.unit)}`;
        parts.push(line(`${times}; ${state.waitText(current, unit)}`));
      }
      parts.push(this.neighbours("Reads", state.inputs[unit], (tensor) => [data.graph.producer[tensor]]));
      parts.push(this.neighbours("Read by", state.outputs[unit], (tensor) => state.readersOf(tensor)));
      return parts;
    }

    neighbours(title, tensors, unitsOf) {
      const { state } = this;
      const holder = line(`${title}: `);
      let count = 0;
      for (const tensor of tensors) {
        for (const unit of unitsOf(tensor)) {
          count += 1;
          if (count > MOST) continue;
          if (unit < 0) holder.append("graph input ");
          else holder.append(this.link(unit, bytesText(state.data.graph.bytes[tensor])));
        }
      }
      if (count === 0) holder.append("nothing");
      if (count > MOST) holder.append(` and ${count - MOST} more`);
      return holder;
    }

    link(unit, size) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = `${this.state.names[unit]} (${this.state.devices[this.view().device[unit]].name}, ${size})`;
      const { view } = this.state.selected;
      button.addEventListener("click", () => this.state.select({ unit, view, from: "details" }));
      return button;
    }

    ofGroup(node) {
      const { state } = this;
      const units = state.unitsOf(node);
      const counts = state.devices.map(() => 0);
      units.forEach((unit) => { counts[state.current.device[unit]] += 1; });
      const shares = counts.map((count, at) => (count > 0 ? `${count} on ${state.devices[at].name}` : "")).filter(Boolean);
      return [line(`${state.nodeName(node)}: ${counted(units.length, "unit")}, ${shares.join(", ")}`)];
    }
  }

  Object.assign(root, { Details });
})((globalThis.placewright = globalThis.placewright || {}));
