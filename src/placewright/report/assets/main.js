// Starts the page: unpacks its data, makes the views, connects buttons.
(function (root) {
  "use strict";
  const { State, Timeline, Graph, Details, WhatIf, memoryChart, historyChart, deviceColour } = root;

  async function unpacked(letters) {
    const bytes = Uint8Array.from(atob(letters), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  const byId = (id) => document.getElementById(id);

  function hideSection(id, hint) {
    const section = byId(id);
    section.querySelectorAll(".tools, .plot, .key-row").forEach((part) => part.remove());
    section.append(Object.assign(document.createElement("p"), { textContent: hint }));
  }

  function colourSwatches() {
    document.querySelectorAll(".swatch[data-device]").forEach((swatch) => {
      const { fill, isStriped } = deviceColour(Number(swatch.dataset.device));
      swatch.style.background = isStriped ? `repeating-linear-gradient(90deg, ${fill} 0 4px, #0008 4px 6px)` : fill;
    });
  }

  function connectFind(state, graph) {
    const input = byId("find");
    input.addEventListener("input", () => {
      const names = input.value.length < 2 ? [] : graph.find(input.value);
      byId("found").replaceChildren(...names.map((name) => new Option(name)));
    });
    input.addEventListener("change", () => {
      const name = state.names.includes(input.value) ? input.value : graph.find(input.value)[0];
      if (name === undefined || input.value === "") return;
      const unit = state.names.indexOf(name);
      state.select({ unit, from: "find" });
      graph.show(state.nodeOf[unit]);
    });
  }

  function connectButtons({ timeline, graph, whatIf }) {
    const actions = {
      "timeline-in": () => timeline.zoomBy(2), "timeline-out": () => timeline.zoomBy(0.5), "timeline-all": () => timeline.all(),
      "graph-in": () => graph.zoomBy(1.6), "graph-out": () => graph.zoomBy(1 / 1.6), "graph-all": () => graph.all(),
      "graph-open": () => graph.setAll(true), "graph-close": () => graph.setAll(false),
      move: () => whatIf.move(), undo: () => whatIf.undo(), reset: () => whatIf.reset(),
    };
    document.addEventListener("click", (event) => {
      const action = actions[event.target.dataset?.do];
      if (action) action();
    });
  }

  function redrawWithColours(views) {
    const redraw = () => {
      views.timeline?.draw();
      views.graph.draw();
      drawCharts(views);
    };
    globalThis.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    let wait = 0;
    globalThis.addEventListener("resize", () => {
      clearTimeout(wait);
      wait = setTimeout(() => drawCharts(views), 150);
    });
  }

  function drawCharts({ state }) {
    memoryChart(byId("memory"), state);
    historyChart(byId("history"), state);
  }

  async function start() {
    document.documentElement.classList.add("scripted");
    const state = new State(await unpacked(byId("data").textContent));
    colourSwatches();
    const other = state.data.other;
    state.otherMoved = new Set(other?.moved_units ?? []);
    state.movedUnits = state.otherMoved;
    const tip = byId("tip");
    const timeline = state.plan.hasTimeline ? new Timeline(state, byId("timeline"), tip) : null;
    if (!timeline) hideSection("timeline-part", `Execution model '${state.data.execution_model}' has no timeline, no critical path and no idle time.`);
    const graph = new Graph(state, byId("graph"), tip);
    const details = new Details(state, byId("details"), byId("live"));
    const whatIf = new WhatIf(state, byId("what-if"));
    const views = { state, timeline, graph, details, whatIf };
    connectFind(state, graph);
    connectButtons(views);
    drawCharts(views);
    redrawWithColours(views);
    root.views = views;
    root.isReady = true;
    document.documentElement.dataset.ready = "true";
    (globalThis.requestIdleCallback ?? setTimeout)(() => {
      root.difference = whatIf.check();
      document.documentElement.dataset.checked = "true";
    });
  }

  start().catch((error) => {
    document.documentElement.classList.remove("scripted");
    byId("verdict").insertAdjacentText("afterend", `The interactive part could not start: ${error.message}`);
    throw error;
  });
})((globalThis.placewright = globalThis.placewright || {}));
