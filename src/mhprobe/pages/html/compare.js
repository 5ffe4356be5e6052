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

// a sweep over the steps of curves: every curve through its steps, the whole network across
const seriesOf = ({ run, curve }) => (DATA.lines.every((line) => line.run === DATA.lines[0].run) ? curve : `${run}, ${curve}`);
const hiddenSeries = new Set();

function drawSweep() {
  const split = byId("split").value;
  const here = DATA.lines.filter((line) => line.split === split);
  const searched = here.filter(({ averaged }) => !averaged).map(seriesOf);
  const strokeOf = (line) => (line.averaged ? isDark() ? "#9aa2aa" : "#6b7177" : lineColour(searched.indexOf(seriesOf(line))));
  const shown = here.filter((line) => !hiddenSeries.has(seriesOf(line)));
  const points = shown.flatMap((line) => line.points.map((point) => ({ ...point, series: seriesOf(line) })));
  const whole = here.flatMap((line) => line.points.filter(({ step }) => step === 0).map(({ accuracy }) => accuracy)).slice(0, 1);
  const width = Math.max(320, Math.min(1100, byId("curve-chart").clientWidth));
  const chart = chartOf({
    width, height: Math.max(300, width * 0.42), marginBottom: 42, marginRight: 24, ariaLabel: `${DATA.scored} against heads masked, by curve`,
    x: { label: "heads masked" }, y: { label: `${split} ${DATA.scored} (%)`, grid: true, transform: (accuracy) => 100 * accuracy },
    marks: [
      Plot.ruleY(whole, { strokeDasharray: "2 4", stroke: "currentColor", strokeOpacity: 0.6 }),
      ...shown.flatMap((line) => [
        Plot.areaY(line.points, { x: "heads_masked", y1: "low", y2: "high", fill: strokeOf(line), fillOpacity: shown.length > 4 ? 0.07 : 0.14 }),
        Plot.ruleX(line.points, { x: "heads_masked", y1: "low", y2: "high", stroke: strokeOf(line), strokeOpacity: 0.5 }),
        Plot.line(line.points, { x: "heads_masked", y: "accuracy", stroke: strokeOf(line), strokeWidth: 2 }),
        Plot.dot(line.points, { x: "heads_masked", y: "accuracy", fill: strokeOf(line), r: 2.8 }),
      ]),
      Plot.tip(points, Plot.pointer({ x: "heads_masked", y: "accuracy", title: (p) => `${p.series}, step ${p.step}: ${number(p.heads_masked)} heads masked\n${split} ${DATA.scored} ${share(p)}` })),
    ],
  });
  byId("curve-chart").replaceChildren(chart);
  byId("curve-legend").replaceChildren(...here.map((line) => {
    const name = seriesOf(line);
    const box = el("input", { type: "checkbox", checked: !hiddenSeries.has(name), onchange: () => { box.checked ? hiddenSeries.delete(name) : hiddenSeries.add(name); drawSweep(); } });
    return el("label", {}, box, el("span", { class: "swatch", style: `border-color:${strokeOf(line)}` }), line.averaged ? `${name} (mean of repeats)` : name);
  }));
}

function drawCurves() {
  if (DATA.swept) return drawSweep();
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
