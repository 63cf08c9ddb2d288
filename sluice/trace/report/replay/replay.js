"use strict";
const run = JSON.parse(document.getElementById("run").textContent);
const lastStep = Math.max(run.steps, 1);
const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isNumber = (value) => typeof value === "number";
let currentStep = 1;

function format(value) {
  if (value === null || value === undefined) return "–";
  if (!isNumber(value)) return value;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function lastIndex(items, key, step) { // index of the last item at or before a step
  let low = 0, high = items.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(items[middle]) <= step) low = middle + 1; else high = middle;
  }
  return low - 1;
}

function element(tag, parent, text, className) {
  const created = document.createElement(tag);
  if (text !== undefined) created.textContent = text;
  if (className) created.className = className;
  if (parent) parent.append(created);
  return created;
}

function resize(canvas, height) {
  const width = canvas.clientWidth || 300, ratio = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return [context, width, height];
}

function onDrag(canvas, left, right) {
  const showPointedStep = (event) => {
    const box = canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - left) / (box.width - left - right);
    show(1 + share * (lastStep - 1));
  };
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); showPointedStep(event); });
  canvas.addEventListener("pointermove", (event) => { if (event.buttons) showPointedStep(event); });
}

// ---- curves
const LEFT = 58, RIGHT = 8, TOP = 8, BOTTOM = 20, HEIGHT = 170;
const charts = [];

function scaleOf(lines, isShare) {
  const values = lines.flatMap((line) => line.map((point) => point[1])).filter(isNumber);
  if (!values.length) return null;
  let low = values[0], high = values[0];
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  if (isShare || (low === 0 && high === 0)) { // from 0, with a margin
    const top = high || 1;
    return { low: -top / 12, high: (top * 13) / 12, isLog: false };
  }
  const positive = values.filter((value) => value > 0).sort((a, b) => a - b);
  // The lowest 5 % are ignored: a few values near 0, as at the end of a schedule, need no logarithmic axis.
  const isLog = low >= 0 && positive.length > 0 && high / positive[Math.floor(positive.length / 20)] > 200;
  if (isLog) { low = Math.log10(positive[0]); high = Math.log10(high); }
  if (high - low < 1e-12 * Math.max(1, Math.abs(high))) {
    const margin = Math.abs(high) * 0.1 || 1; low -= margin; high += margin;
  }
  const margin = (high - low) * 0.05;
  return { low: low - margin, high: high + margin, isLog };
}

function ticksOf({ low, high, isLog }) { // three to seven round numbers: [position on the scale, label]
  const ticks = [];
  if (isLog) { // a logarithmic scale spans more than two powers of ten
    const powersPerTick = Math.ceil((high - low) / 4);
    for (let power = Math.ceil(low); power <= high; power += powersPerTick) ticks.push([power, shorten(10 ** power, 1)]);
    return ticks;
  }
  const minInterval = (high - low) / 6, unit = 10 ** Math.floor(Math.log10(minInterval));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= minInterval * (1 - 1e-9));
  const digits = 1 + Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / step));
  for (let count = Math.ceil(low / step); count * step <= high; count++) ticks.push([count * step, shorten(count * step, digits)]);
  return ticks;
}

function shorten(value, digits) {
  const rounded = Number(value.toPrecision(Math.min(Math.max(digits, 1), 15))), size = Math.abs(rounded);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? rounded.toExponential().replace("+", "") : String(rounded);
}

function addChart(title, lines) {
  const card = element("div", $("curves"), undefined, "card");
  element("h3", card, title);
  const legend = element("div", card, undefined, "legend"), canvas = element("canvas", card);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title} over the steps`);
  const names = Object.keys(lines), values = names.map((name) => {
    const item = element("span", legend);
    element("i", item).style.background = `var(--c${names.indexOf(name) % 6})`;
    item.append(name + " ");
    return element("b", item);
  });
  const scale = scaleOf(Object.values(lines), title.startsWith("share "));
  charts.push({ title, canvas, lines, names, values, scale });
  onDrag(canvas, LEFT, RIGHT);
}

function drawChart({ canvas, lines, names, values, scale }) {
  const [context, width, height] = resize(canvas, HEIGHT);
  const x = (step) => LEFT + (width - LEFT - RIGHT) * (lastStep > 1 ? (step - 1) / (lastStep - 1) : 0.5);
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = css("--soft"); context.strokeStyle = css("--line");
  const y = (value) => {
    const scaled = scale.isLog ? Math.log10(Math.max(value, 1e-300)) : value;
    const share = (scaled - scale.low) / (scale.high - scale.low);
    return TOP + (height - TOP - BOTTOM) * (1 - Math.min(Math.max(share, 0), 1));
  };
  if (scale) {
    for (const [position, label] of ticksOf(scale)) {
      const tickY = y(scale.isLog ? 10 ** position : position);
      context.beginPath(); context.moveTo(LEFT, tickY); context.lineTo(width - RIGHT, tickY); context.stroke();
      context.textAlign = "right"; context.fillText(label, LEFT - 6, tickY + 4);
    }
  }
  context.textAlign = "left"; context.fillText("1", LEFT, height - 5);
  context.textAlign = "right"; context.fillText(lastStep.toLocaleString("en"), width - RIGHT, height - 5);
  names.forEach((name, number) => {
    const line = lines[name];
    context.strokeStyle = context.fillStyle = css(`--c${number % 6}`);
    context.lineWidth = 1.5; context.beginPath();
    let isOpen = false;
    for (const [step, value] of line) {
      if (!isNumber(value)) { isOpen = false; continue; }
      if (isOpen) context.lineTo(x(step), y(value)); else context.moveTo(x(step), y(value));
      isOpen = true;
    }
    context.stroke();
    if (line.length < 40) for (const [step, value] of line) if (isNumber(value)) {
      context.beginPath(); context.arc(x(step), y(value), 2, 0, 7); context.fill();
    }
    context.fillStyle = css("--bad");
    for (const [step, value] of line) if (!isNumber(value)) context.fillRect(x(step) - 1, height - BOTTOM - 5, 2, 5);
    const point = line[lastIndex(line, (point) => point[0], currentStep)];
    values[number].textContent = point ? format(point[1]) : "–";
    values[number].className = point && !isNumber(point[1]) ? "bad-number" : "";
  });
  context.lineWidth = 1;
  for (const { step, severity } of run.findings) {
    context.strokeStyle = css(severity === "error" ? "--bad" : "--unsure");
    context.setLineDash([3, 3]); context.beginPath(); context.moveTo(x(step), TOP); context.lineTo(x(step), height - BOTTOM); context.stroke();
  }
  context.setLineDash([]); context.strokeStyle = css("--ink");
  context.beginPath(); context.moveTo(x(currentStep), TOP); context.lineTo(x(currentStep), height - BOTTOM); context.stroke();
}

// ---- module map
const STATISTICS = {
  forward: ["RMS of outputs", "log"], backward: ["gradient norm", "log"],
  update: ["update-to-weight ratio", "log"], zeros: ["zeros in outputs", "share"],
};
let statistic = "forward";
const map = element("canvas", $("map"));
map.setAttribute("role", "img"); map.setAttribute("aria-label", "Modules over the sampled steps");
onMapDrag();

// Steps and modules for which the selected statistic was sampled.
function mapValues() {
  const rows = run.grid.modules.map((name, row) => [name, run.grid[statistic][row]]).filter(([, values]) => values.some((v) => v !== null));
  const columns = [...run.grid.steps.keys()].filter((column) => rows.some(([, values]) => values[column] !== null));
  return [columns.map((column) => run.grid.steps[column]), rows.map(([name, values]) => [name, columns.map((column) => values[column])])];
}

function mapLeft(width) { return Math.min(230, width * 0.36); }
const ROW = 17;

function onMapDrag() {
  const showPointedStep = (event) => {
    const box = map.getBoundingClientRect(), left = mapLeft(box.width), [steps] = mapValues();
    const column = Math.floor(((event.clientX - box.left - left) / (box.width - left)) * steps.length);
    if (steps.length) show(steps[Math.min(Math.max(column, 0), steps.length - 1)]);
  };
  map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); showPointedStep(event); });
  map.addEventListener("pointermove", (event) => { if (event.buttons) showPointedStep(event); });
}

function colour(share, isDark) {
  const light = isDark ? 14 + 58 * share : 96 - 60 * share;
  return `hsl(${215 - 25 * share} ${35 + 45 * share}% ${light}%)`;
}

function drawMap() {
  const [steps, rows] = mapValues(), isDark = matchMedia("(prefers-color-scheme:dark)").matches;
  const [context, width] = resize(map, Math.max(rows.length, 1) * ROW + 22), left = mapLeft(width);
  const isLog = STATISTICS[statistic][1] === "log";
  const scaled = (value) => (isLog ? Math.log10(Math.max(value, 1e-12)) : value);
  let low = Infinity, high = -Infinity;
  for (const [, values] of rows) for (const value of values) if (isNumber(value) && (!isLog || value > 0)) {
    low = Math.min(low, scaled(value)); high = Math.max(high, scaled(value));
  }
  if (!isLog) { low = 0; high = 1; }
  if (isLog) low = Math.max(low, high - 8);
  const cell = (width - left) / Math.max(steps.length, 1), currentColumn = lastIndex(steps, (s) => s, currentStep);
  context.font = "12px system-ui, sans-serif"; context.textBaseline = "middle";
  rows.forEach(([name, values], row) => {
    const shown = currentColumn >= 0 ? values[currentColumn] : null, value = format(shown);
    context.textAlign = "right"; context.fillStyle = css(isNumber(shown) || shown === null ? "--ink" : "--bad");
    context.fillText(value, left - 8, row * ROW + ROW / 2);
    const maxWidth = left - 20 - context.measureText(value).width;
    // If a label is too long, its class is omitted: the path of the module is more useful.
    let text = context.measureText(name).width > maxWidth ? name.replace(/ \S+$/, "") : name;
    while (text.length > 4 && context.measureText(text).width > maxWidth) text = "…" + text.slice(2);
    context.textAlign = "left"; context.fillStyle = css("--soft"); context.fillText(text, 0, row * ROW + ROW / 2);
    values.forEach((cellValue, column) => {
      if (cellValue === null) return;
      const share = isNumber(cellValue) ? Math.min(Math.max((scaled(cellValue) - low) / (high - low || 1), 0), 1) : 0;
      context.fillStyle = isNumber(cellValue) ? colour(share, isDark) : css("--bad");
      context.fillRect(left + column * cell, row * ROW + 1, Math.max(cell, 1) + 0.4, ROW - 2);
    });
  });
  context.fillStyle = css("--soft"); context.textAlign = "left";
  const labelY = rows.length * ROW + 11;
  if (steps.length) {
    context.fillText(steps[0].toLocaleString("en"), left, labelY);
    context.textAlign = "right"; context.fillText(steps[steps.length - 1].toLocaleString("en"), width, labelY);
  }
  if (currentColumn >= 0) {
    context.strokeStyle = css("--ink"); context.lineWidth = 1.5;
    context.strokeRect(left + currentColumn * cell, 0.75, Math.max(cell, 2), rows.length * ROW - 1.5);
  }
  const key = $("key"); key.textContent = "";
  if (!rows.length) { key.textContent = "no statistics were sampled"; return; }
  element("span", key, format(isLog ? 10 ** low : 0));
  element("i", key).style.background = `linear-gradient(90deg, ${colour(0, isDark)}, ${colour(1, isDark)})`;
  element("span", key, format(isLog ? 10 ** high : 1));
  const bad = element("span", key, undefined, "pair");
  element("i", bad, undefined, "bad"); element("span", bad, "non-finite");
  element("span", key, `${steps.length} sampled steps; the values are from step ${currentColumn >= 0 ? steps[currentColumn].toLocaleString("en") : "–"}`);
}

// ---- selected step
function showValues() {
  const table = element("table");
  for (const { title, lines, names } of charts) for (const name of names) {
    const point = lines[name][lastIndex(lines[name], (p) => p[0], currentStep)];
    if (!point) continue;
    const row = element("tr", table);
    element("td", row, `${title}${name === title ? "" : ", " + name}`);
    element("td", row, format(point[1]), isNumber(point[1]) ? "number" : "number bad-number");
    element("td", row, point[0] === currentStep ? "" : `step ${point[0].toLocaleString("en")}`, "soft");
  }
  $("numbers").replaceChildren(table.rows.length ? table : element("p", null, "no values up to this step", "soft"));
}

function showEvents() {
  const box = $("events"); box.textContent = "";
  const matching = run.sequences.filter((sequence) => sequence.first <= currentStep && currentStep <= sequence.last);
  const sequences = matching.sort((a, b) => b.count - a.count).slice(0, 3);
  for (const sequence of sequences) {
    const line = element("p", box);
    for (const event of sequence.events) {
      element("span", line, event, event.startsWith("skip") ? "skip" : event.startsWith("step") ? "end" : "");
    }
    element("small", line, rangeText(sequence), "soft");
  }
  if (!sequences.length) element("p", box, "this page contains no events of this step", "soft");
}

function rangeText(sequence) { // which steps had these events
  const first = sequence.first.toLocaleString("en"), last = sequence.last.toLocaleString("en");
  if (sequence.is_open) return `after the last step (${first})`;
  if (sequence.count === 1) return `step ${first} alone has these events`;
  return `${sequence.count.toLocaleString("en")} steps with these events, from step ${first} to ${last}`;
}

let isScheduled = false;
function show(step) {
  currentStep = Math.min(Math.max(Math.round(step), 1), lastStep);
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    $("at").value = currentStep;
    $("step").textContent = `step ${currentStep.toLocaleString("en")} of ${lastStep.toLocaleString("en")}`;
    charts.forEach(drawChart); drawMap(); showValues(); showEvents();
  });
}

for (const [title, lines] of Object.entries(run.curves)) addChart(title, lines);
for (const [name, [label]] of Object.entries(STATISTICS)) {
  const button = element("button", $("kinds"), label);
  button.setAttribute("aria-pressed", String(name === statistic));
  button.addEventListener("click", () => {
    statistic = name;
    for (const other of $("kinds").children) other.setAttribute("aria-pressed", String(other === button));
    drawMap();
  });
}
for (const { step, severity, fault } of run.findings) {
  const marker = element("b", $("track"), undefined, severity);
  marker.style.left = `${lastStep > 1 ? (100 * (step - 1)) / (lastStep - 1) : 50}%`; marker.title = `${fault}, step ${step}`;
}
$("at").max = lastStep;
$("at").addEventListener("input", (event) => show(Number(event.target.value)));
$("back").addEventListener("click", () => show(currentStep - 1));
$("forth").addEventListener("click", () => show(currentStep + 1));
for (const button of document.querySelectorAll("button.jump")) button.addEventListener("click", () => {
  show(Number(button.dataset.step)); $("player").scrollIntoView({ behavior: "smooth" });
});
let playTimer = null;
$("play").addEventListener("click", () => {
  if (playTimer !== null) { clearInterval(playTimer); playTimer = null; $("play").textContent = "▶"; return; }
  if (currentStep >= lastStep) show(1);
  $("play").textContent = "❚❚";
  playTimer = setInterval(() => {
    if (currentStep >= lastStep) { $("play").click(); return; }
    show(currentStep + Math.max(1, lastStep / 300));
  }, 40);
});
document.addEventListener("keydown", (event) => {
  if (event.target.tagName === "INPUT") return;
  if (event.key === "ArrowRight") show(currentStep + 1); else if (event.key === "ArrowLeft") show(currentStep - 1);
});
addEventListener("resize", () => show(currentStep));
matchMedia("(prefers-color-scheme:dark)").addEventListener("change", () => show(currentStep));
show(run.findings.length ? run.findings[0].step : run.abnormal ? run.abnormal.step : 1);
