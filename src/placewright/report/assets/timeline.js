// The timeline: zoom and pan by wheel, touch, buttons and keys; what is under the pointer.
(function (root) {
  "use strict";
  const { ZoomCanvas, timelineRows, drawTimeline, layRows, labelWidth, styleColour, timeText, bytesText } = root;
  const d3 = globalThis.d3;
  const MOST = 1e6; // zoom

  class Timeline extends ZoomCanvas {
    constructor(state, holder, tip) {
      super(state, holder, tip);
      this.row = 0;
      this.collect();
      this.listen([1, MOST]);
      this.state.onChange((what) => this.changed(what));
      this.resize();
    }

    collect() {
      const { state } = this;
      this.rows = timelineRows(state, state.current, "");
      this.value = state.current.value || 1;
      const other = state.data.other;
      if (other?.plan?.timeline && other.same_units) {
        this.other ??= { ...other.plan.timeline, value: other.plan.time, hasTimeline: true };
        this.rows.push(...timelineRows(state, this.other, "2: "));
        this.value = Math.max(this.value, this.other.value);
      }
      this.height = layRows(this.rows);
    }

    changed(what) {
      if (what === "current") this.collect();
      if (what === "current") this.resize();
      this.drawSoon();
    }

    resize() {
      const ratio = globalThis.devicePixelRatio || 1;
      const width = this.holder.clientWidth;
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.canvas.style.height = `${this.height}px`;
      const left = labelWidth(width);
      this.zoom.extent([[left, 0], [width, this.height]]).translateExtent([[left, 0], [width, this.height]]);
      this.draw();
    }

    /** Times at the left and right of what is in view. */
    view() {
      const width = this.holder.clientWidth;
      const left = labelWidth(width);
      const time = (x) => ((this.transform.invertX(x) - left) / (width - left)) * this.value;
      return { from: time(left), to: time(width) };
    }

    draw() {
      const { selected } = this.state;
      const marks = {
        back: styleColour("--back"), front: styleColour("--front"), soft: styleColour("--soft"),
        mark: styleColour("--mark"), names: this.state.names, moved: this.state.movedUnits,
        // Both plans have the unit; a transfer is of one of them.
        isSelected: (row, item) => Boolean(selected) && selected[row.kind] === item
          && (row.kind === "unit" || (selected.view ?? this.state.current) === row.view),
      };
      drawTimeline(this.canvas, this.rows, this.view(), marks, this.state.unit);
    }

    under(event) {
      const box = this.canvas.getBoundingClientRect();
      const y = event.clientY - box.top;
      const at = this.rows.findIndex((row) => y >= row.top && y <= row.top + row.height);
      if (at < 0) return null;
      const view = this.view();
      const left = labelWidth(box.width);
      const perPixel = (view.to - view.from) / (box.width - left);
      const place = this.rows[at].at(view.from + (event.clientX - box.left - left) * perPixel, 3 * perPixel);
      return place < 0 ? null : { row: at, place };
    }

    hover(event) {
      const found = this.under(event);
      this.tip.hidden = !found;
      if (!found) return;
      this.showTip(event, this.text(found));
    }

    click(event) {
      this.choose(this.under(event));
    }

    text({ row: at, place }) {
      const { state } = this;
      const row = this.rows[at];
      const item = row.items[place];
      const { unit } = state;
      const [start, end] = [row.start[place], row.end[place]];
      const times = `${timeText(start, unit)} to ${timeText(end, unit)} (${timeText(end - start, unit)})`;
      if (row.kind === "unit") {
        const kind = state.data.units.kinds[state.data.units.kind[item]];
        const device = state.devices[row.view.device[item]].name;
        return `${state.names[item]}\n${kind} on ${device}\n${times}\n${state.waitText(row.view, item)}`;
      }
      const tensor = row.view.hops.tensor[item];
      const size = bytesText(state.data.graph.bytes[tensor]);
      return `transfer of ${state.tensorName(tensor)}\n${row.label}, ${size}\n${times}`;
    }

    choose(found) {
      if (!found) return;
      this.row = found.row;
      const row = this.rows[found.row];
      const view = row.view === this.other ? row.view : undefined;
      this.state.select({ [row.kind]: row.items[found.place], view, text: this.text(found), from: "timeline" });
      this.reveal(row, found.place);
    }

    /** Bring an item into view. */
    reveal(row, place) {
      const view = this.view();
      if (row.end[place] >= view.from && row.start[place] <= view.to) return;
      const width = this.holder.clientWidth;
      const left = labelWidth(width);
      const x = left + ((row.start[place] + row.end[place]) / 2 / this.value) * (width - left);
      d3.select(this.canvas).call(this.zoom.translateTo, x, 0);
    }

    step(by) {
      const row = this.rows[this.row];
      const { selected } = this.state;
      let place = selected ? row.items.indexOf(selected[row.kind]) : -1;
      if (place < 0) place = Math.min(row.firstAfter(this.view().from), row.items.length - 1) - by;
      place = Math.max(0, Math.min(row.items.length - 1, place + by));
      if (row.items.length > 0) this.choose({ row: this.row, place });
    }

    changeRow(by) {
      this.row = Math.max(0, Math.min(this.rows.length - 1, this.row + by));
      const row = this.rows[this.row];
      const view = this.view();
      if (row.items.length > 0) {
        const place = Math.min(row.firstAfter(view.from), row.items.length - 1);
        this.choose({ row: this.row, place });
      }
    }

    actions() {
      const area = d3.select(this.canvas);
      const by = (this.holder.clientWidth / 6) / this.transform.k;
      return {
        ArrowLeft: () => area.call(this.zoom.translateBy, by, 0),
        ArrowRight: () => area.call(this.zoom.translateBy, -by, 0),
        ArrowUp: () => this.changeRow(-1), ArrowDown: () => this.changeRow(1),
        n: () => this.step(1), p: () => this.step(-1),
        "+": () => this.zoomBy(1.6), "=": () => this.zoomBy(1.6), "-": () => this.zoomBy(1 / 1.6),
        0: () => this.all(), Home: () => this.all(),
      };
    }
  }

  Object.assign(root, { Timeline });
})((globalThis.placewright = globalThis.placewright || {}));
