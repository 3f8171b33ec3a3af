// Charts by uPlot: memory over time against the limits, value and bound over the search.
(function (root) {
  "use strict";
  const { deviceColour, styleColour, timeText, bytesText } = root;
  const BYTE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power); // ticks at whole KiB, MiB, GiB
  const LIMIT_IN_VIEW = 2.5; // times the highest peak: a limit far above would flatten the curves

  function chart(holder, options, data) {
    holder.textContent = "";
    const axis = { stroke: styleColour("--soft"), grid: { stroke: styleColour("--line"), width: 1 }, ticks: { stroke: styleColour("--line") } };
    const axes = options.axes.map((one) => ({ ...axis, ...one }));
    const width = Math.max(300, holder.clientWidth - 4);
    const made = new globalThis.uPlot({ width, height: 240, ...options, axes, cursor: { drag: { x: true, y: false } } }, data, holder);
    const canvas = holder.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", holder.dataset.label);
    return made;
  }

  /** Values of a step curve at times, both ascending. */
  function stepsAt(curve, times) {
    let at = 0;
    return times.map((time) => {
      while (at + 1 < curve.times.length && curve.times[at + 1] <= time) at += 1;
      return curve.bytes[at];
    });
  }

  function memoryChart(holder, state) {
    const curves = state.data.plan.memory;
    if (!curves) return null;
    const times = [...new Set([...curves.flatMap((curve) => curve.times), state.data.plan.time])].sort((a, b) => a - b);
    const highest = Math.max(...curves.map((curve) => Math.max(...curve.bytes)));
    const stepped = globalThis.uPlot.paths.stepped({ align: 1 });
    const series = [{ label: "time", value: (_, v) => (v === null ? "-" : timeText(v, state.unit)) }];
    const data = [times];
    const value = (_, v) => (v === null || v === undefined ? "-" : bytesText(v));
    curves.forEach((curve, device) => {
      const { name, memory } = state.devices[device];
      const stroke = deviceColour(device).fill;
      series.push({ label: name, stroke, width: 2, paths: stepped, value, points: { show: false } });
      data.push(stepsAt(curve, times));
      if (memory === null || memory > LIMIT_IN_VIEW * highest) return;
      series.push({ label: `${name} limit`, stroke, width: 1, dash: [6, 4], value, points: { show: false } });
      data.push(times.map(() => memory));
    });
    const axes = [
      { values: (_, ticks) => ticks.map((tick) => timeText(tick, state.unit)) },
      { size: 84, incrs: BYTE_STEPS, values: (_, ticks) => ticks.map(bytesText) },
    ];
    return chart(holder, { series, axes, scales: { x: { time: false }, y: { range: (_, low, high) => [0, high * 1.05 || 1] } } }, data);
  }

  function historyChart(holder, state) {
    const { history } = state.data.plan;
    if (history.length === 0) {
      holder.textContent = state.data.plan.has_history
        ? "The course of a search is drawn for times only; the plan's file has it."
        : "No history: the placement was not searched for, or the plan does not keep it.";
      return null;
    }
    const last = [state.data.plan.evaluations, state.data.plan.seconds, history.at(-1)[2], state.data.plan.lower_bound || null];
    const points = [...history, last];
    const value = (_, v) => (v === null || v === undefined ? "-" : timeText(v, state.unit));
    const stepped = globalThis.uPlot.paths.stepped({ align: 1 });
    const series = [
      { label: "seconds", value: (_, v) => (v === null ? "-" : timeText(v, "s")) },
      { label: "value", stroke: styleColour("--mark"), width: 2, paths: stepped, value },
      { label: "lower bound", stroke: styleColour("--warn"), width: 2, dash: [6, 4], paths: stepped, value, spanGaps: true },
    ];
    const axes = [
      { values: (_, ticks) => ticks.map((tick) => timeText(tick, "s")) },
      { size: 84, values: (_, ticks) => ticks.map((tick) => timeText(tick, state.unit)) },
    ];
    const data = [points.map((p) => p[1]), points.map((p) => p[2]), points.map((p) => p[3])];
    return chart(holder, { series, axes, scales: { x: { time: false } } }, data);
  }

  Object.assign(root, { memoryChart, historyChart });
})((globalThis.placewright = globalThis.placewright || {}));
