"use strict";
// Two networks, head by head: a tile per head, and for a chosen head both attentions and both outputs on a photograph.

const view = { head: null, photo: 0, by: DATA.columns[0].name };
const column = () => DATA.columns.find((one) => one.name === view.by);

// the colour of a value: of errors on a logarithmic scale, since they run from rounding to one; of changes about 0
function shade(value) {
  if (value == null) return "var(--none)";
  if (column().values.some((one) => one < 0)) { // changes: more is red, less is blue
    const reach = Math.max(...column().values.map((one) => Math.abs(one ?? 0)));
    return d3.interpolateRdBu(0.5 - value / (2 * reach));
  }
  const known = column().values.filter((one) => one != null && one > 0).map(Math.log10);
  if (!known.length || value <= 0) return d3.interpolateViridis(0);
  const [low, high] = [Math.min(...known, Math.max(...known) - 1), Math.max(...known)];
  return d3.interpolateViridis((Math.log10(value) - low) / (high - low || 1));
}

// a share in per cent, where it is not as small as rounding
const written = (one, value, digits) => one.share && value >= 1e-4 ? `${number(100 * value, digits)}\u00a0%` : number(value, digits);

function tiles() {
  const rows = d3.group(DATA.heads.map((head, flat) => ({ ...head, flat })), (head) => head.block);
  byId("heads").replaceChildren(...[...rows].map(([block, heads]) => el("div", { class: "row" }, el("span", {}, `block ${block}`), ...heads.map(tile))));
}

function tile(head) {
  const value = column().values[head.flat], colour = shade(value);
  const said = `block ${head.block} head ${head.number}: ${column().called} ${value == null ? "gone" : written(column(), value)}`;
  const ink = colour.startsWith("var") ? "inherit" : inkOn(colour);
  return el("button", {
    type: "button", title: said, "aria-label": said, "aria-pressed": String(view.head === head.flat),
    class: head.flagged ? "more" : "", style: `background: ${colour}; color: ${ink}`,
    onclick: () => { view.head = head.flat; show(); byId("heads").querySelector("[aria-pressed=true]")?.focus(); },
  }, value == null ? "–" : written(column(), value, 2));
}

const bytesOf = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

function picture(map, called, gone) {
  const figure = el("figure", {}, el("div", { class: "over" }), el("figcaption", {}, called));
  const over = figure.firstChild;
  over.style.setProperty("--photo", `url("${DATA.photos[view.photo].picture}")`);
  if (!map) { over.append(el("p", { class: "note" }, gone ? "gone" : "not to be seen")); return figure; }
  const [rows, columns] = map.grid, bytes = bytesOf(map.values);
  const canvas = el("canvas", { width: columns, height: rows, role: "img", "aria-label": called });
  const image = canvas.getContext("2d").createImageData(columns, rows);
  bytes.forEach((level, at) => {
    const { r, g, b } = d3.rgb(d3.interpolateInferno(level / 255));
    image.data.set([r, g, b, 60 + 0.7 * level], 4 * at);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
  over.append(canvas);
  return figure;
}

function opened() {
  const head = DATA.heads[view.head];
  if (!head) return;
  const maps = DATA.maps[view.photo]?.[view.head] ?? {};
  const facts = DATA.columns.map((one) => [one.called, one.values[view.head], one]).filter(([, value]) => value != null);
  byId("open").replaceChildren(
    el("h3", {}, `Block ${head.block} head ${head.number}`),
    el("div", { class: "four" },
      picture(maps.looks?.[0], `looks, ${DATA.names[0]}`), picture(maps.looks?.[1], `looks, ${DATA.names[1]}`, head.gone),
      picture(maps.gives?.[0], `gives out, ${DATA.names[0]}`), picture(maps.gives?.[1], `gives out, ${DATA.names[1]}`, head.gone)),
    el("p", { class: "note" }, `${DATA.asker} Brighter is more, on one scale for both networks.`));
  byId("facts").replaceChildren(
    el("h3", {}, `Block ${head.block} head ${head.number} in numbers`),
    el("dl", {}, ...facts.map(([called, value, one]) => el("div", {}, el("dt", {}, called), el("dd", {}, one.texts[view.head] || written(one, value))))));
}

function photographs() {
  byId("strip").replaceChildren(...DATA.photos.map((photo, at) => el("button", {
    type: "button", "aria-label": photo.name, "aria-pressed": String(view.photo === at),
    style: `background-image: url("${photo.picture}")`, onclick: () => { view.photo = at; show(); },
  })));
}

// measures: of every head before against after, and over the checkpoints of a training

const blockColour = (block) => d3.interpolateViridis(0.9 * block / (d3.max(DATA.heads, (head) => head.block) || 1));
const named = (head) => `block ${head.block} head ${head.number}`;

// a chart of points { flat, ... }, of which a click chooses the head
function choosing(chart) {
  chart.addEventListener("click", () => { if (chart.value) { view.head = chart.value.flat; show(); } });
  return chart;
}

function ends({ called, before, after, sure }) {
  const points = before.map((x, flat) => ({ flat, x, y: after[flat], sure: sure[flat], block: DATA.heads[flat].block })).filter(({ x, y }) => x != null && y != null);
  const both = d3.extent(points.flatMap(({ x, y }) => [x, y]));
  const at = { x: "x", y: "y" }, paint = ({ block }) => blockColour(block);
  return choosing(chartOf({
    width: 290, height: 280, marginLeft: 52, marginBottom: 40, ariaLabel: `${called}, before against after`,
    x: { label: "before", domain: both, nice: true, ticks: 4 }, y: { label: "after", domain: both, nice: true, grid: true, ticks: 5 },
    marks: [
      Plot.link([both], { x1: (d) => d[0], y1: (d) => d[0], x2: (d) => d[1], y2: (d) => d[1], stroke: "var(--soft)" }),
      Plot.dot(points, { ...at, r: 3.5, stroke: paint, fill: (d) => (d.sure ? paint(d) : "var(--card)") }),
      Plot.dot(points.filter(({ flat }) => flat === view.head), { ...at, r: 8, stroke: "var(--ring)", strokeWidth: 3 }),
      Plot.tip(points, Plot.pointer({ ...at, title: (d) => `${named(DATA.heads[d.flat])}\n${number(d.x)} before, ${number(d.y)} after` })),
    ],
  }));
}

function over({ called, heads }) {
  const names = DATA.course.points, mine = DATA.heads[view.head], longest = d3.max(names, (name) => name.length);
  const slanted = longest * names.length > 36; // else they would overlap
  const points = heads.flatMap((of, flat) => of.map(([y, low, high], x) => ({ flat, x, y, low, high }))).filter(({ y }) => y != null);
  const at = { x: "x", y: "y", z: "flat" }, chosen = points.filter(({ flat }) => flat === view.head);
  const near = points.filter(({ flat }) => flat !== view.head && DATA.heads[flat].block === mine?.block);
  return choosing(chartOf({
    width: 360, height: 240 + (slanted ? 4 * longest : 0), marginLeft: 52, marginBottom: 40 + (slanted ? 4 * longest : 0), ariaLabel: `${called}, over the training`,
    x: { label: null, ticks: d3.range(names.length), tickFormat: (x) => names[x], tickRotate: slanted ? -35 : 0, insetLeft: 8, insetRight: 8 }, y: { label: null, grid: true, ticks: 5 },
    marks: [
      Plot.line(points, { ...at, stroke: "var(--soft)", strokeOpacity: 0.35, strokeWidth: 0.8 }),
      Plot.line(near, { ...at, stroke: "var(--link)", strokeWidth: 1.4 }),
      Plot.ruleX(chosen, { x: "x", y1: "low", y2: "high", stroke: "var(--ring)", strokeWidth: 2 }),
      Plot.line(chosen, { ...at, stroke: "var(--ring)", strokeWidth: 3 }),
      Plot.dot(chosen, { ...at, fill: "var(--ring)", r: 4 }),
      Plot.tip(points, Plot.pointer({ x: "x", y: "y", title: (d) => `${named(DATA.heads[d.flat])}, ${names[d.x]}\n${withInterval(d.y, d.low, d.high)}` })),
    ],
  }));
}

const charts = (place, measures, draw) => byId(place)?.replaceChildren(...measures.map((one) => el("figure", {}, el("figcaption", {}, one.called), draw(one))));

function measures() {
  charts("course", DATA.course?.measures ?? [], over);
  charts("ends", DATA.measures, ends);
}
redraws.push(measures);

function show() { tiles(); photographs(); opened(); measures(); }

byId("by").append(...DATA.columns.map((one) => el("option", { value: one.name }, one.called)));
byId("by").addEventListener("change", (event) => { view.by = event.target.value; show(); });
const first = DATA.heads.findIndex((head) => head.flagged);
view.head = first < 0 ? 0 : DATA.heads.reduce((best, head, at) => (head.flagged && (column().values[at] ?? 0) > (column().values[best] ?? 0) ? at : best), first);
show();
