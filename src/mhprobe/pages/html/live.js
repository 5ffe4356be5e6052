"use strict";
// Heads that switch live: the network of the run in pieces (stem, blocks, tail), by ONNX Runtime Web, on the run's images.

const LIVE = DATA.live;
const [COUNT, CHANNELS, TALL, WIDE] = LIVE.shape;
const SIZE = CHANNELS * TALL * WIDE, CHUNK = 64, KEPT = 4e8; // bytes of streams that are kept
const live = { sessions: [], pixels: null, kept: new Map(), before: null, gate: 0, latest: 0, past: [new Set()], path: [] };

async function opened(id) {
  const packed = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// uint8 pixels as the network takes them, rounded as torch rounds: every step in float32
function normalised(pixels, count) {
  const values = new Float32Array(count * SIZE), { mean, std } = LIVE.spec, area = TALL * WIDE;
  for (let channel = 0; channel < CHANNELS; channel++) {
    const scale = Math.fround(1 / Math.fround(255 * Math.fround(std[channel]))), shift = Math.fround(Math.fround(mean[channel]) / Math.fround(std[channel]));
    for (let image = 0; image < count; image++) {
      const start = image * SIZE + channel * area;
      for (let at = start; at < start + area; at++) values[at] = Math.fround(Math.fround(pixels[at] * scale) - shift);
    }
  }
  return new ort.Tensor("float32", values, [count, CHANNELS, TALL, WIDE]);
}

// Logits of some images. What pieces before the first changed gate gave is kept by name. attention: takes it, by site, if given.
async function forward(name, images, gates, attention = null) {
  const old = attention ? null : live.kept.get(name), streams = [];
  let stream = null, same = Boolean(old);
  for (const [p, [first, count, sites]] of LIVE.pieces.entries()) {
    const mine = gates.slice(first, first + count);
    same &&= mine.every((gate, i) => gate === old.gates[first + i]);
    if (same) stream = old.streams[p];
    else {
      const inputs = { stream: stream ?? images(), ...(count ? { gates: new ort.Tensor("float32", mine, [count]) } : {}) };
      const found = await live.sessions[p].run(inputs, attention ? undefined : ["out"]);
      stream = found.out;
      if (attention) for (const site of sites) attention.set(site, found[`attention${site}`]);
    }
    streams.push(stream);
  }
  const bytes = 4 * d3.sum(streams, ({ data }) => data.length);
  if (!attention && bytes * Math.ceil(COUNT / CHUNK) < KEPT) live.kept.set(name, { gates, streams });
  return stream;
}

function softmax(logits) {
  const most = Math.max(...logits), powers = [...logits].map((logit) => Math.exp(logit - most)), sum = d3.sum(powers);
  return powers.map((power) => power / sum);
}
const gatesOf = (chosen) => Float32Array.from(HEADS, ({ id }) => (chosen.has(id) ? live.gate : 1));

// Wilson's 95 % interval of a share
function wilson(right, count) {
  const z = 1.959964, share = right / count, middle = share + (z * z) / (2 * count), half = z * Math.sqrt((share * (1 - share)) / count + (z * z) / (4 * count * count));
  return { accuracy: share, low: (middle - half) / (1 + (z * z) / count), high: (middle + half) / (1 + (z * z) / count) };
}

// The classes that the images are taken for, chunk by chunk; null where another choice came meanwhile.
async function predicted(gates, tell) {
  const mine = ++live.latest, taken = [];
  let largest = 0;
  for (let start = 0; start < COUNT; start += CHUNK) {
    const count = Math.min(CHUNK, COUNT - start);
    const logits = await forward(`chunk ${start}`, () => normalised(live.pixels.subarray(start * SIZE, (start + count) * SIZE), count), gates);
    const classes = logits.dims[1];
    for (let image = 0; image < count; image++) {
      const row = logits.data.subarray(image * classes, (image + 1) * classes);
      taken.push(d3.maxIndex(row));
      if (!live.before) largest = Math.max(largest, ...row.map((logit, i) => Math.abs(logit - LIVE.logits[start + image][i])));
    }
    if (mine !== live.latest) return null;
    tell(taken);
    await new Promise((resume) => setTimeout(resume)); // the page answers between chunks
    if (mine !== live.latest) return null;
  }
  return { taken, largest };
}

const rightOf = (taken) => taken.filter((label, image) => label === LIVE.labels[image]).length;
function say(taken) {
  const of = taken.length, whole = rightOf(live.before.slice(0, of));
  const what = !atlas.chosen.size ? "With all heads" : live.gate ? `With the gate of ${atlas.chosen.size} heads at ${live.gate}` : `Without ${atlas.chosen.size === 1 ? "this head" : `these ${atlas.chosen.size} heads`}`;
  byId("live-says").textContent = `${what} ${share(wilson(rightOf(taken), of))} of ${of === COUNT ? "all" : "the first"} ${of} test images ${of === 1 ? "is" : "are"} right${atlas.chosen.size ? `; with all heads ${percent(whole / of)}` : ""}.${of < COUNT ? " …" : ""}`;
}

function sayChanges(taken) {
  const changed = d3.range(COUNT).filter((image) => taken[image] !== live.before[image]);
  const lost = LIVE.classes.map((name, label) => ({ name, of: LIVE.labels.filter((each) => each === label).length, by: d3.sum(LIVE.labels, (each, image) => (each === label ? (live.before[image] === each) - (taken[image] === each) : 0)) }))
    .filter(({ by }) => by > 0).sort((a, b) => b.by - a.by).slice(0, 3);
  byId("live-classes").textContent = !atlas.chosen.size ? "" : `${changed.length} ${changed.length === 1 ? "image changes" : "images change"} sides.${lost.length ? ` Most is lost by ${lost.map(({ name, by, of }) => `${name} (${by} of ${of})`).join(", ")}.` : ""}`;
  byId("live-changed").replaceChildren(...changed.slice(0, 12).map((image) => el("figure", { class: "map" }, picture(live.pixels.subarray(image * SIZE, (image + 1) * SIZE)),
    el("figcaption", {}, `${LIVE.classes[LIVE.labels[image]]}: ${LIVE.classes[live.before[image]]} → ${LIVE.classes[taken[image]]}`))));
}

function picture(pixels) {
  const canvas = el("canvas", { width: WIDE, height: TALL, role: "img", "aria-label": "the image" }), context = canvas.getContext("2d");
  const drawn = context.createImageData(WIDE, TALL), area = TALL * WIDE;
  const colours = (at) => (CHANNELS < 3 ? Array(3).fill(d3.mean(d3.range(CHANNELS), (c) => pixels[c * area + at])) : [0, 1, 2].map((c) => pixels[c * area + at]));
  for (let at = 0; at < area; at++) drawn.data.set([...colours(at), 255], 4 * at);
  context.putImageData(drawn, 0, 0);
  return canvas;
}

async function answer() {
  if (!live.before) return;
  remember();
  const chosen = new Set(atlas.chosen), found = await predicted(gatesOf(chosen), say);
  if (!found) return;
  sayChanges(found.taken);
  walk(chosen, found.taken);
  await answerOwn();
  byId("live").dataset.answered = [...chosen].sort((a, b) => a - b).join(",");
}

// one's own order: as long as heads are added to those that are off, a line in the masking curve
function walk(chosen, taken) {
  if (live.gate || !byId("curve")) return; // the run drew no curve
  const before = live.path.at(-1)?.heads ?? new Set();
  if (!live.path.length || chosen.size <= before.size || ![...before].every((id) => chosen.has(id))) live.path = [];
  live.path.push({ heads: chosen, heads_masked: chosen.size, ...wilson(rightOf(taken), COUNT) });
  own.splice(0, own.length, ...live.path);
  drawLegend();
  drawCurve();
}

// the choice in the link, and back

function remember() {
  const words = [...atlas.chosen].sort((a, b) => a - b).join(",");
  try { history.replaceState(null, "", words ? `#heads=${words}&gate=${live.gate}` : "#atlas"); } catch { /* a cell of a notebook has no address */ }
}
function recall() {
  const words = new URLSearchParams(location.hash.slice(1)), gate = Number(words.get("gate"));
  const heads = (words.get("heads") ?? "").split(",").filter((text) => /^\d+$/.test(text)).map(Number).filter((id) => id < HEADS.length);
  if (gate >= 0 && gate <= 2) setGate(gate);
  if (heads.length) choose(heads);
}
function setGate(gate) {
  live.gate = gate;
  byId("gate").value = gate;
  byId("gate-says").textContent = gate === 0 ? "0: off" : gate === 1 ? "1: as it is" : String(gate);
}

// an image of one's own

async function answerOwn() {
  if (!live.own) return;
  const said = [], maps = [];
  for (const [name, gates] of [["with all heads", Float32Array.from(HEADS, () => 1)], ["with the choice", gatesOf(atlas.chosen)]]) {
    const attention = new Map(), logits = await forward("own", () => normalised(live.own, 1), gates, attention);
    const shares = softmax(logits.data), best = d3.maxIndex(shares);
    said.push(`${name}: ${LIVE.classes[best]} (${percent(shares[best])})`);
    const map = mapOf(attention);
    if (map) maps.push(el("figure", { class: "map" }, map, el("figcaption", {}, `${headName(HEADS[atlas.open])}, ${name}`)));
  }
  byId("own-says").textContent = `Taken for, ${said.join("; ")}.`;
  byId("own-maps").replaceChildren(el("figure", { class: "map" }, picture(live.own), el("figcaption", {}, "your image")), ...maps);
}
// where the open head looks from the class token, or on average; nothing where attention is in windows
function mapOf(attention) {
  const head = HEADS[atlas.open], number = [...new Set(HEADS.map(({ site }) => site))].indexOf(head.site), about = LIVE.sites[number], weights = attention.get(number);
  if (!about || !weights) return null;
  const [rows, columns, prefix, hasClass] = about, keys = weights.dims[3];
  const queries = hasClass ? [0] : d3.range(prefix, keys), start = head.index * keys * keys;
  const values = d3.range(prefix, keys).map((key) => d3.mean(queries, (query) => weights.data[start + query * keys + key]));
  const most = d3.max(values), letters = values.map((value) => LETTERS[Math.round((63 * value) / most)]).join("");
  return drawnMap(d3.range(rows).map((row) => letters.slice(row * columns, (row + 1) * columns)), "where the open head looks in your image");
}
// the square in the middle of a picture, or of what was drawn, at the network's size
function take(source, width, height) {
  const side = Math.min(width, height), canvas = el("canvas", { width: WIDE, height: TALL }), context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(source, (width - side) / 2, (height - side) / 2, side, side, 0, 0, WIDE, TALL);
  const { data } = context.getImageData(0, 0, WIDE, TALL), area = WIDE * TALL;
  live.own = Uint8Array.from({ length: SIZE }, (_, at) => {
    const pixel = 4 * (at % area);
    return grey ? Math.round(0.299 * data[pixel] + 0.587 * data[pixel + 1] + 0.114 * data[pixel + 2]) : data[pixel + Math.floor(at / area)];
  });
  answerOwn();
}
let grey = false;
function preparePad() {
  const pad = byId("pad"), context = pad.getContext("2d"), area = TALL * WIDE;
  grey = d3.range(area).every((at) => d3.range(1, CHANNELS).every((channel) => live.pixels[at] === live.pixels[channel * area + at]));
  pad.hidden = byId("draw").hidden = byId("wipe").hidden = !(grey && WIDE <= 64);
  const wipe = () => { context.fillStyle = "#000"; context.fillRect(0, 0, pad.width, pad.height); };
  const at = (event) => { const box = pad.getBoundingClientRect(); return [((event.clientX - box.left) / box.width) * pad.width, ((event.clientY - box.top) / box.height) * pad.height]; };
  let drawing = false;
  Object.assign(context, { strokeStyle: "#fff", lineWidth: pad.width / 8, lineCap: "round", lineJoin: "round" });
  wipe();
  pad.addEventListener("pointerdown", (event) => { drawing = true; context.beginPath(); context.moveTo(...at(event)); context.lineTo(...at(event)); context.stroke(); pad.setPointerCapture(event.pointerId); });
  pad.addEventListener("pointermove", (event) => { if (drawing) { context.lineTo(...at(event)); context.stroke(); } });
  pad.addEventListener("pointerup", () => { drawing = false; take(pad, pad.width, pad.height); });
  byId("wipe").addEventListener("click", () => { wipe(); live.own = null; byId("own-says").textContent = ""; byId("own-maps").replaceChildren(); });
}
function prepareOwn() {
  if (CHANNELS !== 1 && CHANNELS !== 3) { // a picture's fourth channel is its transparency
    byId("own-file").parentElement.hidden = true;
    byId("own-says").textContent = `The network takes images of ${CHANNELS} channels, and a picture has three.`;
    return;
  }
  preparePad();
  byId("own-file").addEventListener("change", (event) => { if (event.target.files[0]) takeFile(event.target.files[0]); });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); if (event.dataTransfer.files[0]) takeFile(event.dataTransfer.files[0]); });
}
async function takeFile(file) {
  try {
    const bitmap = await createImageBitmap(file);
    take(bitmap, bitmap.width, bitmap.height);
  } catch { byId("own-says").textContent = `${file.name} is no picture that this browser can read.`; }
}

// the pieces: in the page, or in the file beside it that the reader chooses (safetensors: length and text of a header, then bytes)
async function pieces() {
  if (!LIVE.beside) return Promise.all(LIVE.pieces.map((_, p) => opened(`live-piece-${p}`)));
  const says = byId("live-says"), input = byId("live-file");
  input.parentElement.hidden = false;
  says.textContent = `The network is too large for this page. Choose ${LIVE.beside}, which lies in the same folder.`;
  for (;;) {
    await new Promise((resume) => input.addEventListener("change", resume, { once: true }));
    const file = input.files[0];
    if (!file) continue; // the choice was taken back
    try {
      const bytes = await file.arrayBuffer(), length = Number(new DataView(bytes).getBigUint64(0, true));
      const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, length)));
      const found = LIVE.pieces.map((_, p) => new Uint8Array(bytes, ...header[`piece/${p}`].data_offsets.map((at, i, [from]) => (i ? at - from : 8 + length + at))));
      input.parentElement.hidden = true;
      return found;
    } catch { says.textContent = `${file.name} has no network in it: expected ${LIVE.beside} of this run.`; }
  }
}
// what keeping the weights as something smaller changes
function agrees(largest) {
  const shown = LIVE.shown ? ` Pictures show ${LIVE.shown}.` : "";
  const run = rightOf(LIVE.logits.map((row) => d3.maxIndex(row))), here = rightOf(live.before), near = `logits of all ${COUNT} images lie within ${number(largest, 2)} of PyTorch's`;
  if (LIVE.stored === "float32") return `The same network as the run's: ${near}.${shown}`;
  return `The run's network with its weights kept as ${LIVE.stored}: ${here} of ${COUNT} images are right, with the run's own weights ${run}; ${near}.${shown}`;
}

async function start() {
  const says = byId("live-says");
  if (typeof WebAssembly === "undefined" || typeof ort === "undefined") {
    says.textContent = "This browser has no WebAssembly: heads cannot be switched here. All else on the page works.";
    return;
  }
  const network = await pieces();
  says.textContent = "The network is being opened …";
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmBinary = (await opened("live-wasm")).buffer;
  for (const piece of network) live.sessions.push(await ort.InferenceSession.create(piece));
  live.pixels = await opened("live-images");
  const whole = await predicted(gatesOf(new Set()), () => {});
  live.before = whole.taken;
  byId("live-agrees").textContent = agrees(whole.largest);
  byId("chosen-known").hidden = true;
  prepareOwn();
  listeners.push(() => { live.past.push(new Set(atlas.chosen)); answer(); });
  byId("gate").addEventListener("input", () => { setGate(Number(byId("gate").value)); answer(); });
  byId("undo").addEventListener("click", () => { if (live.past.length > 1) { live.past.pop(); const last = live.past.pop(); choose(last); } });
  byId("live-controls").hidden = false;
  setGate(0);
  recall();
  if (!atlas.chosen.size) await answer();
}
addEventListener("DOMContentLoaded", () => start().catch((error) => { byId("live-says").textContent = `The network could not be opened: ${error.message}`; }));
