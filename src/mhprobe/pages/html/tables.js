"use strict";
// Tables that sort and filter; each is built when it is opened.

const FIRST = 50; // rows that are shown at once
const SIGNS = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b };

// "cat block=3 value>0.5": every word must be in a cell, every condition must hold
function filterOf(text, columns) {
  const tests = text.trim().split(/\s+/).filter(Boolean).map((part) => {
    const [, name, sign, wanted] = part.match(/^([^<>=]+)(<=|>=|<|>|=)(.+)$/) ?? [];
    const at = columns.indexOf(name);
    if (at < 0) return (row) => row.some((cell) => String(cell ?? "").toLowerCase().includes(part.toLowerCase()));
    if (sign === "=") return (row) => String(row[at] ?? "") === wanted;
    return (row) => row[at] != null && SIGNS[sign](row[at], Number(wanted));
  });
  return (row) => tests.every((test) => test(row));
}

function sortedBy(rows, at, down) {
  const sign = down ? -1 : 1;
  return rows.slice().sort((x, y) => {
    const [a, b] = [x[at], y[at]];
    if (a == null || b == null) return (a == null) - (b == null); // what is missing stands last, either way
    return sign * (typeof a === "number" && typeof b === "number" ? a - b : d3.ascending(String(a), String(b)));
  });
}

function build(table) {
  const { name, columns, rows } = table;
  const state = { at: null, down: false, all: false };
  const body = el("tbody"), count = el("span", { class: "note", role: "status" }), more = el("button", { type: "button", onclick: () => { state.all = true; draw(); } }, "Show all");
  const filter = el("input", { type: "search", placeholder: "filter", "aria-label": `Filter ${name}`, oninput: () => draw() });
  const heads = columns.map((column, at) => el("th", { scope: "col" }, el("button", { type: "button", onclick: () => { state.down = state.at === at ? !state.down : typeof rows[0]?.[at] === "number"; state.at = at; draw(); } }, column)));
  function draw() {
    let found = rows.filter(filterOf(filter.value, columns));
    if (state.at != null) found = sortedBy(found, state.at, state.down);
    heads.forEach((th, at) => (at === state.at ? th.setAttribute("aria-sort", state.down ? "descending" : "ascending") : th.removeAttribute("aria-sort")));
    const shown = state.all ? found : found.slice(0, FIRST);
    body.replaceChildren(...shown.map((row) => el("tr", {}, ...row.map((cell, at) => el("td", typeof cell === "number" ? { class: "number" } : {}, content(cell, columns[at]))))));
    count.textContent = `${found.length} of ${rows.length} rows${shown.length < found.length ? `, ${shown.length} shown` : ""}`;
    more.hidden = shown.length === found.length;
  }
  draw();
  return [el("div", { class: "controls" }, filter, count, more, DATA.runs ? null : el("a", { href: `tables/${encodeURIComponent(name)}.csv` }, "the file")),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Table ${name}` }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body))];
}

// the number of a head opens it in the atlas
function content(cell, column) {
  if (/^head(_[ab])?$/.test(column) && DATA.heads?.[cell] && byId("head"))
    return el("button", { type: "button", class: "link", "aria-label": `Open ${headName(DATA.heads[cell])}`, onclick: () => { openHead(cell); byId("atlas").scrollIntoView(); } }, String(cell));
  return number(cell, 5);
}

// All tables stand behind one search field: it finds those with a word in the name, a column or a cell.
const holds = ({ name, columns, rows }, word) => [name.replaceAll("_", " "), name, ...columns].some((text) => text.toLowerCase().includes(word)) || rows.some((row) => row.some((cell) => String(cell ?? "").toLowerCase().includes(word)));
const every = DATA.tables.map((table) => {
  const details = el("details", { class: "table" }, el("summary", {}, table.name.replaceAll("_", " "), el("span", { class: "note" }, `${table.rows.length} rows`)));
  details.addEventListener("toggle", () => { if (details.open && details.childElementCount === 1) details.append(...build(table)); });
  return details;
});
function searchTables() {
  const words = byId("find-table").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = DATA.tables.map((table) => words.every((word) => holds(table, word)));
  every.forEach((details, i) => { details.hidden = !found[i]; });
  byId("found-tables").textContent = words.length ? `${found.filter(Boolean).length} of ${every.length} tables` : "";
  if (words.length) byId("list-tables").open = true;
}
byId("all-tables").append(
  el("div", { class: "controls" }, el("input", { type: "search", id: "find-table", placeholder: "a measure, a column, a value", "aria-label": "Search the tables", oninput: searchTables }), el("span", { id: "found-tables", class: "note", role: "status" })),
  el("details", { id: "list-tables" }, el("summary", {}, `All ${every.length} tables`), ...every));
