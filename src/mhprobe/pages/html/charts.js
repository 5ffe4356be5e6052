"use strict";
// The masking curve, linked with the atlas: a point chooses its heads, chosen heads that are a point are ringed.

const LINES = DATA.lines;
const [LOST, UNIT] = DATA.lost;
const ORDER = [...new Set(LINES.map(({ curve }) => curve))];
const MASKED = new Set(LINES.flatMap(({ points }) => points.flatMap(({ masked }) => heads(masked).map((id) => id < HEADS.length || !HEADS.length))));
const UNITS = MASKED.has(false) ? (MASKED.has(true) ? "heads and neurons" : "neurons") : "heads"; // numbers of neurons come after those of heads
const hidden = new Set();
const own = []; // the points of the reader's own order, where heads are switched live
const isAveraged = (curve) => LINES.some((line) => line.curve === curve && line.averaged);
const searched = ORDER.filter((curve) => !isAveraged(curve));
const strokeOf = (curve) => (isAveraged(curve) ? isDark() ? "#9aa2aa" : "#6b7177" : lineColour(searched.indexOf(curve)));
const dashOf = (curve) => (isAveraged(curve) ? "none" : lineDash(searched.indexOf(curve)));

function drawCurve() {
  const split = byId("split").value;
  const shown = LINES.filter((line) => line.split === split && !hidden.has(line.curve));
  const points = shown.flatMap(({ curve, points }) => points.map((point) => ({ ...point, curve })));
  const ringed = atlas.chosen.size ? points.filter((point) => point.masked && same(new Set(heads(point.masked)), atlas.chosen)) : [];
  const percents = { transform: (share) => 100 * share };
  const one = points.every(({ step }) => step === points[0].step);
  const width = Math.max(320, Math.min(1100, byId("curve-chart").clientWidth));
  const chart = chartOf({
    width, height: Math.max(300, Math.min(440, width * 0.5)), marginBottom: 42, marginRight: 24, ariaLabel: `${DATA.scored} against ${UNITS} masked`,
    x: { label: UNITS === "heads" ? `heads masked (of ${HEADS.length || "all"})` : `${UNITS} masked`, domain: [0, d3.max([...own, ...LINES.flatMap((line) => line.points)], (point) => point.heads_masked)] },
    y: { label: `${split} ${DATA.scored} (%)`, grid: true, ...percents },
    marks: [
      ...(DATA.chance == null ? [] : [Plot.ruleY([DATA.chance], { strokeDasharray: "2 4" })]),
      ...shown.flatMap(({ curve, points }) => [
        ...(one ? [Plot.ruleX(points, { x: "heads_masked", y1: "low", y2: "high", stroke: strokeOf(curve) })] : [Plot.areaY(points, { x: "heads_masked", y1: "low", y2: "high", fill: strokeOf(curve), fillOpacity: shown.length > 4 ? 0.06 : 0.14 })]),
        Plot.line(points, { x: "heads_masked", y: "accuracy", stroke: strokeOf(curve), strokeDasharray: dashOf(curve), strokeWidth: 2 }),
        ...(points.length <= 40 || one ? [Plot.dot(points, { x: "heads_masked", y: "accuracy", fill: strokeOf(curve), r: 2.6, symbol: isAveraged(curve) ? "circle" : ["circle", "square", "triangle", "diamond", "star", "wye", "times"][searched.indexOf(curve) % 7] })] : []),
      ]),
      ...(own.length && split === "test" ? [Plot.line(own, { x: "heads_masked", y: "accuracy", stroke: "var(--ring)", strokeWidth: 2.5 }), Plot.dot(own, { x: "heads_masked", y: "accuracy", fill: "var(--ring)", r: 4 })] : []),
      Plot.dot(ringed, { x: "heads_masked", y: "accuracy", r: 8, stroke: "var(--ring)", strokeWidth: 3 }),
      Plot.tip(points, Plot.pointer({ x: "heads_masked", y: "accuracy", title: (p) => `${p.curve}, step ${p.step}: ${number(p.heads_masked)} ${UNITS} masked\n${split} ${DATA.scored} ${share(p)}${p.delta == null ? "" : `\n${LOST} ${p.delta < 0 ? "" : "+"}${withInterval(p.delta, p.delta_low, p.delta_high)} ${UNIT}`}` })),
    ],
  });
  chart.addEventListener("click", () => { if (chart.value?.masked) choose(heads(chart.value.masked)); });
  byId("curve-chart").replaceChildren(chart);
}

function drawLegend() {
  byId("curve-legend").replaceChildren(...ORDER.map((curve) => {
    const box = el("input", { type: "checkbox", checked: !hidden.has(curve), onchange: () => { box.checked ? hidden.delete(curve) : hidden.add(curve); drawCurve(); } });
    return el("label", {}, box, el("span", { class: "swatch", style: `border-color:${strokeOf(curve)};border-top-style:${{ none: "solid", "7 3": "dashed", "2 3": "dotted" }[dashOf(curve)]}` }), isAveraged(curve) ? `${curve} (mean of repeats)` : curve);
  }), own.length ? el("span", { class: "mine" }, el("span", { class: "swatch", style: "border-color:var(--ring)" }), "your own order, on the images of this page") : "");
}

function points() {
  return LINES.find((line) => line.curve === byId("line").value && line.split === byId("split").value)?.points ?? [];
}
function onLine() {
  byId("step").max = points().length - 1;
  byId("step").value = Math.min(byId("step").value, points().length - 1);
  sayStep();
}
function sayStep() {
  const point = points()[byId("step").value];
  byId("step-says").textContent = point ? `${number(point.heads_masked)}: ${percent(point.accuracy)}` : "";
  byId("step").setAttribute("aria-valuetext", byId("step-says").textContent);
  return point;
}

// the images that chose the orders, and whether a curve of theirs is among those shown
function sayChosen() {
  const orders = LINES.filter(({ averaged }) => !averaged), splits = new Set(LINES.map(({ split }) => split));
  const chose = [...new Set(orders.map(({ chosen_on }) => (chosen_on === "train" ? "training" : chosen_on)))], seen = chose.filter((split) => splits.has(split));
  const flatters = seen.length ? `, so their ${seen.join(" and ")} curve flatters${splits.has("test") && !seen.includes("test") ? "; read the test curve" : ""}` : "";
  byId("curve-chosen").textContent = chose.length ? `Searched orders were chosen on ${chose.join(" and ")} images${flatters}.` : "";
  byId("curve-random").hidden = orders.length === LINES.length;
}

if (LINES.length && byId("curve")) {
  document.querySelectorAll("#curve .units").forEach((node) => { node.textContent = UNITS; });
  sayChosen();
  const splits = [...new Set(LINES.map(({ split }) => split))].sort((a, b) => (a === "test" ? -1 : b === "test" ? 1 : a < b ? -1 : 1));
  byId("split").append(...splits.map((split) => el("option", {}, split)));
  byId("line").append(...searched.map((curve) => el("option", {}, curve)));
  byId("split").addEventListener("change", () => { drawCurve(); onLine(); });
  byId("line").addEventListener("change", onLine);
  byId("step").addEventListener("input", () => { const point = sayStep(); if (point) choose(heads(point.masked)); });
  drawLegend();
  drawCurve();
  onLine();
  listeners.push(drawCurve);
  redraws.push(drawCurve, drawLegend);
  let wide = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; drawCurve(); } });
}
