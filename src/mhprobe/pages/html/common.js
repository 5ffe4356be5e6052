"use strict";
// What every part of the page shares: the data, elements, numbers, colours, the theme.

const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

// An element with attributes and children. Text always goes in as text: names that come from data cannot be markup.
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

function number(value, digits = 3) {
  if (value == null) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-4 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
}
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const share = ({ accuracy, low, high }) => (low == null ? percent(accuracy) : `${percent(accuracy)} (${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)})`);
// In as many decimals as the interval needs; without an interval that has no width. As mhprobe.io.written.with_interval.
function withInterval(value, low, high) {
  const size = Math.max(Math.abs(low), Math.abs(high)), width = high - low;
  if (value == null || low == null || high == null || !(width > 1e-14 * size)) return number(value);
  const first = Math.floor(Math.log10(size)), digits = Math.max(2, first - Math.floor(Math.log10(0.51 * width)) + 1);
  const decimals = digits - 1 - first, plain = decimals >= 0 && decimals < digits + 4;
  const written = (x) => (plain ? (Number(x.toFixed(decimals)) + 0).toFixed(decimals) : number(x, digits)); // no "-0.00"
  return `${written(value)} (${written(low)} to ${written(high)})`;
}

// Lightness tells low from high; red and blue tell signs. Both can be read by colour-blind readers.
// differences: of which the sign is meant also where all have the same one.
function colours(lists, differences = false) {
  const known = lists.flat().filter((value) => value != null);
  let [low, high] = known.length ? d3.extent(known) : [0, 1];
  if (differences || (low < 0 && high > 0)) {
    const reach = Math.max(-low, high) || 1;
    return { low: -reach, high: reach, of: (value) => d3.interpolateRdBu(0.5 - value / (2 * reach)) };
  }
  if (low === high) [low, high] = low ? [Math.min(low, 0), Math.max(low, 0)] : [0, 1];
  return { low, high, of: (value) => d3.interpolateViridis((value - low) / (high - low)) };
}

// Black or white, whichever is easier to read on a colour (relative luminance as WCAG defines it).
function inkOn(colour) {
  const { r, g, b } = d3.rgb(colour);
  const [red, green, blue] = [r, g, b].map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000" : "#fff";
}

const isDark = () =>
  (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
// Okabe and Ito's hues, made darker on white and lighter on black; shapes and dashes tell lines apart too.
const LINE_COLOURS = {
  light: ["#0072b2", "#c24e00", "#00795a", "#a93f80", "#5f4fb0", "#8a6000", "#444444"],
  dark: ["#56b4e9", "#ff8a3d", "#2fc79a", "#ef9fcb", "#b9a7ff", "#f0b429", "#cccccc"],
};
const DASHES = ["none", "7 3", "2 3"];
const lineColour = (i) => LINE_COLOURS[isDark() ? "dark" : "light"][i % 7];
const lineDash = (i) => DASHES[Math.floor(i / 4) % 3];

// Those who draw listen here; a change of the theme draws everything again.
const redraws = [];
const redraw = () => redraws.forEach((draw) => draw());
function stored(value) {
  try {
    if (value) localStorage.setItem("mhprobe-theme", value);
    return localStorage.getItem("mhprobe-theme");
  } catch { return value; } // a page opened from a file may have no storage
}
if (stored()) document.documentElement.dataset.theme = stored();
byId("theme").addEventListener("click", () => {
  const next = isDark() ? "light" : "dark";
  stored(next);
  document.documentElement.dataset.theme = next;
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

// On paper the folded sentences and figures stand open: nobody can click there.
const unfolded = [];
addEventListener("beforeprint", () => {
  for (const one of document.querySelectorAll("details.more:not([open])")) { one.open = true; unfolded.push(one); }
});
addEventListener("afterprint", () => { for (const one of unfolded.splice(0)) one.open = false; });

// A chart is one picture with one name: Plot names its parts too, which only pictures of their own may be.
function chartOf(options) {
  const chart = Plot.plot({ style: { background: "none", fontSize: "13px" }, ...options });
  chart.setAttribute("role", "img");
  chart.querySelectorAll("[aria-label], [aria-description]").forEach((part) => ["aria-label", "aria-description"].forEach((name) => part.removeAttribute(name)));
  return chart;
}

// A grid of coloured squares, blocks down and heads across; fill(row, head) makes what stands in it.
function blocks(heads) {
  const rows = d3.groups(heads, (head) => head.site).map(([site, all]) => ({ site, stage: all[0].stage, block: all[0].block, heads: all }));
  return rows;
}
// By its module if a block has several attentions side by side.
const sitesOf = d3.rollup(DATA.heads ?? [], (heads) => new Set(heads.map((head) => head.site)).size, (head) => head.block);
const siteName = ({ site, block }, word = "block") => (sitesOf.get(block) > 1 ? site : `${word} ${block}`);
const headName = (head) => `${siteName(head)}, head ${head.index}`;

function squares(heads, values, scale, caption) {
  const rows = blocks(heads).map((row) =>
    el("div", { class: "row" }, el("span", {}, String(row.block)),
      el("div", { class: "cells" }, ...row.heads.map((head) => {
        const value = values[head.id];
        return el("div", { class: value == null ? "cell none" : "cell", style: value == null ? "" : `background:${scale.of(value)}` });
      }))));
  const known = values.filter((value) => value != null);
  const says = known.length ? `${caption}: from ${number(d3.min(known))} to ${number(d3.max(known))}` : caption;
  return [el("div", { role: "img", "aria-label": says }, ...rows), el("figcaption", {}, `${says}.`)];
}

// The colour bar: a strip of colours with its ends, and marks for levels to compare with.
function colourBar(scale, label, marks) {
  const steps = d3.range(0, 1.0001, 0.05).map((t) => scale.of(scale.low + t * (scale.high - scale.low)));
  const place = (value) => 100 * Math.min(1, Math.max(0, (value - scale.low) / (scale.high - scale.low)));
  const strip = el("div", { style: `height:14px;border-radius:3px;position:relative;background:linear-gradient(90deg,${steps})` },
    ...marks.map(({ value }) => el("i", { style: `position:absolute;top:-4px;bottom:-4px;width:3px;left:calc(${place(value)}% - 1px);background:var(--ink);box-shadow:0 0 0 1px var(--paper)` })));
  const text = marks.map(({ name, value }) => `${name}: ${number(value)}`).join("; ");
  return el("div", { style: "max-width:30rem;margin-top:0.8rem;font-size:0.85rem" }, strip,
    el("div", { style: "display:flex;justify-content:space-between;gap:1rem" }, el("span", {}, number(scale.low)), el("span", {}, label), el("span", {}, number(scale.high))),
    text ? el("div", { class: "note" }, `Marks: ${text}`) : null);
}
