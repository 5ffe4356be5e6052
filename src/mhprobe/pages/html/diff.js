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

function picture(map, called) {
  const figure = el("figure", {}, el("div", { class: "over" }), el("figcaption", {}, called));
  const over = figure.firstChild;
  over.style.setProperty("--photo", `url("${DATA.photos[view.photo].picture}")`);
  if (!map) { over.append(el("p", { class: "note" }, "not to be seen")); return figure; }
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
      picture(maps.looks?.[0], `looks, ${DATA.names[0]}`), picture(maps.looks?.[1], `looks, ${DATA.names[1]}`),
      picture(maps.gives?.[0], `gives out, ${DATA.names[0]}`), picture(maps.gives?.[1], `gives out, ${DATA.names[1]}`)),
    el("p", { class: "note" }, `${DATA.asker} Brighter is more, on one scale for both networks.`),
    el("dl", {}, ...facts.flatMap(([called, value, one]) => [el("dt", {}, called), el("dd", {}, one.texts[view.head] || written(one, value))])));
}

function photographs() {
  byId("strip").replaceChildren(...DATA.photos.map((photo, at) => el("button", {
    type: "button", "aria-label": photo.name, "aria-pressed": String(view.photo === at),
    style: `background-image: url("${photo.picture}")`, onclick: () => { view.photo = at; show(); },
  })));
}

function show() { tiles(); photographs(); opened(); }

byId("by").append(...DATA.columns.map((one) => el("option", { value: one.name }, one.called)));
byId("by").addEventListener("change", (event) => { view.by = event.target.value; show(); });
const first = DATA.heads.findIndex((head) => head.flagged);
view.head = first < 0 ? 0 : DATA.heads.reduce((best, head, at) => (head.flagged && (column().values[at] ?? 0) > (column().values[best] ?? 0) ? at : best), first);
show();
