// The charts of every page: curves, intervals, boxes and forecasts, a legend that switches curves, and the values at the
// pointer or where the arrow keys lead.
//
// A chart is {described, x, y, curves, means, empty, height, now, mark, says}:
//   described   for those who do not see it
//   x, y        {label, log: base or 0, range: [from, to], ticks: [[value, text], …]}; range and ticks may be left out;
//               letters of y: room for a text of so many on the left at least, so that charts can stand under each other
//   curves      [{name, look, colour, dashes, width, marker, hollow, points, band, boxes, shift, size, loose, silent}]:
//               points are [x, y], those of a band [x, low, high], boxes [x, lowest, quartile, median, quartile, highest];
//               look: classes of the style sheet; shift and size of boxes in units of the axis; loose: points, no line;
//               silent: not read at the pointer; curves of one name share their place in the legend
//   means       what markers and lines mean; empty: what to say without curves
//   now, mark   x up to which was measured; {at, value, low, high}, a forecast with its interval
//   says        names any x and makes all lines readable there; without it only the given points are read

const MARKERS = {
  circle: "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z",
  square: "M-4 -4H4V4H-4Z",
  "triangle-up": "M0 -5L4.8 3.6H-4.8Z",
  diamond: "M0 -5.4L5.4 0L0 5.4L-5.4 0Z",
  "triangle-down": "M0 5L4.8 -3.6H-4.8Z",
  cross: "M-1.7 -5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7Z",
  x: "M-4.7 -2.3L-2.3 -4.7L0 -2.4L2.3 -4.7L4.7 -2.3L2.4 0L4.7 2.3L2.3 4.7L0 2.4L-2.3 4.7L-4.7 2.3L-2.4 0Z",
};
const LETTER = 6.6; // width of one in a number of an axis
const SMALLEST = 1e-12; // on a logarithmic axis

const known = (points) => points.filter((point) => point.every((value) => value !== null && Number.isFinite(value)));
const span = (from, to, count = 60) => Array.from({ length: count }, (_, i) => from * (to / from) ** (i / (count - 1)));
const sampled = (from, to, law) => (to > from ? known(span(from, to).map((n) => [n, law(n)])) : []);
const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

// ---------------------------------------------------------------- axes

// Where values lie on an axis from one pixel to another: {at(value, shift), value(pixel), ticks: [[value, text], …]}.
function axis({ log, range, ticks = [] }, values, start, end) {
  const on = log ? (value) => Math.log(Math.max(value, SMALLEST)) / Math.log(log) : (value) => value;
  const off = log ? (place) => log ** place : (place) => place;
  const covered = range ?? (values.length ? values : [1]);
  let [low, high] = [on(least(covered)), on(most(covered))];
  const room = 0.04 * (high - low) || 0.5;
  [low, high] = [low - room, high + room];
  const given = (ticks ?? []).filter(([value]) => on(value) >= low && on(value) <= high);
  const own = () => (log ? powers(off(low), off(high)) : rounds(low, high)).map((value) => [value, tickText(value)]);
  return {
    at: (value, shift = 0) => start + ((on(value) + shift - low) / (high - low)) * (end - start),
    value: (pixel) => off(low + ((pixel - start) / (end - start)) * (high - low)),
    ticks: given.length > 1 ? given : own(),
  };
}

// 1, 10, …, closer where there is little room.
function powers(low, high) {
  const decades = Math.log10(high / low);
  const steps = decades > 2.3 ? [1] : decades > 0.9 ? [1, 2, 5] : decades > 0.3 ? [1, 2, 3, 4, 6, 8] : null;
  if (!steps) return rounds(low, high);
  const all = [];
  for (let decade = Math.floor(Math.log10(low)); 10 ** decade <= high; decade++) {
    all.push(...steps.map((step) => Number((step * 10 ** decade).toPrecision(8))));
  }
  const inside = all.filter((tick) => tick >= low && tick <= high);
  const every = Math.ceil(inside.length / 8);
  return inside.reverse().filter((_, i) => i % every === 0);
}

function rounds(low, high) {
  const raw = (high - low) / 6;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = size * [1, 2, 5, 10].find((factor) => factor * size >= raw * 0.999);
  const count = Math.floor(high / step) - Math.ceil(low / step) + 1;
  return Array.from({ length: count }, (_, i) => Number(((Math.ceil(low / step) + i) * step).toPrecision(8)));
}

// Those ticks whose texts do not touch.
function apart(ticks, at, room) {
  let free = -Infinity;
  const sorted = ticks.toSorted(([a], [b]) => at(a) - at(b));
  return sorted.filter(([value, text]) => {
    const half = room(text) / 2;
    if (at(value) - half < free) return false;
    free = at(value) + half;
    return true;
  });
}

// ---------------------------------------------------------------- drawing

// Draw a chart in an element, with what the reader had switched off there before.
function draw(plot, spec) {
  plot.off ??= new Set();
  const show = () => {
    const svg = drawing(plot, spec);
    plot.querySelector(":scope > svg")?.replaceWith(svg);
    return svg;
  };
  const label = (text, kind) => (text ? [element("div", { class: `label ${kind}` }, text)] : []);
  plot.replaceChildren(
    ...label(spec.y.label, "up"),
    show(),
    ...label(spec.x.label, "across"),
    ...label(spec.means, "means"),
    legend(plot, spec, show),
  );
}

const switchedOn = (plot, spec) => {
  const left = spec.curves.filter(({ name }) => !plot.off.has(name));
  return left.length ? left : spec.curves;
};

function drawing(plot, spec) {
  const curves = switchedOn(plot, spec);
  const width = Math.max(260, plot.clientWidth);
  const height = spec.height ?? Math.round(Math.max(270, Math.min(430, 0.56 * width)));
  const rows = curves.flatMap(({ points = [], band = [], boxes = [] }) => [...points, ...band, ...boxes]);
  const box = { right: width - 18, top: spec.now ? 26 : 12, bottom: height - 26 };
  const y = axis(spec.y, rows.flatMap((row) => row.slice(1)), box.bottom, box.top);
  box.left = 16 + LETTER * most([...y.ticks.map(([, text]) => text.length), spec.y.letters ?? 0]);
  const edge = (at, by) => (spec.x.log ? at * spec.x.log ** by : at + by);
  const edges = curves.flatMap(({ boxes = [], shift, size }) =>
    boxes.flatMap(([at]) => [edge(at, shift - size / 2), edge(at, shift + size / 2)]),
  );
  const x = axis(spec.x, [...rows.map(([at]) => at), ...edges], box.left, box.right);
  const frame = { x: box.left - 6, y: box.top - 6, width: box.right - box.left + 12, height: box.bottom - box.top + 12 };
  const middle = { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle" };
  const svg = shape(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0, "aria-label": spec.described },
    ...axes(spec, x, y, box),
    shape("svg", { ...frame, viewBox: `${frame.x} ${frame.y} ${frame.width} ${frame.height}` }, ...marks(curves, x, y)),
    ...(spec.mark && spec.now ? [interval(spec.mark, x, y, box)] : []),
    ...(rows.length ? [] : [shape("text", middle, spec.empty ?? "no values")]),
    shape("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" }),
  );
  follow(svg, spec, curves, x, box);
  return svg;
}

function axes(spec, x, y, box) {
  const text = (content, attributes) => shape("text", attributes, content);
  const parts = [];
  if (spec.now && x.at(spec.now) < box.right - 20) {
    const edge = x.at(spec.now);
    const beyond = { x: edge, y: box.top, width: box.right - edge, height: box.bottom - box.top };
    parts.push(
      shape("rect", { class: "beyond", ...beyond }),
      text("measured", { x: edge - 6, y: box.top - 9, "text-anchor": "end" }),
      text("not measured", { x: edge + 6, y: box.top - 9 }),
    );
  }
  for (const [value, name] of apart(y.ticks, y.at, () => 15)) {
    const at = y.at(value);
    parts.push(
      shape("line", { class: "rule", x1: box.left, x2: box.right, y1: at, y2: at }),
      text(name, { class: "y-tick", x: box.left - 8, y: at + 4, "text-anchor": "end" }),
    );
  }
  for (const [value, name] of apart(x.ticks, x.at, (name) => 10 + LETTER * name.length)) {
    const at = x.at(value);
    parts.push(
      shape("line", { class: "tick", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }),
      text(name, { class: "x-tick", x: at, y: box.bottom + 18, "text-anchor": "middle" }),
    );
  }
  return [...parts, shape("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom })];
}

// Intervals below all curves, the first curve above the others, and hollow ones above all.
function marks(curves, x, y) {
  const bands = curves.filter(({ band }) => band?.length).map((curve) => bandOf(curve, x, y));
  const ordered = curves.toReversed().sort((a, b) => Boolean(a.hollow) - Boolean(b.hollow));
  return [...bands, ...ordered.map((curve) => shape("g", { class: "curve" }, ...parts(curve, x, y)))];
}

const fixed = (value) => value.toFixed(1);
const path = (points, x, y) =>
  points.map(([at, value], i) => `${i ? "L" : "M"}${fixed(x.at(at))} ${fixed(y.at(value))}`).join("");

function bandOf({ look = "", colour = null, band }, x, y) {
  const lower = band.map(([at, low]) => [at, low]);
  const upper = band.map(([at, , high]) => [at, high]).reverse();
  return shape("path", { class: `band ${look}`, fill: colour, d: `${path([...lower, ...upper], x, y)}Z` });
}

function parts(curve, x, y) {
  const { points = [], boxes = [], look = "", shift = 0 } = curve;
  if (curve.loose) {
    const point = ([at, value]) => shape("circle", { class: look, cx: fixed(x.at(at)), cy: fixed(y.at(value)), r: 1.8 });
    return points.map(point);
  }
  if (boxes.length) {
    const median = (box) => marker(curve, x.at(box[0], shift), y.at(box[3]), 0.8);
    return [...boxes.map((box) => boxOf(curve, box, x, y)), ...boxes.map(median)];
  }
  return [
    ...(points.length ? [lineOf(curve, path(points, x, y))] : []),
    ...(curve.marker ? points.map(([at, value]) => marker(curve, x.at(at), y.at(value))) : []),
  ];
}

function lineOf({ look = "", colour = null, width = null, dashes }, d) {
  const dashed = dashes?.length ? dashes.join(" ") : null;
  return shape("path", { class: `line ${look}`, stroke: colour, "stroke-width": width, "stroke-dasharray": dashed, d });
}

function marker({ marker, colour, hollow }, x, y, scale = 1) {
  const place = `translate(${fixed(x)} ${fixed(y)}) scale(${scale})`;
  const paint = hollow ? { class: "marker hollow", stroke: colour } : { class: "marker", fill: colour };
  return shape("path", { ...paint, d: MARKERS[marker], transform: place });
}

function boxOf({ colour, hollow, shift, size }, [at, low, first, median, third, high], x, y) {
  const [left, middle, right] = [-size / 2, 0, size / 2].map((aside) => x.at(at, shift + aside));
  const across = (value, wide = 1) => {
    const half = ((right - left) / 2) * wide;
    return shape("line", { x1: middle - half, x2: middle + half, y1: y.at(value), y2: y.at(value) });
  };
  const stem = (from, to) => shape("line", { x1: middle, x2: middle, y1: y.at(from), y2: y.at(to) });
  const height = Math.max(0.5, y.at(first) - y.at(third));
  const body = shape("rect", {
    class: hollow ? "hollow" : null, fill: colour, "fill-opacity": hollow ? null : 0.25,
    x: left, width: right - left, y: y.at(third), height,
  });
  const whiskers = [stem(low, first), stem(third, high), across(low, 0.5), across(high, 0.5), across(median)];
  return shape("g", { class: "box", stroke: colour }, body, ...whiskers);
}

function interval({ at, value, low, high }, x, y, box) {
  const end = (value) => Math.min(box.bottom, y.at(value));
  const middle = x.at(at);
  const across = (value) => shape("line", { x1: middle - 5, x2: middle + 5, y1: end(value), y2: end(value) });
  const stem = shape("line", { x1: middle, x2: middle, y1: end(low), y2: end(high) });
  const dot = shape("circle", { cx: middle, cy: end(value), r: 4 });
  return shape("g", { class: "mark" }, stem, across(low), across(high), dot);
}

// ---------------------------------------------------------------- legend

function sample(curve) {
  const { look = "", colour = null, points = [], boxes = [] } = curve;
  const lined = points.length && !boxes.length && !curve.loose;
  return shape(
    "svg",
    { class: "sample", "aria-hidden": "true", viewBox: "0 0 34 12", width: 34, height: 12 },
    ...(curve.band?.length ? [shape("rect", { class: `band ${look}`, fill: colour, width: 34, height: 12 })] : []),
    ...(lined ? [lineOf(curve, "M0 6H34")] : []),
    ...(curve.loose ? [shape("circle", { class: look, cx: 17, cy: 6, r: 2.4 })] : []),
    ...(curve.marker ? [marker(curve, 17, 6, 0.9)] : []),
  );
}

// The names of the curves: click one to hide or show it, twice to see it alone.
function legend(plot, spec, show) {
  const key = element("div", { class: "key" });
  const drawn = spec.curves.filter(({ points, band, boxes }) => [points, band, boxes].some((each) => each?.length));
  const mark = () => {
    for (const each of key.children) each.setAttribute("aria-pressed", String(!plot.off.has(each.name)));
  };
  const switched = (change) => () => (change(), mark(), show());
  const first = drawn.filter(({ name }, i) => drawn.findIndex((each) => each.name === name) === i);
  for (const curve of first) {
    const { name } = curve;
    const toggle = () => plot.off.delete(name) || plot.off.add(name);
    const alone = () => {
      const others = drawn.filter((each) => each.name !== name).map((each) => each.name);
      plot.off = new Set(others.every((each) => plot.off.has(each)) ? [] : others);
    };
    const button = { type: "button", title: "Click: hide or show. Double-click: show alone.", click: switched(toggle) };
    key.append(element("button", { ...button, name, dblclick: switched(alone) }, sample(curve), name));
  }
  mark();
  return key;
}

// ---------------------------------------------------------------- values

function follow(svg, spec, curves, x, box) {
  const cursor = svg.querySelector(".cursor");
  const read = curves.filter(({ silent }) => !silent);
  const given = read.flatMap(({ points = [], boxes = [] }) => [...points, ...boxes].map(([at]) => at));
  const stops = [...new Set(given)].sort((a, b) => a - b);
  if (!stops.length) return;
  let at = x.at(spec.now ?? stops.at(-1));
  const nearest = () => stops.reduce((a, b) => (Math.abs(x.at(b) - at) < Math.abs(x.at(a) - at) ? b : a));
  const show = (live) => {
    at = Math.max(box.left + 1, Math.min(at, box.right));
    const value = spec.says ? Math.min(Math.max(x.value(at), stops[0]), stops.at(-1)) : nearest();
    if (!spec.says) at = x.at(value);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, at);
    cursor.setAttribute("visibility", "visible");
    const frame = svg.getBoundingClientRect();
    const scale = frame.width / svg.viewBox.baseVal.width;
    const title = element("b", {}, spec.says ? spec.says(value) : `${spec.x.label}: ${exact(value)}`);
    const pairs = (spec.says ? onLines(read, value) : atPoint(read, value)).map(([name, text]) =>
      element("div", { class: "pair" }, element("span", {}, name), element("b", {}, text)),
    );
    showTip([title, ...pairs], frame.left + at * scale, frame.top + box.top, live);
  };
  const step = (by) => {
    if (spec.says) at += (by * (box.right - box.left)) / 24;
    else at = x.at(stops[Math.max(0, Math.min(stops.indexOf(nearest()) + by, stops.length - 1))]);
  };
  const leave = () => (cursor.setAttribute("visibility", "hidden"), hideTip());
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    at = ((event.clientX - frame.left) / frame.width) * svg.viewBox.baseVal.width;
    show("off");
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    step(by);
    show("polite");
    event.preventDefault();
  });
}

// What lines between points say at any x.
function onLines(curves, x) {
  const read = curves.filter(({ loose }) => !loose).map(({ name, points = [] }) => [name, valueAt(points, x)]);
  return read.filter(([, value]) => value !== null).map(([name, value]) => [name, number(value, 3)]);
}

// What the curves were given at this x, the highest first.
function atPoint(curves, x) {
  const found = [];
  for (const { name, points = [], band = [], boxes = [] } of curves) {
    const at = (rows) => rows.find(([place]) => place === x);
    const [point, range, box] = [at(points), at(band), at(boxes)];
    const between = ([low, high]) => `${exact(low)} to ${exact(high)}`;
    if (box) found.push([box[3], name, `${exact(box[3])} (half: ${between([box[2], box[4]])}; all: ${between([box[1], box[5]])})`]);
    else if (point) found.push([point[1], name, exact(point[1]) + (range ? ` (${between(range.slice(1))})` : "")]);
  }
  return found.sort(([a], [b]) => b - a).map(([, name, text]) => [name, text]);
}

function valueAt(points, n) {
  const after = points.findIndex(([at]) => at >= n);
  if (after < 0 || (after === 0 && points[0][0] > n * 1.001)) return null;
  if (after === 0) return points[0][1];
  const [[n0, v0], [n1, v1]] = [points[after - 1], points[after]];
  return v0 + ((v1 - v0) * Math.log(n / n0)) / Math.log(n1 / n0);
}
