// Binary heaps: of events in time, and of units that are ready.
(function (root) {
  "use strict";

  /** A heap over `precedes`; the first element leaves first. */
  class Heap {
    constructor(precedes) {
      this.items = [];
      this.precedes = precedes;
    }

    get size() {
      return this.items.length;
    }

    get first() {
      return this.items[0];
    }

    push(item) {
      const { items, precedes } = this;
      let at = items.length;
      items.push(item);
      while (at > 0) {
        const above = (at - 1) >> 1;
        if (!precedes(item, items[above])) break;
        items[at] = items[above];
        at = above;
      }
      items[at] = item;
    }

    pop() {
      const { items, precedes } = this;
      const first = items[0];
      const last = items.pop();
      if (items.length === 0) return first;
      let at = 0;
      for (;;) {
        let child = 2 * at + 1;
        if (child >= items.length) break;
        if (child + 1 < items.length && precedes(items[child + 1], items[child])) child += 1;
        if (!precedes(items[child], last)) break;
        items[at] = items[child];
        at = child;
      }
      items[at] = last;
      return first;
    }
  }

  /** Events by (time, unit, tensor, destination): graph inputs, of unit -1, come first. */
  function eventPrecedes(one, other) {
    if (one.time !== other.time) return one.time < other.time;
    if (one.unit !== other.unit) return one.unit < other.unit;
    if (one.tensor !== other.tensor) return one.tensor < other.tensor;
    return one.target < other.target;
  }

  Object.assign(root, { Heap, eventPrecedes });
})((globalThis.placewright = globalThis.placewright || {}));
