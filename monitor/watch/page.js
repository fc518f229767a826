// The live page: takes the run's events as the server tells them, keeps them, and draws what has changed, once a second.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 374, HEIGHT = 230, LEFT = 46, RIGHT = 8, TOP = 10, BOTTOM = 32;  // as the plots of reports
const DRAW_MS = 1000, AGAIN_MS = 3000;
const FAULT = looks.colours[1];

let run, plots, due = false, drawn = 0, over = false;

const element = id => document.getElementById(id);

function make(name, attributes, parent, text) {
  const child = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) child.setAttribute(key, value);
  if (text !== undefined) child.textContent = text;
  if (parent) parent.append(child);
  return child;
}

function html(name, parent, text, kind) {
  const child = document.createElement(name);
  if (text !== undefined) child.textContent = text;
  if (kind) child.className = kind;
  if (parent) parent.append(child);
  return child;
}

const colour = index => index % looks.colours.length ? looks.colours[index % looks.colours.length]
  : "var(--blue, " + looks.colours[0] + ")";
const dash = index => looks.dashes[index % looks.dashes.length].join(" ");

// A number as an axis has it: no more digits than its steps need.
function text(value, step) {
  if (step >= 1e6 || step < 1e-6) return value.toExponential(1);
  const places = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return value.toFixed(places);
}

// About five round numbers from low to high.
function ticks(low, high) {
  const raw = (high - low) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9), count = Math.min(10, Math.floor(high / step + 1e-9) - first + 1);
  return { all: Array.from({ length: Math.max(0, count) }, (_, index) => (first + index) * step), step };
}

class Plot {
  // kind: lines or areas. fromZero: whether the y axis begins at 0. marks: what of a mark is its place on the x axis.
  constructor(place, name, title, xLabel, yLabel, labels, { areas = false, fromZero = true, marks, gap = Infinity }) {
    Object.assign(this, { name, title, xLabel, yLabel, labels, areas, fromZero, marks, gap });
    this.series = labels.map(() => []);
    this.figure = html("figure", element(place));
    this.figure.dataset.plot = name;
    html("figcaption", this.figure, title);
    this.svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title,
      "font-size": 9, "font-family": "sans-serif" }, this.figure);
    if (labels.length > 1) this.legend();
    this.changed = true;
  }

  legend() {
    const list = html("ul", this.figure, undefined, "legend");
    this.labels.forEach((label, index) => {
      const entry = html("li", list), sample = make("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, entry);
      if (this.areas) make("rect", { width: 26, height: 10, fill: colour(index) }, sample);
      else make("path", { d: "M0 5H26", "stroke-width": 2, stroke: colour(index), "stroke-dasharray": dash(index) }, sample);
      entry.append(label);
    });
  }

  add(index, x, y) {
    this.series[index].push([x, y]);
    this.changed = true;
  }

  range(pick) {
    let low = Infinity, high = -Infinity;
    for (const points of this.series) for (const point of points) {
      const value = pick(point);
      if (value === null) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    return [low, high];
  }

  draw(marks, zero) {
    this.changed = false;
    let [left, right] = this.range(point => point[0]), [low, high] = this.areas ? this.heights() : this.range(point => point[1]);
    this.svg.replaceChildren();
    if (!(low <= high)) {
      make("text", { x: WIDTH / 2, y: HEIGHT / 2, "text-anchor": "middle", fill: "currentColor" }, this.svg, "nothing yet");
      return;
    }
    for (const place of marks.flatMap(this.marks)) {
      if (place !== null) [left, right] = [Math.min(left, place), Math.max(right, place)];
    }
    if (left === right) [left, right] = [left - 0.5, right + 0.5];
    if (this.fromZero) low = Math.min(0, low);
    if (low === high) [low, high] = this.fromZero ? [0, high || 1] : [low - 0.5, high + 0.5];
    const room = 0.06 * (high - low);
    if (!this.fromZero) low -= room;
    high += room;
    const x = value => LEFT + (value - left) / (right - left) * (WIDTH - LEFT - RIGHT);
    const y = value => HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
    this.axes(x, y, [left, right], [low, high], zero);
    if (this.areas) this.drawAreas(x, y);
    else this.series.forEach((points, index) => this.drawLine(points, index, x, y));
    marks.forEach((mark, index) => this.drawMark(mark, index, x, right));
  }

  axes(x, y, xs, ys, zero) {
    const ink = { stroke: "currentColor", "stroke-width": 0.6 }, letters = { fill: "currentColor" };
    const across = ticks(xs[0] - zero, xs[1] - zero), up = ticks(...ys);
    for (const value of across.all) {
      const at = x(value + zero);
      make("path", { d: `M${at} ${TOP}V${HEIGHT - BOTTOM}`, ...ink, "stroke-opacity": 0.15 }, this.svg);
      make("text", { x: at, y: HEIGHT - BOTTOM + 12, "text-anchor": "middle", ...letters }, this.svg, text(value, across.step));
    }
    for (const value of up.all) {
      make("path", { d: `M${LEFT} ${y(value)}H${WIDTH - RIGHT}`, ...ink, "stroke-opacity": 0.15 }, this.svg);
      make("text", { x: LEFT - 4, y: y(value) + 3, "text-anchor": "end", ...letters }, this.svg, text(value, up.step));
    }
    make("path", { d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}`, fill: "none", ...ink }, this.svg);
    make("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle", ...letters }, this.svg, this.xLabel);
    make("text", { transform: `translate(10 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle", ...letters },
      this.svg, this.yLabel);
  }

  drawLine(points, index, x, y) {
    let path = "", last = null;
    for (const [at, value] of points) {
      if (value === null) { last = null; continue; }
      const joined = last !== null && at - last <= this.gap;
      path += `${joined ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}${joined ? "" : "h0"}`;
      last = at;
    }
    make("path", { "data-series": this.labels[index], d: path, fill: "none", stroke: colour(index), "stroke-width": 1.4, "stroke-linecap": "round",
      "stroke-linejoin": "round", "stroke-dasharray": dash(index) }, this.svg);
  }

  // Each series stands on those before it; all have the same x.
  heights() {
    let high = -Infinity;
    for (let i = 0; i < this.series[0].length; i++) high = Math.max(high, this.series.reduce((sum, s) => sum + (s[i][1] || 0), 0));
    return [0, high];
  }

  drawAreas(x, y) {
    let floor = this.series[0].map(() => 0);
    this.series.forEach((points, index) => {
      const top = points.map((point, i) => floor[i] + (point[1] || 0));
      const edge = heights => points.map((point, i) => `${x(point[0]).toFixed(1)} ${y(heights[i]).toFixed(1)}`);
      make("path", { "data-series": this.labels[index], d: "M" + [...edge(top), ...edge(floor).reverse()].join("L") + "Z",
        fill: colour(index), stroke: "var(--paper, white)", "stroke-width": 0.4 }, this.svg);
      floor = top;
    });
  }

  // One that lasts and has not ended goes on to the right.
  drawMark(mark, index, x, right) {
    const [start, end] = this.marks(mark), at = x(start);
    const group = make("g", { "data-mark": mark.label, fill: FAULT }, this.svg);
    if (mark.lasts) {
      const width = x(end ?? right) - at;
      make("rect", { x: at, y: TOP, width, height: HEIGHT - TOP - BOTTOM, "fill-opacity": 0.15 }, group);
    }
    make("path", { d: `M${at} ${TOP}V${HEIGHT - BOTTOM}`, stroke: FAULT, "stroke-width": 0.8, "stroke-dasharray": "1.5 1.5" }, group);
    const below = TOP + (index % 2 ? 0.5 * (HEIGHT - TOP - BOTTOM) : 2);
    make("text", { transform: `translate(${at - 3} ${below}) rotate(-90)`, "text-anchor": "end", "font-size": 7 }, group, mark.label);
  }
}

function begin(head) {
  run = { marks: new Map(), lines: 0, zero: 0 };
  over = false;
  document.title = head.run + ": live";
  element("title").textContent = "Run " + head.run;
  element("what").textContent = head.what;
  element("remark").textContent = head.remark;
  for (const id of ["plots-training", "plots-nodes", "lines", "ranks"]) element(id).replaceChildren();
  const steps = { marks: mark => [mark.step, mark.endStep] };
  const seconds = { marks: mark => [mark.at, mark.end], gap: head.gap };
  const when = "seconds since the first step began";
  const ofNodes = (name, title, unit) => new Plot("plots-nodes", name, title, when, unit, head.nodes, seconds);
  plots = {
    loss: new Plot("plots-training", "loss", "Loss", "step", "loss", ["training, joined batch", "on the test set"],
      { ...steps, fromZero: false }),
    phases: new Plot("plots-training", "phases", "Phases of a step, mean of the workers", "step", "seconds", looks.phases,
      { ...steps, areas: true }),
    cpu: ofNodes("cpu", "CPU", "% of one core"),
    memory: ofNodes("memory", "Memory, working set", "MB"),
    received: ofNodes("received", "Network received", "MB/s"),
    sent: ofNodes("sent", "Network sent", "MB/s"),
  };
}

const items = {
  step([, step, loss, ...phases]) {
    plots.loss.add(0, step, loss);
    phases.forEach((value, index) => plots.phases.add(index, step, value));
  },
  score([, step, loss]) {
    plots.loss.add(1, step, loss);
  },
  row([, node, at, ...values]) {
    ["cpu", "memory", "received", "sent"].forEach((name, index) => plots[name].add(node, at, values[index]));
  },
  mark([, key, label, lasts, step, at]) {
    run.marks.set(key, { label, lasts, step, at, endStep: null, end: null });
  },
  over([, key, step, at]) {
    const mark = run.marks.get(key);
    if (mark) [mark.endStep, mark.end] = [step, at];
  },
  line([, at, words]) {
    html("li", element("lines"), words);
  },
};

function take(list) {
  for (const item of list) items[item[0]](item);
  if (list.some(item => item[0] === "mark" || item[0] === "over")) for (const plot of Object.values(plots)) plot.changed = true;
}

function now(state) {
  if (run.zero !== (state.zero ?? 0)) {
    run.zero = state.zero ?? 0;
    for (const plot of Object.values(plots)) plot.changed = true;
  }
  if (!over) say("running", "The run is on.");
  element("progress").textContent = state.text;
  element("problem").textContent = state.problem;
  const rows = state.ranks.map(cells => {
    const row = document.createElement("tr");
    cells.forEach((cell, index) => {
      const child = html(index ? "td" : "th", row, cell, index > 3 ? "n" : "short");
      if (!index) child.scope = "row";
    });
    return row;
  });
  element("ranks").replaceChildren(...rows);
}

// What is said again is not read aloud again.
function say(kind, words) {
  const state = element("state");
  state.className = kind;
  if (state.textContent !== words) state.textContent = words;
}

function end(last) {
  over = true;
  say(last.status, last.text);
  element("progress").textContent = `Its report is ${last.report}, unless PAGES=0 left it out.`;
}

function draw() {
  due = false;
  if (document.hidden || !plots) return;
  drawn = performance.now();
  for (const plot of Object.values(plots)) {
    const bySteps = plot.xLabel === "step";
    if (plot.changed) plot.draw([...run.marks.values()], bySteps ? 0 : run.zero);
  }
}

function drawSoon() {
  if (due || document.hidden) return;
  due = true;
  setTimeout(draw, Math.max(0, drawn + DRAW_MS - performance.now()));
}

function connect() {
  const source = new EventSource("events");
  const on = (name, act) => source.addEventListener(name, event => { act(JSON.parse(event.data)); drawSoon(); });
  on("begin", begin);
  on("more", take);
  on("now", now);
  on("end", last => { source.close(); end(last); });
  source.addEventListener("error", () => {
    if (over) return;
    say("lost", "There is no connection to the run; trying again.");
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, AGAIN_MS);  // else the browser tries again itself
  });
}

document.addEventListener("visibilitychange", drawSoon);
connect();
