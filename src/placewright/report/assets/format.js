// Numbers as people read them, and the colours of devices.
(function (root) {
  "use strict";
  // Okabe and Ito's palette: told apart with every common form of colour blindness.
  const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c"];
  const DARK_TEXT = new Set([1, 3, 4, 6, 7]);

  const digits = (value) => Number(value.toPrecision(4)).toString();

  function timeText(value, unit) {
    if (!Number.isFinite(value)) return "-";
    if (unit !== "s") return `${digits(value)} ${unit}`;
    for (const [name, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
      if (Math.abs(value) >= size) return `${digits(value / size)} ${name}`;
    }
    return value === 0 ? "0 s" : `${digits(value / 1e-9)} ns`;
  }

  function bytesText(value) {
    for (const [name, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (value >= size) return `${(value / size).toFixed(2)} ${name}`;
    }
    return `${Math.round(value)} B`;
  }

  const counted = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;

  const shortText = (text, room) => {
    if (text.length <= room) return text;
    return room < 4 ? "" : `…${text.slice(1 - room)}`;
  };

  /** Colour of a device; beyond eight, `isStriped` tells it from the one of the same colour. */
  function deviceColour(device) {
    return { fill: PALETTE[device % PALETTE.length], isStriped: Math.floor(device / PALETTE.length) % 2 === 1 };
  }

  const textOn = (device) => (DARK_TEXT.has(device % PALETTE.length) ? "#000" : "#fff");

  /** A colour of the style sheet, light or dark as the reader's system wants it. */
  const styleColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function fillBox(ctx, device, x, y, width, height) {
    const { fill, isStriped } = deviceColour(device);
    ctx.fillStyle = fill;
    ctx.fillRect(x, y, width, height);
    if (!isStriped || width < 4) return;
    ctx.fillStyle = "rgba(0,0,0,.45)";
    for (let at = x; at < x + width - 1; at += 6) ctx.fillRect(at, y, 2, height);
  }

  Object.assign(root, {
    timeText, bytesText, counted, shortText, deviceColour, textOn, styleColour, fillBox,
  });
})((globalThis.placewright = globalThis.placewright || {}));
