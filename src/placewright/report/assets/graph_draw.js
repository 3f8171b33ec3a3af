// Draws the graph: boxes that were laid out before, those in view and large enough to see.
(function (root) {
  "use strict";
  const { counted, fillBox, textOn, shortText } = root;
  const SMALL = 2; // pixels below which a box is not drawn
  const TITLE = 0.12; // of a group's height; the layout left it free

  /** How many units of each device each node holds. */
  function deviceCounts(state) {
    const { parent, unit } = state.data.graph;
    const n = state.devices.length;
    const counts = new Int32Array(parent.length * n);
    for (let node = parent.length - 1; node >= 0; node -= 1) {
      if (unit[node] >= 0) counts[node * n + state.current.device[unit[node]]] += 1;
      if (parent[node] < 0) continue;
      for (let at = 0; at < n; at += 1) counts[parent[node] * n + at] += counts[node * n + at];
    }
    return counts;
  }

  class GraphPicture {
    constructor(state, ctx, transform, marks) {
      Object.assign(this, { state, ctx, transform, marks });
      this.boxes = state.data.graph.boxes;
    }

    box(node) {
      const { k, x, y } = this.transform;
      const at = 4 * node;
      const b = this.boxes;
      return [b[at] * k + x, b[at + 1] * k + y, b[at + 2] * k, b[at + 3] * k];
    }

    isInView([x, y, width, height]) {
      return x < this.marks.width && y < this.marks.height && x + width > 0 && y + height > 0;
    }

    draw(node) {
      const box = this.box(node);
      if (!this.isInView(box) || box[2] < SMALL) return;
      const unit = this.state.data.graph.unit[node];
      if (unit >= 0) this.drawUnit(unit, box);
      else if (this.marks.open.has(node) && box[2] > 40) this.drawOpen(node, box);
      else this.drawClosed(node, box);
      if (this.marks.selected === node) this.outline(box, this.marks.mark, 3);
    }

    drawUnit(unit, [x, y, width, height]) {
      const { ctx, state } = this;
      const device = state.current.device[unit];
      fillBox(ctx, device, x, y, width, height);
      if (this.marks.moved?.has(unit)) this.outline([x, y, width, height], this.marks.front, 2, [4, 2]);
      if (width < 40 || height < 14) return;
      ctx.fillStyle = textOn(device);
      const kind = state.data.units.kinds[state.data.units.kind[unit]];
      const size = Math.min(13, height / 2.6);
      ctx.font = `${size}px system-ui, sans-serif`;
      const room = Math.floor((width - 6) / (size * 0.56));
      ctx.fillText(shortText(kind, room), x + 3, y + size + 1);
      ctx.fillText(shortText(state.names[unit], room), x + 3, y + 2.2 * size);
    }

    drawClosed(node, [x, y, width, height]) {
      const { ctx, marks } = this;
      const n = this.state.devices.length;
      const counts = marks.counts.subarray(node * n, node * n + n);
      const total = counts.reduce((sum, count) => sum + count, 0);
      const bar = Math.max(2, height * 0.34);
      ctx.fillStyle = marks.panel;
      ctx.fillRect(x, y, width, height);
      let left = x;
      counts.forEach((count, device) => {
        const part = (count / total) * width;
        if (part > 0) fillBox(ctx, device, left, y + height - bar, part, bar);
        left += part;
      });
      this.outline([x, y, width, height], marks.line, 1);
      if (width < 46 || height < 22) return;
      this.label(node, [x, y, width, height - bar], counted(total, "unit"));
    }

    drawOpen(node, box) {
      const { ctx, marks, state } = this;
      const [x, y, width, height] = box;
      this.outline(box, marks.soft, 1);
      if (height * TITLE > 8) {
        const size = Math.min(13, height * TITLE * 0.8);
        ctx.font = `600 ${size}px system-ui, sans-serif`;
        ctx.fillStyle = marks.front;
        const text = shortText(state.nodeName(node), Math.floor(width / (size * 0.6)));
        ctx.fillText(text, Math.max(x, 0) + 4, y + size + 1);
      }
      if (width > 90) this.drawEdges(node);
      state.children[node].forEach((child) => this.draw(child));
    }

    drawEdges(node) {
      const { ctx, marks, state } = this;
      const edges = state.data.graph.edges[node];
      const children = state.children[node];
      ctx.strokeStyle = marks.soft;
      ctx.lineWidth = 1;
      ctx.beginPath();
      for (let at = 0; at < edges.length; at += 2) {
        const [x, y, width, height] = this.box(children[edges[at]]);
        const [tx, ty, tw] = this.box(children[edges[at + 1]]);
        const [from, top] = [x + width / 2, y + height];
        const to = tx + tw / 2;
        const bend = Math.max(6, Math.abs(ty - top) / 2);
        ctx.moveTo(from, top);
        ctx.bezierCurveTo(from, top + Math.min(bend, 40), to, ty - Math.min(bend, 40), to, ty);
      }
      ctx.stroke();
    }

    label(node, [x, y, width, height], below) {
      const { ctx, marks } = this;
      const size = Math.min(13, Math.max(8, height / 2.8));
      const room = Math.floor((width - 6) / (size * 0.58));
      ctx.fillStyle = marks.front;
      ctx.font = `600 ${size}px system-ui, sans-serif`;
      ctx.fillText(shortText(this.state.nodeName(node), room), x + 4, y + size + 2);
      if (height < 2.4 * size) return;
      ctx.font = `${size}px system-ui, sans-serif`;
      ctx.fillStyle = marks.soft;
      ctx.fillText(shortText(below, room), x + 4, y + 2.2 * size + 2);
    }

    outline([x, y, width, height], colour, line, dash) {
      const { ctx } = this;
      ctx.strokeStyle = colour;
      ctx.lineWidth = line;
      if (dash) ctx.setLineDash(dash);
      ctx.strokeRect(x, y, width, height);
      if (dash) ctx.setLineDash([]);
    }
  }

  Object.assign(root, { GraphPicture, deviceCounts });
})((globalThis.placewright = globalThis.placewright || {}));
