"use strict";
// Where all heads look, from any token of a photograph or towards it. The weights are in the page, packed by pages/looking/seen.py.

const HEADS = DATA.heads, SITES = DATA.sites ?? [], PHOTOS = DATA.photos;
const headsOf = SITES.map((site) => HEADS.filter((head) => head.site === site.name)), SEEN = headsOf.flat(); // others have no weights
const AT_FIRST = { x: 0.5, y: 0.5, token: null, towards: false }; // the query that a sentence's heads are shown with
const view = { image: 0, ...AT_FIRST, open: [], sort: "", across: false, shared: false };
const MOST_OPEN = 4;
let weights = null; // of the chosen photograph: per site where its bytes are

// ---- the bytes of a photograph

const windowsOf = (site) => site.places?.length ?? 1;
const tokensOf = (site) => site.prefix + site.grid[0] * site.grid[1];
const keysOf = (site) => site.places?.[0].length ?? tokensOf(site);
const fieldsAcross = (site) => Math.ceil(site.grid[1] / site.field);
const rowsOf = (site) => (site.places ? keysOf(site) : site.prefix + Math.ceil(site.grid[0] / site.field) * fieldsAcross(site));

async function unpack(image) {
  const text = byId(`attention-${image}`)?.textContent;
  if (!text) return null;
  const packed = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const numbers = new DataView(bytes.buffer);
  let at = 0;
  return SITES.map((site) => {
    const rows = windowsOf(site) * site.heads * rowsOf(site);
    const part = { bytes, numbers, largest: at, levels: at + 2 * rows };
    at = part.levels + rows * keysOf(site);
    return part;
  });
}

// the row of a token as a query: window and row in it
function rowAt(site, token) {
  if (!site.places) {
    if (token < site.prefix || site.field === 1) return [0, token];
    const cell = token - site.prefix, [down, across] = [Math.floor(cell / site.grid[1]), cell % site.grid[1]];
    return [0, site.prefix + Math.floor(down / site.field) * fieldsAcross(site) + Math.floor(across / site.field)];
  }
  site.at ??= new Map(site.places.flatMap((window, w) => window.map((each, k) => [each, [w, k]])));
  return site.at.get(token);
}

// number of a row in its site's bytes
const rowNumber = (site, index, [window, row]) => (window * site.heads + index) * rowsOf(site) + row;
function weightAt(number, site, row, key) {
  const { bytes, numbers, largest, levels } = weights[number];
  const share = bytes[levels + row * keysOf(site) + key] / DATA.levels;
  return (numbers.getUint16(largest + 2 * row, true) / 65535) * share * share;
}

// (tokens,) weights that a token gives, or that the others give it; NaN beyond its window
function given(number, index, token, towards) {
  const site = SITES[number], found = new Float32Array(tokensOf(site)).fill(site.places ? NaN : 0);
  const [window, place] = rowAt(site, token);
  for (let key = 0; key < keysOf(site); key++) {
    const other = site.places ? site.places[window][key] : key;
    if (other < 0) continue;
    found[other] = towards
      ? weightAt(number, site, rowNumber(site, index, rowAt(site, other)), site.places ? place : token)
      : weightAt(number, site, rowNumber(site, index, [window, place]), key);
  }
  return found;
}

// the token of a site that is asked: a prefix token, or the patch at the chosen place; null where the site has it not
function askedOf(site) {
  if (view.token !== null) return view.token < site.prefix ? view.token : null;
  const [rows, columns] = site.grid;
  return site.prefix + Math.min(rows - 1, Math.floor(view.y * rows)) * columns + Math.min(columns - 1, Math.floor(view.x * columns));
}

// every head's map of the moment: {grid, values, special, most}, by flat index
function maps() {
  const found = new Map();
  SITES.forEach((site, number) => {
    const token = weights && askedOf(site);
    if (token === null) return;
    for (const head of headsOf[number]) {
      const all = given(number, head.index, token, view.towards);
      const values = all.subarray(site.prefix);
      found.set(head.id, { grid: site.grid, values, special: all.subarray(0, site.prefix), most: d3.max(values, (value) => value || 0) });
    }
  });
  return found;
}

// ---- drawing

const HEAT = d3.range(256).map((level) => d3.rgb(d3.interpolateInferno(0.18 + (0.82 * level) / 255)));

function drawn(map, most) {
  const [rows, columns] = map.grid;
  const canvas = el("canvas", { width: columns, height: rows, "aria-hidden": "true" });
  const context = canvas.getContext("2d"), picture = context.createImageData(columns, rows);
  map.values.forEach((value, cell) => {
    const share = Math.min(1, (value || 0) / (most || 1)), { r, g, b } = HEAT[Math.round(255 * share)];
    picture.data.set([r, g, b, 255 * Math.min(1, 0.95 * share ** 0.6)], 4 * cell);
  });
  context.putImageData(picture, 0, 0);
  return canvas;
}

// the colours of a map with what both ends mean; over black, as the photographs below maps are dark
function heatBar(high) {
  const colours = d3.range(0, 1.01, 0.1).map((share) => { const { r, g, b } = HEAT[Math.round(255 * share)]; return `rgba(${r},${g},${b},${Math.min(1, 0.95 * share ** 0.6)})`; });
  return el("span", { class: "heat", role: "img", "aria-label": `Colours from 0 to ${high}` }, el("span", {}, "0"), el("i", { style: `background-image:linear-gradient(90deg,${colours})` }), el("span", {}, high));
}

function mark(site) {
  if (view.token !== null || !site) return null;
  const [rows, columns] = site.grid, token = askedOf(site) - site.prefix;
  return el("div", { class: "mark", style: `left:${(100 * (token % columns)) / columns}%;top:${(100 * Math.floor(token / columns)) / rows}%;width:${100 / columns}%;height:${100 / rows}%` });
}

const siteOf = (id) => SITES.find(({ name }) => name === HEADS[id].site);
const stages = new Set(HEADS.map(({ stage }) => stage)).size > 1;
const nameOf = (head) => `${stages ? `stage ${head.stage}, ` : ""}${headName(head)}`;
const measure = () => DATA.measures.find(({ name }) => name === view.sort);

// how alike two maps are, at the same places of the photograph: the cosine, 1 for equal ones
function likeness(one, other) {
  const at = ({ grid: [rows, columns], values }, i, j) => values[Math.floor(((i + 0.5) / 14) * rows) * columns + Math.floor(((j + 0.5) / 14) * columns)] || 0;
  let [both, first, second] = [0, 0, 0];
  for (let i = 0; i < 14; i++) for (let j = 0; j < 14; j++) {
    const [a, b] = [at(one, i, j), at(other, i, j)];
    both += a * b; first += a * a; second += b * b;
  }
  return both / Math.sqrt(first * second || 1);
}

function sortedBy(found) {
  if (view.sort === "likeness" && view.open.length && found.has(view.open[0])) {
    const to = found.get(view.open[0]);
    return (id) => (found.has(id) ? likeness(found.get(id), to) : null);
  }
  const chosen = measure();
  return chosen ? (id) => chosen.value[id] : () => null;
}

let shown = new Map();
function draw() {
  shown = maps();
  drawPhoto();
  drawHeads();
  drawOpen();
  remember();
}

// tokens before the patches: of the block that has most of them, since some networks add them late
const before = d3.greatest(SITES, (site) => site.prefix) ?? { prefix: 0, class_token: false };
const isClass = (token) => token === 0 && before.class_token;
const tokenName = (token) => (isClass(token) ? "the class token" : `register ${token + (before.class_token ? 0 : 1)}`);
function drawPhoto() {
  const photo = byId("photo"), site = SITES[0];
  photo.style.backgroundImage = `url(${PHOTOS[view.image].picture})`;
  photo.replaceChildren(...[mark(site)].filter(Boolean));
  document.documentElement.style.setProperty("--photo", `url(${PHOTOS[view.image].picture})`);
  const who = !site ? "" : view.token !== null ? tokenName(view.token) : `the patch in row ${Math.floor((askedOf(site) - site.prefix) / site.grid[1])}, column ${(askedOf(site) - site.prefix) % site.grid[1]}`;
  byId("asked").textContent = !site ? PHOTOS[view.image].name : !weights ? `${PHOTOS[view.image].name}: its attention is not in this page.` : `${PHOTOS[view.image].name}: ${view.towards ? `who looks at ${who}` : `where ${who} looks`}.`;
  for (const button of byId("strip").children) button.setAttribute("aria-pressed", String(Number(button.dataset.image) === view.image));
  for (const button of byId("tokens").children) button.setAttribute("aria-pressed", String(Number(button.dataset.token) === view.token));
}

const others = [before.class_token ? "the class token" : "", before.prefix > before.class_token ? "registers" : ""].filter(Boolean).join(" and ");
const spoken = (map) => (map ? `at most ${number(map.most, 2)} a patch${map.special.length ? `, ${number(d3.sum(map.special), 2)} ${view.towards ? "from" : "to"} ${others}` : ""}` : "not in this block");

function drawHeads() {
  const by = sortedBy(shown), most = view.shared ? d3.max(shown.values(), (map) => map.most) : null;
  const focused = byId("heads").contains(document.activeElement) ? Number(document.activeElement.dataset.id) : null;
  const order = (list) => (view.sort ? [...list].sort((a, b) => (by(b.id) ?? -Infinity) - (by(a.id) ?? -Infinity)) : list);
  const rows = view.across ? [{ name: "All", heads: order(SEEN) }] : blocks(SEEN).map((row) => ({ name: stages ? `Stage ${row.stage}, ${siteName(row)}` : siteName(row, "Block"), heads: order(row.heads) }));
  let first = true;
  byId("heads").replaceChildren(...rows.map((row) => el("div", { class: "heads-row" }, el("span", {}, row.name),
    el("div", { class: "tiles", style: `--across:${Math.min(12, row.heads.length)}` }, ...row.heads.map((head) => {
      const map = shown.get(head.id), value = by(head.id);
      const tile = el("button", {
        type: "button", class: "tile", "data-id": head.id, "aria-pressed": String(view.open.includes(head.id)), tabindex: first ? 0 : -1,
        "aria-label": `${nameOf(head)}${value == null ? "" : `, ${view.sort} ${number(value)}`}`, title: `${nameOf(head)}: ${spoken(map)}`, onclick: () => toggle(head.id),
      }, el("i", {}, map ? drawn(map, most ?? map.most) : null), el("b", {}, `${view.across ? `${head.block}.` : ""}${head.index}${value == null ? "" : ` · ${number(value, 2)}`}`));
      first = false;
      return tile;
    })))));
  if (focused !== null) tileOf(focused)?.focus();
  const scales = `Weight of a patch, ${view.shared ? "all heads on one scale" : "each head on its own scale"}.`;
  const special = view.towards ? "Each patch is as bright as it looks at the marked one." : others ? `What goes to ${others} is not drawn; an open head says how much.` : "";
  const click = `A click on a head opens it large${view.sort === "likeness" ? "; likeness is the cosine with the first open head" : ""}.`;
  byId("key").replaceChildren(...(SITES.length ? [heatBar(view.shared ? number(most, 2) : "the head's largest"), ` ${scales} ${special} `, el("span", { class: "click" }, click)] : []));
}
const tileOf = (id) => byId("heads").querySelector(`[data-id="${id}"]`);

function drawOpen() {
  byId("open").replaceChildren(...view.open.map((id) => {
    const map = shown.get(id), head = HEADS[id];
    const numbers = DATA.measures.map(({ name, value, low, high }) => `${name} ${withInterval(value[id], low[id], high[id])}`).join("; ");
    return el("figure", {}, el("div", { class: "over", onclick: choosePlace }, map ? drawn(map, map.most) : null, map ? mark(siteOf(id)) : null),
      el("figcaption", { title: numbers }, el("span", {}, `${nameOf(head)}: ${spoken(map)}`), el("button", { type: "button", "aria-label": `Close ${nameOf(head)}`, onclick: () => toggle(id) }, "✕")));
  }));
}

// ---- choosing

function toggle(id) {
  view.open = view.open.includes(id) ? view.open.filter((other) => other !== id) : [...view.open, id].slice(-MOST_OPEN);
  draw();
}
function choosePlace(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const inside = (value) => Math.min(0.9999, Math.max(0, value));
  Object.assign(view, { x: inside((event.clientX - box.left) / box.width), y: inside((event.clientY - box.top) / box.height), token: null });
  draw();
}
let asking = 0;
async function chooseImage(image) {
  const mine = ++asking;
  view.image = image;
  const found = await unpack(image);
  if (mine !== asking) return; // another photograph was chosen meanwhile
  weights = found;
  draw();
}
byId("photo").addEventListener("click", choosePlace);
byId("photo").addEventListener("keydown", (event) => {
  const site = SITES[0], step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!step || !site) return;
  const [rows, columns] = site.grid, cell = (value, count) => Math.min(count - 1, Math.max(0, value));
  view.x = (cell(Math.floor(view.x * columns) + step[0], columns) + 0.5) / columns;
  view.y = (cell(Math.floor(view.y * rows) + step[1], rows) + 0.5) / rows;
  view.token = null;
  event.preventDefault();
  draw();
});
byId("heads").addEventListener("keydown", (event) => {
  const tiles = [...byId("heads").querySelectorAll(".tile")], at = tiles.indexOf(document.activeElement);
  const across = view.across ? 1 : tiles[at]?.parentElement.children.length;
  const next = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - across, ArrowDown: at + across, Home: 0, End: tiles.length - 1 }[event.key];
  if (next === undefined || !tiles[next]) return;
  tiles[at].tabIndex = -1;
  tiles[next].tabIndex = 0;
  tiles[next].focus();
  event.preventDefault();
});
for (const name of ["towards", "across", "shared"]) byId(name).addEventListener("change", () => { view[name] = byId(name).checked; draw(); });
byId("sort").addEventListener("change", () => { view.sort = byId("sort").value; draw(); });

// the choice is in the link: a reload, or somebody else, sees the same
function remember() {
  const words = { image: view.image, at: view.token === null ? `${view.x.toFixed(3)},${view.y.toFixed(3)}` : `token,${view.token}`, heads: view.open.join(","), sort: view.sort, towards: view.towards ? 1 : "", across: view.across ? 1 : "", shared: view.shared ? 1 : "" };
  const text = new URLSearchParams(Object.entries(words).filter(([, value]) => value !== ""));
  try { history.replaceState(null, "", `#${text}`); } catch { /* a cell of a notebook has no address */ }
}
function recall() {
  const words = new URLSearchParams(location.hash.slice(1)), whole = (text, below) => (/^\d+$/.test(text) && Number(text) < below ? Number(text) : null);
  view.image = whole(words.get("image"), PHOTOS.length) ?? 0;
  const [x, y] = (words.get("at") ?? "").split(",");
  if (x === "token") view.token = whole(y, before.prefix);
  else if (Number(x) >= 0 && Number(x) < 1 && Number(y) >= 0 && Number(y) < 1 && y) Object.assign(view, { x: Number(x), y: Number(y) });
  view.open = (words.get("heads") ?? "").split(",").map((text) => whole(text, HEADS.length)).filter((id) => SEEN.includes(HEADS[id])).slice(0, MOST_OPEN);
  for (const name of ["towards", "across", "shared"]) byId(name).checked = view[name] = words.get(name) === "1";
  if ([...byId("sort").options].some(({ value }) => value === words.get("sort"))) byId("sort").value = view.sort = words.get("sort");
}

function start() {
  document.documentElement.style.setProperty("--shape", DATA.shape);
  byId("sort").append(el("option", { value: "" }, "number"), ...DATA.measures.map(({ name }) => el("option", { value: name }, name)), el("option", { value: "likeness" }, "likeness"));
  byId("tokens").append(...d3.range(before.prefix).slice(0, 6).map((token) => el("button", { type: "button", "data-token": token, onclick: () => { view.token = view.token === token ? null : token; draw(); } }, isClass(token) ? "Class token" : tokenName(token))));
  byId("strip").append(...PHOTOS.map(({ name, picture }, image) => el("button", { type: "button", "data-image": image, title: name, "aria-label": name, style: `background-image:url(${picture})`, disabled: SITES.length > 0 && !byId(`attention-${image}`), onclick: () => chooseImage(image) })));
  byId("choices").hidden = byId("heads").hidden = !SITES.length;
  for (const sentence of DATA.sentences) sentence.heads = sentence.heads.filter((id) => SEEN.includes(HEADS[id]));
  [...byId("told").children].forEach((line, i) => {
    const heads = DATA.sentences[i]?.heads ?? [];
    if (heads.length) line.append(" ", el("button", { type: "button", class: "link", onclick: () => { Object.assign(view, AT_FIRST, { open: heads.slice(0, MOST_OPEN) }); draw(); byId("look").scrollIntoView(); } }, heads.length > 1 ? "Show these heads" : "Show this head"));
  });
  recall();
  if (!view.open.length) view.open = SITES.length ? (DATA.sentences.map(({ heads }) => heads[0]).filter((id) => id !== undefined).concat([SEEN[0].id, SEEN.at(-1).id]).filter((id, i, all) => all.indexOf(id) === i).slice(0, 2)) : [];
  chooseImage(view.image);
}
start();
