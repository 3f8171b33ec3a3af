// Draws the timeline: only what is in view, and what shares a pixel once.
(function (root) {
  "use strict";
  const { fillBox, textOn, styleColour, shortText, timeText } = root;
  const AXIS = 22;
  const HEIGHT = { unit: 26, hop: 16 };
  const GAP = 4;

  const labelWidth = (width) => Math.min(130, Math.max(86, width * 0.2));

  function layRows(rows) {
    let top = AXIS;
    for (const row of rows) {
      row.top = top;
      row.height = HEIGHT[row.kind];
      top += row.height + GAP;
    }
    return top + GAP;
  }

  function ticks(ctx, view, left, width, height, unit) {
    const span = view.to - view.from;
    const raw = (span / Math.max(2, width / 110)) || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
    ctx.fillStyle = styleColour("--soft");
    ctx.strokeStyle = styleColour("--line");
    ctx.lineWidth = 1;
    for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) {
      const x = Math.round(left + ((time - view.from) / span) * width) + 0.5;
      ctx.beginPath();
      ctx.moveTo(x, AXIS - 6);
      ctx.lineTo(x, height);
      ctx.stroke();
      const text = timeText(time, unit);
      const isCut = x + 3 + ctx.measureText(text).width > left + width;
      ctx.textAlign = isCut ? "right" : "left";
      ctx.fillText(text, isCut ? x - 3 : x + 3, 10);
    }
    ctx.textAlign = "left";
  }

  function drawRow(ctx, row, view, left, width, marks) {
    const scale = width / (view.to - view.from);
    let lastPixel = -1;
    for (let at = row.firstAfter(view.from); at < row.items.length; at += 1) {
      if (row.start[at] > view.to) break;
      const x = left + (row.start[at] - view.from) * scale;
      const right = left + (row.end[at] - view.from) * scale;
      if (right - lastPixel < 1 && right - x < 1) continue;
      lastPixel = right;
      drawItem(ctx, row, at, Math.max(left, x), Math.min(left + width, Math.max(right, x + 0.8)), marks);
    }
  }

  function drawItem(ctx, row, at, x, right, marks) {
    const item = row.items[at];
    const room = right - x;
    const device = row.view.device[item];
    if (row.kind === "unit") fillBox(ctx, device, x, row.top, room, row.height);
    else {
      ctx.fillStyle = marks.soft;
      ctx.fillRect(x, row.top, room, row.height);
    }
    if (row.critical.has(item)) {
      ctx.fillStyle = marks.front;
      ctx.fillRect(x, row.top + row.height - 4, room, 4);
    }
    if (room > 3) {
      ctx.fillStyle = marks.back;
      ctx.fillRect(right - 0.6, row.top, 0.6, row.height);
    }
    if (room > 34 && row.kind === "unit") {
      ctx.fillStyle = textOn(device);
      ctx.fillText(shortText(marks.names[item], Math.floor((room - 6) / 6.1)), x + 3, row.top + 15);
    }
    if (room > 6 && marks.moved?.has(item) && row.kind === "unit") {
      ctx.strokeStyle = marks.front;
      ctx.setLineDash([3, 2]);
      ctx.strokeRect(x + 1, row.top + 1, Math.max(1, room - 2), row.height - 2);
      ctx.setLineDash([]);
    }
    if (marks.isSelected(row, item)) {
      ctx.strokeStyle = marks.mark;
      ctx.lineWidth = 3;
      ctx.strokeRect(x - 1, row.top - 1, room + 2, row.height + 2);
      ctx.lineWidth = 1;
    }
  }

  function drawTimeline(canvas, rows, view, marks, unit) {
    const ctx = canvas.getContext("2d");
    const ratio = globalThis.devicePixelRatio || 1;
    const width = canvas.width / ratio;
    const height = canvas.height / ratio;
    const left = labelWidth(width);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = marks.back;
    ctx.fillRect(0, 0, width, height);
    ctx.font = "11px system-ui, sans-serif";
    ticks(ctx, view, left, width - left, height, unit);
    for (const row of rows) drawRow(ctx, row, view, left, width - left, marks);
    ctx.fillStyle = marks.back;
    ctx.fillRect(0, AXIS - 4, left - 2, height);
    ctx.fillStyle = marks.front;
    for (const row of rows) {
      const y = row.top + Math.min(16, row.height - 3);
      ctx.fillText(shortText(row.label, Math.floor(left / 6.3)), 4, y);
    }
  }

  Object.assign(root, { drawTimeline, layRows, labelWidth });
})((globalThis.placewright = globalThis.placewright || {}));
