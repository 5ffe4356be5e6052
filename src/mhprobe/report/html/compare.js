"use strict";
// Runs side by side: grids on one scale, their differences, and curves on the same axes.

function drawGrids() {
  const measure = DATA.measures[byId("colour").value];
  const scale = colours(measure.runs.map(({ value }) => value));
  const first = measure.runs[0].value;
  const gaps = measure.runs.map(({ value }) => value.map((v, i) => (v == null || first[i] == null ? null : v - first[i])));
  const gapScale = colours(gaps, true);
  byId("grids").replaceChildren(...measure.runs.map(({ value }, i) =>
    el("div", { class: "pair" }, el("h3", {}, DATA.runs[i]),
      el("figure", { class: "squares" }, ...squares(DATA.heads, value, scale, measure.name)),
      i ? el("figure", { class: "squares" }, ...squares(DATA.heads, gaps[i], gapScale, "difference from the first run"), colourBar(gapScale, "difference", [])) : null)));
  byId("legend").replaceChildren(colourBar(scale, measure.label, []));
}

function drawCurves() {
  const split = byId("split").value, curve = byId("line").value;
  const shown = DATA.lines.filter((line) => line.split === split && line.curve === curve);
  const random = DATA.lines.filter((line) => line.split === split && line.averaged && line.curve !== curve);
  const strokeOf = (run) => lineColour(DATA.runs.indexOf(run));
  const named = (lines) => lines.flatMap(({ run, points }) => points.map((point) => ({ ...point, run })));
  const width = Math.max(320, Math.min(1100, byId("curve-chart").clientWidth));
  const chart = chartOf({
    width, height: Math.max(300, width * 0.42), marginBottom: 42, marginRight: 24, ariaLabel: `${DATA.scored} against heads masked, by run`,
    x: { label: "heads masked" }, y: { label: `${split} ${DATA.scored} (%)`, grid: true, transform: (accuracy) => 100 * accuracy },
    marks: [
      ...shown.flatMap(({ run, points }) => [
        Plot.areaY(points, { x: "heads_masked", y1: "low", y2: "high", fill: strokeOf(run), fillOpacity: 0.14 }),
        Plot.line(points, { x: "heads_masked", y: "accuracy", stroke: strokeOf(run), strokeWidth: 2 }),
        Plot.dot(points, { x: "heads_masked", y: "accuracy", fill: strokeOf(run), r: 2.8, symbol: ["circle", "square", "triangle", "diamond"][DATA.runs.indexOf(run) % 4] }),
      ]),
      ...random.map(({ run, points }) => Plot.line(points, { x: "heads_masked", y: "accuracy", stroke: strokeOf(run), strokeDasharray: "3 4", strokeOpacity: 0.8 })),
      Plot.tip(named(shown), Plot.pointer({ x: "heads_masked", y: "accuracy", title: (p) => `${p.run}: ${number(p.heads_masked)} heads masked\n${split} ${DATA.scored} ${share(p)}` })),
    ],
  });
  byId("curve-chart").replaceChildren(chart);
  byId("curve-legend").replaceChildren(...DATA.runs.map((run) => el("span", { style: "display:inline-flex;gap:.4rem;align-items:center" }, el("span", { class: "swatch", style: `border-color:${strokeOf(run)}` }), run)));
}

if (byId("grids")) {
  byId("colour").append(...DATA.measures.map(({ name }, i) => el("option", { value: i }, name)));
  byId("colour").addEventListener("change", drawGrids);
  drawGrids();
}
if (byId("curve")) {
  const unique = (key) => [...new Set(DATA.lines.map((line) => line[key]))];
  byId("line").append(...unique("curve").map((curve) => el("option", {}, curve)));
  byId("split").append(...unique("split").sort((a, b) => (a === "test" ? -1 : b === "test" ? 1 : 0)).map((split) => el("option", {}, split)));
  for (const id of ["line", "split"]) byId(id).addEventListener("change", drawCurves);
  drawCurves();
  redraws.push(drawCurves);
}
