// Charts over n: points, a quartile band, lines, and the values under the pointer.
//
// A chart is {title, subject, unit, log, from, now, target, points, band, lines, mark, range}: n runs from `from` to
// `target` and was measured up to `now`; y covers `range`; `mark` is a forecast with its interval at the target.
// A line is {label, style, points: [[n, value], …]}; a band's points are [n, low, high].

const known = (points) => points.filter((point) => point.every((value) => value !== null && Number.isFinite(value)));
const span = (from, to, count = 60) => Array.from({ length: count }, (_, i) => from * (to / from) ** (i / (count - 1)));
const sampled = (from, to, law) => (to > from ? known(span(from, to).map((n) => [n, law(n)])) : []);

// Where values lie on the y axis: {at(value), ticks}. Logarithmic axes tick at 1, 10, …, closer where they are short;
// others at round steps.
function yAxis(spec, top, bottom) {
  let least = Math.min(...spec.range);
  let most = Math.max(...spec.range);
  if (spec.log) {
    [least, most] = [Math.log10(Math.max(least, 1e-9)) - 0.12, Math.log10(most) + 0.08];
    const steps = most - least > 2.3 ? [1] : most - least > 0.9 ? [1, 2, 5] : [1, 2, 3, 4, 6, 8];
    const all = [];
    for (let decade = Math.floor(least); decade <= most; decade++) {
      all.push(...steps.map((step) => step * 10 ** decade));
    }
    const inside = all.filter((tick) => Math.log10(tick) >= least && Math.log10(tick) <= most);
    const every = Math.ceil(inside.length / 8);
    const at = (value) => bottom - ((Math.log10(Math.max(value, 1e-12)) - least) / (most - least)) * (bottom - top);
    return { at, ticks: inside.reverse().filter((_, i) => i % every === 0) };
  }
  if (most === least) [least, most] = [least - 0.5, most + 0.5];
  const raw = (most - least) / 5;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = size * [1, 2, 5, 10].find((factor) => factor * size >= raw);
  [least, most] = [Math.floor(least / step) * step, Math.ceil(most / step) * step];
  const count = Math.round((most - least) / step) + 1;
  const ticks = Array.from({ length: count }, (_, i) => Number((least + i * step).toPrecision(8)));
  return { at: (value) => bottom - ((value - least) / (most - least)) * (bottom - top), ticks };
}

// Where n lies on the x axis: {at(n), n(x), ticks}; ticks at powers of 4, or of 2 where that leaves too few.
function xAxis(spec, left, right) {
  const from = Math.log(spec.from) - 0.02;
  const to = Math.max(Math.log(spec.target), from + 0.1) + (spec.target > spec.now ? 0.25 : 0.02);
  const base = Math.log2(spec.target / spec.from) > 6 ? 4 : 2;
  const ticks = Array.from({ length: 40 }, (_, i) => base ** i).filter((n) => n >= spec.from && Math.log(n) <= to);
  return {
    at: (n) => left + ((Math.log(n) - from) / (to - from)) * (right - left),
    n: (x) => Math.exp(from + ((x - left) / (right - left)) * (to - from)),
    ticks,
  };
}

function path(points, x, y) {
  return points.map(([n, value], i) => `${i ? "L" : "M"}${x.at(n).toFixed(1)} ${y.at(value).toFixed(1)}`).join("");
}

const area = (left, { right, top, bottom }) =>
  shape("rect", { x: left, y: top, width: right - left, height: bottom - top });

function draw(figure, spec, height) {
  const width = Math.max(260, figure.clientWidth);
  const box = { left: 54, right: width - 10, top: 26, bottom: height - 38 };
  const x = xAxis(spec, box.left, box.right);
  const y = yAxis(spec, box.top, box.bottom);
  const clip = `clip-${figure.id}`;
  const svg = shape(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: 0, "aria-label": described(spec) },
    shape("clipPath", { id: clip }, area(box.left, box)),
    ...axes(spec, x, y, box),
    shape("g", { "clip-path": `url(#${clip})` }, ...marks(spec, x, y)),
    ...(spec.mark && spec.target > spec.now ? [interval(spec.mark, x, y, box)] : []),
    shape("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" }),
  );
  figure.querySelector(".plot").replaceChildren(svg, legend(spec));
  follow(svg, spec, x, box);
}

function described(spec) {
  const [first, last] = [spec.lines[0].points[0], spec.lines[0].points.at(-1)];
  if (!first) return `${spec.title}: no values.`;
  const ahead = spec.mark ? `; forecast ${number(spec.mark.value)} at ${tokens(spec.mark.at)}` : "";
  const at = ([n, value]) => `${number(value)} at n = ${Math.round(n)}`;
  return `${spec.title} for ${spec.subject}: median ${at(first)}, ${at(last)}${ahead}. Arrow keys read values.`;
}

function axes(spec, x, y, box) {
  const text = (content, attributes) => shape("text", attributes, content);
  const middle = (box.left + box.right) / 2;
  const parts = [];
  if (spec.target > spec.now) {
    const edge = x.at(spec.now);
    parts.push(
      fill(area(edge, box), { class: "beyond" }, []),
      text("measured", { x: edge - 6, y: box.top - 7, "text-anchor": "end" }),
      text("forecast", { x: edge + 6, y: box.top - 7 }),
    );
  }
  for (const tick of y.ticks) {
    parts.push(
      shape("line", { class: "rule", x1: box.left, x2: box.right, y1: y.at(tick), y2: y.at(tick) }),
      text(tickText(tick), { x: box.left - 8, y: y.at(tick) + 4, "text-anchor": "end" }),
    );
  }
  for (const tick of x.ticks) {
    parts.push(
      shape("line", { class: "tick", x1: x.at(tick), x2: x.at(tick), y1: box.bottom, y2: box.bottom + 4 }),
      text(tokens(tick), { x: x.at(tick), y: box.bottom + 17, "text-anchor": "middle" }),
    );
  }
  parts.push(shape("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  if (spec.unit) parts.push(text(spec.unit, { x: 0, y: 10 }));
  parts.push(text("n, keys a row sees", { x: middle, y: box.bottom + 34, "text-anchor": "middle" }));
  return parts;
}

function marks(spec, x, y) {
  const lower = spec.band.map(([n, low]) => [n, low]);
  const upper = spec.band.map(([n, , high]) => [n, high]);
  const band = path([...lower, ...upper.reverse()], x, y);
  const point = ([n, value]) =>
    shape("circle", { class: "point", cx: x.at(n).toFixed(1), cy: y.at(value).toFixed(1), r: 1.8 });
  const line = ({ style, points }) => shape("path", { class: `line ${style}`, d: path(points, x, y) });
  return [
    ...(band ? [shape("path", { class: "band", d: `${band}Z` })] : []),
    ...spec.points.map(point),
    ...spec.lines.filter(({ points }) => points.length).reverse().map(line),
  ];
}

function interval({ at, value, low, high }, x, y, box) {
  const end = (value) => Math.min(box.bottom, y.at(value));
  const middle = x.at(at);
  const across = (value) => shape("line", { x1: middle - 5, x2: middle + 5, y1: end(value), y2: end(value) });
  const stem = shape("line", { x1: middle, x2: middle, y1: end(low), y2: end(high) });
  const dot = shape("circle", { cx: middle, cy: end(value), r: 4 });
  return shape("g", { class: "mark" }, stem, across(low), across(high), dot);
}

function legend(spec) {
  const size = { viewBox: "0 0 22 10", width: 22, height: 10 };
  const entry = (mark, label) =>
    element("span", {}, shape("svg", { class: "sample", "aria-hidden": "true", ...size }, mark), label);
  const drawn = spec.lines.filter((line) => line.points.length);
  return element(
    "div",
    { class: "key" },
    ...(spec.points.length ? [entry(shape("circle", { class: "point", cx: 11, cy: 5, r: 2.4 }), "sampled rows")] : []),
    ...drawn.map((line) => entry(shape("path", { class: `line ${line.style}`, d: "M0 5H22" }), line.label)),
    ...(spec.band.length ? [entry(shape("rect", { class: "band", width: 22, height: 10 }), "quartiles")] : []),
  );
}

// The values of every line at the n under the pointer, or at the n that the arrow keys reached.
function follow(svg, spec, x, box) {
  const cursor = svg.querySelector(".cursor");
  let at = x.at(spec.now);
  const show = (live) => {
    at = Math.max(box.left + 1, Math.min(at, box.right));
    const n = Math.min(Math.max(x.n(at), spec.from), spec.target);
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, at);
    cursor.setAttribute("visibility", "visible");
    const frame = svg.getBoundingClientRect();
    const pairs = spec.lines
      .map(({ label, points }) => [label, valueAt(points, n)])
      .filter(([, value]) => value !== null)
      .map(([label, value]) =>
        element("div", { class: "pair" }, element("span", {}, label), element("b", {}, number(value, 3))),
      );
    const scale = frame.width / svg.viewBox.baseVal.width;
    const title = element("b", {}, `n = ${grouped(Math.round(n))}`);
    showTip([title, ...pairs], frame.left + at * scale, frame.top + box.top, live);
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
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    at += (step * (box.right - box.left)) / 24;
    show("polite");
    event.preventDefault();
  });
}

function valueAt(points, n) {
  const after = points.findIndex(([at]) => at >= n);
  if (after < 0 || (after === 0 && points[0][0] > n * 1.001)) return null;
  if (after === 0) return points[0][1];
  const [[n0, v0], [n1, v1]] = [points[after - 1], points[after]];
  return v0 + ((v1 - v0) * Math.log(n / n0)) / Math.log(n1 / n0);
}
