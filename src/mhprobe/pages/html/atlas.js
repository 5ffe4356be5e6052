"use strict";
// The head atlas: a grid of heads coloured by a measure, its control beside it, and everything known of one head.

const HEADS = DATA.heads;
const atlas = { colour: null, map: null, open: 0, focus: 0, chosen: new Set() };
const listeners = []; // told when heads are chosen
const same = (a, b) => a.size === b.size && [...a].every((x) => b.has(x));

function choose(heads) { // numbers of neurons come after those of heads
  atlas.chosen = new Set([...heads].filter((id) => id < HEADS.length));
  drawGrid();
  drawHead();
  drawChosen();
  listeners.forEach((tell) => tell());
}
function toggle(id) {
  const next = new Set(atlas.chosen);
  next.has(id) ? next.delete(id) : next.add(id);
  choose(next);
}
function openHead(id, scroll = false) {
  atlas.open = atlas.focus = id;
  drawGrid();
  drawHead();
  if (scroll) byId("head").scrollIntoView({ block: "nearest" });
}

// what the grid can be coloured by: every column of every measure of single heads
const CHOICES = DATA.measures.flatMap((measure, m) =>
  Object.entries(measure.columns).map(([column, values]) => ({ key: `${m}/${column}`, measure, column, values, main: column === "value" })));
const LEFT_OR_GONE = { low: 0, high: 1, of: d3.interpolateRgb("#DCE6EE", "#0072B2") }; // as in the figure of kept heads
const current = () => CHOICES.find((choice) => choice.key === atlas.colour);

function besides(choice) {
  if (!choice || !choice.main) return [];
  const found = [];
  if (choice.measure.twin) found.push({ name: "random network", says: "The same in a freshly initialised network", values: choice.measure.twin });
  if (choice.measure.chance) found.push({ name: choice.measure.reference, says: `What ${choice.measure.reference} would give`, values: choice.measure.chance });
  return found;
}

function fillMenus() {
  for (const measure of DATA.measures) {
    const group = el("optgroup", { label: measure.name });
    for (const choice of CHOICES.filter((c) => c.measure === measure))
      group.append(el("option", { value: choice.key }, choice.main ? measure.name : `${measure.name}: ${choice.column.replaceAll("_", " ")}`));
    byId("colour").append(group);
  }
  const first = CHOICES.find(({ measure }) => measure === DATA.measures[DATA.opens]) ?? CHOICES[0];
  byId("colour").value = atlas.colour = first?.key ?? null;
  atlas.open = atlas.focus = d3.maxIndex(first?.values ?? [0]); // the first that is open is the highest
  byId("many").max = HEADS.length;
}

function drawBeside() {
  const found = besides(current());
  const menu = byId("beside"), before = menu.value;
  menu.replaceChildren(...found.map(({ name }) => el("option", {}, name)));
  if (found.some(({ name }) => name === before)) menu.value = before;
  byId("beside-box").hidden = found.length < 2;
  return found.find(({ name }) => name === menu.value);
}

function drawGrid() {
  const choice = current(), beside = drawBeside(), decided = isDecided(choice?.values);
  const scale = decided ? LEFT_OR_GONE : colours([choice?.values ?? [], beside?.values ?? []]);
  const rows = [];
  let stage = null;
  const stages = new Set(HEADS.map((head) => head.stage)).size;
  const hadFocus = byId("grid").contains(document.activeElement);
  for (const row of blocks(HEADS)) {
    if (stages > 1 && row.stage !== stage) rows.push(el("p", { class: "stage", role: "presentation" }, `Stage ${row.stage}`));
    stage = row.stage;
    rows.push(el("div", { role: "row", class: "row" },
      el("span", { role: "rowheader" }, DATA.live ? many(row.heads.map(({ id }) => id), siteName(row, "Block")) : siteName(row, "Block")),
      el("div", { class: "cells", role: "presentation" }, ...row.heads.map((head) => cell(head, choice, scale)))));
  }
  if (DATA.live) rows.unshift(el("div", { class: "row columns" }, el("span"), el("div", { class: "cells" }, ...d3.range(d3.max(HEADS, ({ index }) => index) + 1).map((index) => many(HEADS.filter((head) => head.index === index).map(({ id }) => id), String(index), "column")))));
  byId("grid").replaceChildren(...rows);
  byId("grid").classList.toggle("no-numbers", !byId("numbers").checked);
  if (hadFocus) cellOf(atlas.focus)?.focus();
  const differs = beside && new Set(beside.values).size > 1; // one number for all heads is a mark of the legend
  byId("control").replaceChildren(...(differs ? squares(HEADS, beside.values, scale, beside.says) : []));
  byId("control-says")?.toggleAttribute("hidden", !differs);
  const marks = [];
  if (choice?.main)
    for (const one of besides(choice)) marks.push({ name: `mean of ${one.name === "random network" ? "a random network" : one.name}`, value: d3.mean(one.values) });
  const alike = Object.entries(choice?.main ? choice.measure.constants : {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${number(value)}`);
  byId("legend").replaceChildren(decided ? el("p", { class: "note" }, "Blue is 1, pale is 0.") : choice ? colourBar(scale, choice.main ? choice.measure.label : choice.column.replaceAll("_", " "), marks.filter(({ value }) => value != null)) : "", alike.length ? el("p", { class: "note" }, `The same for all heads: ${alike.join(", ")}.`) : "");
  drawNeurons(choice?.main ? choice.measure : null);
  const nothing = choice?.main && !decided && !besides(choice).length ? " This run has no control for it: probe.control=random_init makes one." : "";
  byId("about").textContent = choice ? `${choice.measure.about}${choice.measure.about ? " " : ""}Colour: ${choice.main ? choice.measure.label : choice.column.replaceAll("_", " ")}.${choice.main && choice.measure.larger ? ` Larger means: ${choice.measure.larger}.` : ""}${nothing}`
    : "This run measured no single heads: the squares are there to choose heads and to follow them through the masking orders.";
}

// the neurons of a block from the lowest to the highest, a colour for each of 64 equal parts, and the names of both ends
function drawNeurons(measure) {
  const strips = measure?.neurons ?? [], decided = isDecided(measure?.columns.value);
  const scale = decided ? LEFT_OR_GONE : colours(strips.map(({ bins }) => bins));
  // bins are means of parts that differ by one neuron at most
  const ones = ({ bins, count }) => Math.round(d3.sum(bins, (mean, i) => mean * (Math.floor(count / bins.length) + (i < count % bins.length))));
  const ends = (strip) => decided ? `${ones(strip)} of ${strip.count} (${percent(ones(strip) / strip.count)}) kept`
    : `lowest ${strip.lowest[0]}: ${number(strip.lowest[1])}, highest ${strip.highest[0]}: ${number(strip.highest[1])}`;
  const rows = strips.map((strip) => el("div", { class: "row" }, el("span", { role: "rowheader" }, `Block ${strip.block}`),
    el("div", {}, el("div", { class: "strip", role: "img", "aria-label": `Neurons of block ${strip.block}: ${ends(strip)}` },
      ...strip.bins.map((value) => el("i", { style: `background:${scale.of(value)}`, title: number(value) }))), el("p", { class: "note" }, ends(strip)))));
  byId("neurons").replaceChildren(...(rows.length ? [el("h3", {}, "Neurons"), el("p", { class: "note" },
    decided ? "The share of each block's neurons that is kept." : `Those of a block from the lowest to the highest, ${d3.sum(strips, ({ count }) => count)} in all; a colour is the mean of one of ${strips[0].bins.length} equal parts. Numbers count from 0 within the block.`),
    ...rows, decided ? "" : colourBar(scale, measure.label, [])] : []));
}

// a button for all heads of a row or a column: it chooses them, or lets them go if all are chosen
function many(ids, text, kind = "row") {
  const all = ids.every((id) => atlas.chosen.has(id)), rest = [...atlas.chosen].filter((id) => !ids.includes(id));
  return el("button", { type: "button", class: `link ${kind}`, "aria-pressed": String(all), "aria-label": kind === "row" ? text : `Heads number ${text}`, onclick: () => choose(all ? rest : [...rest, ...ids]) }, text);
}

const isDecided = (values) => Boolean(values?.length) && values.every((value) => value === 0 || value === 1); // kept or not: no measure of a network
const cellOf = (id) => byId("grid").querySelector(`[data-id="${id}"]`);

function cell(head, choice, scale) {
  const value = choice?.values[head.id];
  const chosen = atlas.chosen.has(head.id);
  const background = value == null ? null : scale.of(value);
  return el("div", {
    role: "gridcell", class: `cell${value == null ? " none" : ""}${head.id === atlas.open ? " open" : ""}`, "data-id": head.id,
    tabindex: head.id === atlas.focus ? 0 : -1, "aria-selected": String(chosen),
    "aria-label": `${headName(head)}${value == null ? "" : `: ${number(value)}`}${chosen ? ", chosen" : ""}`,
    title: `${headName(head)} (number ${head.id})${value == null ? "" : `: ${number(value)}`}`,
    style: background ? `background:${background};color:${inkOn(background)}` : "",
    onclick: (event) => {
      atlas.focus = head.id;
      if (event.ctrlKey || event.metaKey || byId("click-chooses").checked) toggle(head.id);
      else openHead(head.id);
      cellOf(head.id).focus();
    },
  }, value == null ? "" : tiny(value));
}
// as few characters as a small square takes
function tiny(value) {
  const size = Math.abs(value);
  if (size >= 99.5 || Number.isInteger(value)) return size >= 9999.5 ? value.toExponential(0) : String(Math.round(value));
  if (size < 0.0095) return size === 0 ? "0" : size < 0.0005 ? "~0" : value.toFixed(3).replace("0.", ".");
  return String(Number(value.toPrecision(2))).replace(/^(-?)0\./, "$1.");
}

byId("grid").addEventListener("keydown", (event) => {
  const rows = blocks(HEADS), at = HEADS[atlas.focus];
  const row = rows.findIndex(({ site }) => site === at.site);
  const go = {
    ArrowLeft: () => at.id - 1, ArrowRight: () => at.id + 1,
    ArrowUp: () => rows[row - 1]?.heads.at(Math.min(at.index, rows[row - 1].heads.length - 1)).id,
    ArrowDown: () => rows[row + 1]?.heads.at(Math.min(at.index, rows[row + 1].heads.length - 1)).id,
    Home: () => rows[row].heads[0].id, End: () => rows[row].heads.at(-1).id,
  }[event.key];
  if (go) {
    const next = go();
    if (HEADS[next]) {
      cellOf(atlas.focus).tabIndex = -1;
      atlas.focus = next;
      cellOf(next).tabIndex = 0;
      cellOf(next).focus();
    }
  } else if (event.key === "Enter") openHead(atlas.focus);
  else if (event.key === " ") toggle(atlas.focus);
  else return;
  event.preventDefault();
});

// one head

function drawHead() {
  const head = HEADS[atlas.open];
  const stages = new Set(HEADS.map(({ stage }) => stage)).size > 1 ? `stage ${head.stage}, ` : "";
  const chosen = atlas.chosen.has(head.id);
  const step = (by) => el("button", { type: "button", "aria-label": by < 0 ? "Head before" : "Next head", onclick: () => openHead((head.id + by + HEADS.length) % HEADS.length) }, by < 0 ? "←" : "→");
  const name = `${stages}${headName(head)}`;
  byId("head").replaceChildren(
    el("h3", {}, name[0].toUpperCase() + name.slice(1)),
    el("div", { class: "controls" }, step(-1), step(1),
      el("button", { type: "button", id: "choose-head", "aria-pressed": String(chosen), onclick: () => toggle(head.id) }, chosen ? "Chosen ✕" : "Choose")),
    el("p", { class: "note" }, `Number ${head.id} of ${HEADS.length} (from 0), in ${head.site}`),
    ...numbersOf(head), ...mapsOf(head), ...nearest(head), ...classesOf(head), ...ordersOf(head), ...historyOf(head));
}

const rankOf = (values, id) => 1 + values.filter((other) => other != null && other > values[id]).length;

function numbersOf(head) {
  const rows = CHOICES.filter(({ main, measure, column }) => main || Object.keys(measure.columns)[0] === column).map(({ measure, values }) => {
    const value = values[head.id];
    const against = [];
    if (measure.twin?.[head.id] != null) against.push(`random ${number(measure.twin[head.id])}`);
    if (measure.chance?.[head.id] != null) against.push(`${measure.reference} ${number(measure.chance[head.id])}`);
    return el("tr", {}, el("th", { scope: "row" }, measure.name), el("td", {}, withInterval(value, measure.low?.[head.id], measure.high?.[head.id]).replaceAll(" to ", " to\u00a0")),
      el("td", { class: "number" }, value == null || isDecided(values) ? "–" : `${rankOf(values, head.id)} of ${values.filter((v) => v != null).length}`),
      el("td", {}, ...(against.length ? against.flatMap((text, i) => (i ? [el("br"), text] : [text])) : ["–"])));
  });
  if (!rows.length) return [];
  const random = CHOICES.some(({ measure }) => measure.twin?.[head.id] != null) ? " Random: the same head of a freshly initialised network." : "";
  return [el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Numbers of this head" }, el("table", {}, el("thead", {}, el("tr", {}, ...["Measure", "Value (95\u00a0%)", "Rank", "Read against"].map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows))),
    el("p", { class: "note" }, `Rank 1 is the largest value.${random}`)];
}

function nearest(head) {
  return DATA.pairs.flatMap((measure) => {
    const near = measure.pairs.filter(([a, b, value]) => value != null && (a === head.id || b === head.id))
      .map(([a, b, value, low, high]) => ({ other: HEADS[a === head.id ? b : a], value, low, high }));
    if (!near.length) return [];
    near.sort((x, y) => (measure.nearest === "smallest" ? x.value - y.value : y.value - x.value));
    const chance = measure.chance == null ? "" : ` ${measure.chance_is[0].toUpperCase()}${measure.chance_is.slice(1)}: ${number(measure.chance)}.`;
    return [el("h3", {}, `Nearest by ${measure.name}`),
      el("p", {}, ...near.slice(0, 5).flatMap(({ other, value, low, high }, i) => [i ? "; " : "", el("button", { type: "button", class: "link", onclick: () => openHead(other.id) }, headName(other)), ` ${withInterval(value, low, high)}`])),
      el("p", { class: "note" }, `${measure.label}, ${measure.nearest} first; compared with ${near.length} heads.${chance}`)];
  });
}

function bars(names, values) {
  const reach = d3.max(values, (value) => Math.abs(value ?? 0)) || 1;
  const signed = values.some((value) => value < 0);
  return el("div", { class: "bars" }, ...names.flatMap((name, i) => {
    const value = values[i] ?? 0, width = (Math.abs(value) / reach) * (signed ? 50 : 100);
    const left = signed ? (value < 0 ? 50 - width : 50) : 0;
    const bar = el("i", { style: `left:${left}%;width:${width}%;background:${lineColour(value < 0 ? 0 : 1)}` });
    return [el("span", { class: "name", title: name }, name), el("span", { class: "track", "aria-hidden": "true" }, bar), el("span", {}, number(values[i], 2))];
  }));
}
const classesOf = (head) => DATA.classes.flatMap(({ name, names, values }) => {
  if (!values[head.id] || names.length > 40) return [];
  return [el("h3", {}, name[0].toUpperCase() + name.slice(1)), bars(names, values[head.id])];
});

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"; // levels of a map, from 0

function drawnMap(rows, says) {
  const canvas = el("canvas", { width: rows[0].length, height: rows.length, role: "img", "aria-label": says });
  const context = canvas.getContext("2d");
  rows.forEach((row, y) => [...row].forEach((letter, x) => {
    context.fillStyle = d3.interpolateViridis(LETTERS.indexOf(letter) / (LETTERS.length - 1));
    context.fillRect(x, y, 1, 1);
  }));
  return canvas;
}

function mapsOf(head) {
  const known = DATA.maps.filter(({ heads }) => heads[head.id]);
  const hidden = DATA.maps.find((one) => one.hidden)?.hidden;
  if (!known.length) return hidden ? [el("h3", {}, "Where it looks"), el("p", { class: "note" }, hidden)] : [];
  const { name, titles, pictures, heads } = known.find((one) => one.name === atlas.map) ?? known[0];
  const menu = el("select", { id: "which-map", onchange: (event) => { atlas.map = event.target.value; drawHead(); byId("which-map").focus(); } },
    ...known.map((one) => el("option", { selected: one.name === name }, one.name)));
  const shown = heads[head.id].map((rows, i) => el("figure", { class: "map" },
    pictures[i] ? el("img", { src: pictures[i], alt: titles[i] ?? `image ${i}` }) : null,
    drawnMap(rows, `${name}, ${headName(head)}, ${titles[i] ?? `image ${i}`}`), el("figcaption", {}, titles[i] ?? `image ${i}`)));
  return [el("h3", {}, "Where it looks"), el("p", { class: "controls" }, el("label", {}, "Map ", menu)), el("div", { class: "maps" }, ...shown),
    el("p", { class: "note" }, "Bright: much, each map on its own scale from 0. With even attention a map would be one colour.")];
}

function ordersOf(head) {
  const rows = DATA.lines.filter(({ averaged, split, points }) => !averaged && split === DATA.lines.at(-1).split && points.length > 1).map(({ curve, points }) => {
    const at = points.find((point) => heads(point.masked).includes(head.id));
    return el("tr", {}, el("th", { scope: "row" }, curve), el("td", {}, at ? `step ${at.step} of ${points.at(-1).step}` : "stays"),
      el("td", {}, at ? share(at) : "–"));
  });
  if (!rows.length) return [];
  return [el("h3", {}, "When it is masked"), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "When it is masked" }, el("table", {}, el("thead", {}, el("tr", {}, ...["Order", "Goes at", `Then: ${DATA.scored}`].map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows)))];
}

function historyOf(head) {
  return DATA.history.flatMap(({ name, label, steps, values }) => {
    const others = steps.flatMap((step, i) => values[i].map((value, id) => ({ step, value, id })));
    const own = others.filter(({ id }) => id === head.id);
    const chart = chartOf({
      width: 380, height: 170, style: { background: "none", fontSize: "11px" }, x: { label: "step" }, y: { label, grid: true }, ariaLabel: `${name} through training`,
      marks: [Plot.line(others, { x: "step", y: "value", z: "id", stroke: "currentColor", strokeOpacity: 0.15 }), Plot.line(own, { x: "step", y: "value", stroke: lineColour(1), strokeWidth: 2.5 })],
    });
    return [el("h3", {}, `${name[0].toUpperCase()}${name.slice(1)} through training`), chart, el("p", { class: "note" }, "Thin lines: the other heads.")];
  });
}

// the chosen heads: known accuracy, and the command that removes them

const heads = (masked) => (masked === "" ? [] : masked.split(" ").map(Number));

function knownPoint(chosen) {
  const all = [...DATA.lines.flatMap(({ curve, split, averaged, points }) => (averaged ? [] : points.map((point) => ({ curve, split, ...point })))), ...DATA.repeats];
  const fits = all.filter((point) => (point.masked !== "" || point.step === 0) && same(new Set(heads(point.masked)), chosen));
  return fits.find(({ split }) => split === "test") ?? fits[0];
}

function saidOf(chosen) {
  if (!chosen.size) return `Choose heads in the grid${DATA.lines.length ? ", or a point of the masking curve" : ""}.`;
  const point = knownPoint(chosen);
  if (point) return `Without them ${point.split} ${DATA.scored} is ${share(point)}: step ${point.step} of ${point.curve}.`;
  const single = DATA.measures.find(({ masks }) => masks);
  if (single && chosen.size === 1) {
    const [id] = chosen;
    return `Without it the loss rises by ${withInterval(single.columns.value[id], single.low?.[id], single.high?.[id])} nats.`;
  }
  const sum = single ? ` One by one they raise the loss by ${number(d3.sum([...chosen], (id) => single.columns.value[id]))} nats in sum; together it may be more or less.` : "";
  return `This run did not measure the ${DATA.scored} without exactly these.${sum} The command measures it.`;
}

function drawChosen() {
  const chosen = [...atlas.chosen].sort((a, b) => a - b);
  byId("chosen-heads").textContent = chosen.length ? `${chosen.length} of ${HEADS.length}: ${chosen.join(" ")}` : "None.";
  byId("chosen-known").textContent = saidOf(atlas.chosen);
  const command = `${DATA.prune.before}${chosen.join(",")}${DATA.prune.after}`;
  const copy = el("button", { type: "button", id: "copy", onclick: () => { navigator.clipboard?.writeText(command).then(() => { copy.textContent = "Copied"; }, () => { copy.textContent = "Select and copy"; }); } }, "Copy");
  byId("chosen-command").replaceChildren(...(chosen.length ? [el("p", { class: "note" }, "This removes exactly these heads for good, and tests what is left:"), el("div", { class: "command" }, el("pre", {}, command), copy)] : []));
}

function extreme(sign) {
  const values = current()?.values ?? [];
  const order = HEADS.map(({ id }) => id).filter((id) => values[id] != null).sort((a, b) => sign * (values[a] - values[b]) || a - b);
  choose(order.slice(0, Math.max(0, Number(byId("many").value))));
}

if (HEADS.length) {
  fillMenus();
  byId("colour").addEventListener("change", () => { atlas.colour = byId("colour").value; drawGrid(); });
  for (const id of ["beside", "numbers"]) byId(id).addEventListener("change", drawGrid);
  byId("lowest").addEventListener("click", () => extreme(1));
  byId("highest").addEventListener("click", () => extreme(-1));
  byId("clear").addEventListener("click", () => choose([]));
  for (const id of ["lowest", "highest", "many-box", "colour-box", "numbers-box"]) byId(id).hidden = !CHOICES.length;
  drawGrid();
  drawHead();
  drawChosen();
  redraws.push(drawHead);
}
