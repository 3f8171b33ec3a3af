// A canvas that zooms and pans by wheel, touch, buttons and keys, with a tip at the pointer.
(function (root) {
  "use strict";
  const d3 = globalThis.d3;

  /** Subclasses have `draw`, `resize`, `hover`, `click` and `actions`, a function per key. */
  class ZoomCanvas {
    constructor(state, holder, tip) {
      this.state = state;
      this.holder = holder;
      this.canvas = holder.querySelector("canvas");
      this.tip = tip;
      this.transform = d3.zoomIdentity;
      this.frame = 0;
    }

    /** Connect events; `extent` is the smallest and the largest zoom. */
    listen(extent) {
      const { canvas } = this;
      this.zoom = d3.zoom().scaleExtent(extent).on("zoom", (event) => {
        this.transform = event.transform;
        this.drawSoon();
      });
      d3.select(canvas).call(this.zoom).on("dblclick.zoom", null);
      canvas.addEventListener("click", (event) => this.click(event));
      canvas.addEventListener("pointermove", (event) => this.hover(event));
      canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      canvas.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.resize()).observe(this.holder);
    }

    drawSoon() {
      if (this.frame) return;
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    }

    /** Show a text next to the pointer, inside the window. */
    showTip(event, text) {
      this.tip.hidden = false;
      this.tip.textContent = text;
      const right = globalThis.innerWidth - this.tip.offsetWidth - 8;
      this.tip.style.left = `${Math.max(0, Math.min(event.clientX + 14, right))}px`;
      this.tip.style.top = `${event.clientY + 16}px`;
    }

    key(event) {
      const action = this.actions(event)[event.key];
      if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      action();
    }

    zoomBy(factor) {
      d3.select(this.canvas).call(this.zoom.scaleBy, factor);
    }

    all() {
      d3.select(this.canvas).call(this.zoom.transform, d3.zoomIdentity);
    }
  }

  Object.assign(root, { ZoomCanvas });
})((globalThis.placewright = globalThis.placewright || {}));
