// The graph: groups that open and close; zoom, pan, choose by pointer and keys; find by name.
(function (root) {
  "use strict";
  const { GraphPicture, ZoomCanvas, counted, deviceCounts, styleColour } = root;
  const d3 = globalThis.d3;
  const MOST_FOUND = 30;

  class Graph extends ZoomCanvas {
    constructor(state, holder, tip) {
      super(state, holder, tip);
      this.open = new Set([0]);
      this.selected = -1;
      this.counts = deviceCounts(state);
      this.listen([0.5, 1e5]);
      this.state.onChange((what) => this.changed(what));
      this.resize();
    }

    changed(what) {
      if (what === "current") this.counts = deviceCounts(this.state);
      const { selected } = this.state;
      if (selected?.unit !== undefined && selected.from !== "graph") this.show(this.state.nodeOf[selected.unit], false);
      this.drawSoon();
    }

    resize() {
      const ratio = globalThis.devicePixelRatio || 1;
      this.width = this.holder.clientWidth;
      this.height = this.canvas.clientHeight;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.zoom.extent([[0, 0], [this.width, this.height]]);
      this.draw();
    }

    /** From the layout's coordinates to pixels. */
    world() {
      const { width, height } = this.state.data.graph;
      const fit = Math.min(this.width / width, this.height / height) * 0.97;
      const { k, x, y } = this.transform;
      const [left, top] = [(this.width - width * fit) / 2, (this.height - height * fit) / 2];
      return { k: k * fit, x: x + k * left, y: y + k * top, fit, left, top };
    }

    picture() {
      const ctx = this.canvas.getContext("2d");
      const ratio = globalThis.devicePixelRatio || 1;
      ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
      return new GraphPicture(this.state, ctx, this.world(), {
        open: this.open, selected: this.selected, counts: this.counts, width: this.width,
        height: this.height, moved: this.state.movedUnits, back: styleColour("--back"),
        front: styleColour("--front"), soft: styleColour("--soft"), line: styleColour("--line"),
        panel: styleColour("--panel"), mark: styleColour("--mark"),
      });
    }

    draw() {
      const picture = this.picture();
      picture.ctx.fillStyle = picture.marks.back;
      picture.ctx.fillRect(0, 0, this.width, this.height);
      picture.draw(0);
    }

    /** The innermost node that is drawn at a place. */
    under(event) {
      const box = this.canvas.getBoundingClientRect();
      const world = this.world();
      const x = (event.clientX - box.left - world.x) / world.k;
      const y = (event.clientY - box.top - world.y) / world.k;
      const { boxes } = this.state.data.graph;
      const isIn = (node) => {
        const at = 4 * node;
        return x >= boxes[at] && y >= boxes[at + 1] && x <= boxes[at] + boxes[at + 2] && y <= boxes[at + 1] + boxes[at + 3];
      };
      let node = 0;
      for (;;) {
        const isDrawnOpen = this.open.has(node) && boxes[4 * node + 2] * world.k > 40;
        const child = isDrawnOpen ? this.state.children[node].find(isIn) : undefined;
        if (child === undefined) return node;
        node = child;
      }
    }

    click(event) {
      const node = this.under(event);
      this.choose(node);
      if (this.state.data.graph.unit[node] < 0 && node !== 0) this.toggle(node);
    }

    hover(event) {
      const node = this.under(event);
      const unit = this.state.data.graph.unit[node];
      this.tip.hidden = node === 0;
      if (node === 0) return;
      const what = unit >= 0 ? this.state.devices[this.state.current.device[unit]].name : counted(this.state.unitsOf(node).length, "unit");
      this.showTip(event, `${this.state.nodeName(node)}\n${what}`);
    }

    choose(node) {
      this.selected = node;
      const unit = this.state.data.graph.unit[node];
      this.state.select({ ...(unit >= 0 ? { unit } : { node }), from: "graph" });
    }

    toggle(node) {
      if (this.open.has(node)) this.open.delete(node);
      else this.open.add(node);
      const wide = this.state.data.graph.boxes[4 * node + 2] * this.world().k;
      if (this.open.has(node) && wide < this.width * 0.35) this.zoomTo(node);
      this.drawSoon();
    }

    /** Open what holds a node, and bring it into view. */
    show(node, moves = true) {
      const { parent } = this.state.data.graph;
      for (let above = parent[node]; above >= 0; above = parent[above]) this.open.add(above);
      this.selected = node;
      if (moves) this.zoomTo(node);
      this.drawSoon();
    }

    zoomTo(node) {
      const { boxes, unit } = this.state.data.graph;
      const world = this.world();
      const [x, y, width, height] = boxes.slice(4 * node, 4 * node + 4);
      const share = unit[node] >= 0 ? 0.12 : 0.8;
      const k = Math.min((this.width * share) / (width * world.fit), (this.height * share) / (height * world.fit));
      const centre = [world.left + (x + width / 2) * world.fit, world.top + (y + height / 2) * world.fit];
      const to = d3.zoomIdentity.translate(this.width / 2, this.height / 2).scale(k).translate(-centre[0], -centre[1]);
      const isCalm = globalThis.matchMedia("(prefers-reduced-motion: reduce)").matches;
      const area = d3.select(this.canvas);
      (isCalm ? area : area.transition().duration(250)).call(this.zoom.transform, to);
    }

    sibling(by) {
      const { parent } = this.state.data.graph;
      const above = this.selected > 0 ? parent[this.selected] : 0;
      const siblings = this.state.children[above];
      const at = siblings.indexOf(this.selected);
      const next = siblings[Math.max(0, Math.min(siblings.length - 1, at + by))];
      this.choose(next);
      this.keepInView(next);
    }

    keepInView(node) {
      const { boxes } = this.state.data.graph;
      const { k, x, y } = this.world();
      const [left, top] = [boxes[4 * node] * k + x, boxes[4 * node + 1] * k + y];
      if (left < 0 || top < 0 || left > this.width - 20 || top > this.height - 20) this.zoomTo(node);
    }

    enter() {
      const node = this.selected;
      if (node < 0) return;
      if (this.state.data.graph.unit[node] >= 0) return;
      this.open.add(node);
      this.choose(this.state.children[node][0]);
      this.zoomTo(node);
    }

    leave() {
      const above = this.selected > 0 ? this.state.data.graph.parent[this.selected] : 0;
      if (above > 0) this.open.delete(above);
      this.choose(above);
      this.zoomTo(above);
    }

    actions(event) {
      const area = d3.select(this.canvas);
      const pan = (x, y) => area.call(this.zoom.translateBy, (x * this.width) / 6 / this.transform.k, (y * this.height) / 6 / this.transform.k);
      return {
        ArrowLeft: () => (event.shiftKey ? pan(1, 0) : this.sibling(-1)),
        ArrowRight: () => (event.shiftKey ? pan(-1, 0) : this.sibling(1)),
        ArrowUp: () => (event.shiftKey ? pan(0, 1) : this.sibling(-1)),
        ArrowDown: () => (event.shiftKey ? pan(0, -1) : this.sibling(1)),
        Enter: () => this.enter(), Backspace: () => this.leave(),
        "+": () => this.zoomBy(1.5), "=": () => this.zoomBy(1.5), "-": () => this.zoomBy(1 / 1.5),
        0: () => this.all(), Home: () => this.all(),
      };
    }

    setAll(isOpen) {
      this.open = new Set([0]);
      if (isOpen) this.state.children.forEach((children, node) => children.length > 0 && this.open.add(node));
      this.drawSoon();
    }

    /** Names that contain a text, for the list below the search box. */
    find(text) {
      const wanted = text.toLowerCase();
      const found = [];
      for (const name of this.state.names) {
        if (name.toLowerCase().includes(wanted)) found.push(name);
        if (found.length === MOST_FOUND) break;
      }
      return found;
    }
  }

  Object.assign(root, { Graph });
})((globalThis.placewright = globalThis.placewright || {}));
