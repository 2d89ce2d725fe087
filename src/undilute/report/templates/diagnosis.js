// The page of a diagnosis: map, panel of one head, tokens and table, from the data embedded in the page.

const embedded = (id) => JSON.parse(byId(id).textContent);

const data = embedded("overview");
const { target } = data.question;
const KINDS = data.kinds.map((each) => each.kind);
const MEANINGS = Object.fromEntries(data.kinds.map((each) => [each.kind, each.meaning]));
const MEASURES = Object.fromEntries(data.measures.map((each) => [each.name, each]));
const STEP = 50; // heads the table shows at a time
const CONTEXT = 6; // tokens on each side of a key
const FAR = 1e9; // a number of tokens nobody will read

// Heads come in the order of their layers; each learns its place in both lists.
const starts = [];
{
  let next = 0;
  data.layers.forEach((layer, place) => {
    starts.push(next);
    for (let head = 0; head < layer.heads; head++) Object.assign(data.heads[next], { index: next++, place });
  });
}
const worstFirst = [...data.heads].sort(
  (a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind) || b.lost - a.lost || a.index - b.index,
);
worstFirst.forEach((head, rank) => (head.rank = rank));

const state = {
  head: worstFirst[0],
  colour: "kind",
  measure: MEASURES.distance ? "distance" : data.measures[0].name,
  row: 0,
  kinds: new Set(KINDS),
  query: "",
  sort: { column: "kind", direction: 1 },
  limit: STEP,
};

const place = (head) => `Layer ${head.layer}, head ${head.head}`;
const others = (n) => Math.max(n - data.subject.sinks - 1, 1); // the keys that compete with the top one
const sigmoid = (value) => 1 / (1 + Math.exp(-value));

const parsed = new Map();
function details(head) {
  if (!parsed.has(head.place)) parsed.set(head.place, embedded(`layer-${head.place}`));
  return parsed.get(head.place)[head.head];
}

// ---------------------------------------------------------------- colours of the map

const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];

function viridis(amount) {
  const place = Math.min(Math.max(amount, 0), 1) * (VIRIDIS.length - 1);
  const from = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return `color-mix(in srgb, ${VIRIDIS[from]}, ${VIRIDIS[from + 1]} ${(100 * (place - from)).toFixed(1)}%)`;
}

function diverging(amount) {
  const end = amount < 0 ? "var(--below)" : "var(--above)";
  return `color-mix(in oklab, var(--level), ${end} ${(100 * Math.abs(amount)).toFixed(1)}%)`;
}

const VERDICTS = {
  kind: { label: "kind of head" },
  gamma: { label: "dilution exponent γ" },
  top_target: { label: `forecast top weight at ${grouped(target)}` },
  top_now: { label: "fitted top weight now" },
};
const colouredValue = (head) => (state.colour in VERDICTS ? head[state.colour] : head.medians[state.colour]);

// How the values of all heads become colours, and what the legend says: {colour, stops, ticks, logarithmic}.
function colourScale() {
  const values = data.heads.map(colouredValue).filter((value) => value !== null);
  if (state.colour === "gamma") {
    // Symmetric about 0, and not stretched by a few wild heads: the last colour stands for all beyond.
    const sizes = values.map(Math.abs).sort((a, b) => a - b);
    const limit = Math.max(0.25, Math.ceil(4 * sizes[Math.floor(0.98 * (sizes.length - 1))]) / 4);
    return {
      colour: (value) => diverging(Math.max(-1, Math.min(value / limit, 1))),
      stops: [-1, -0.5, 0, 0.5, 1].map(diverging),
      ticks: [`≤ ${tickText(-limit)}`, tickText(-limit / 2), "0", tickText(limit / 2), `≥ ${tickText(limit)}`],
    };
  }
  const [low, high] = [least(values), most(values)];
  const logarithmic = low > 0 && high / low > 30;
  const on = logarithmic ? Math.log : (value) => value;
  const off = logarithmic ? Math.exp : (value) => value;
  const width = on(high) - on(low) || 1;
  return {
    colour: (value) => viridis((on(value) - on(low)) / width),
    stops: VIRIDIS,
    ticks: values.length ? [0, 0.25, 0.5, 0.75, 1].map((part) => number(off(on(low) + part * width), 2, false)) : [],
    logarithmic,
  };
}

// ---------------------------------------------------------------- the map of layers × heads

const cells = [];

function buildMap() {
  const most = Math.max(...data.layers.map((layer) => layer.heads));
  const map = byId("map");
  map.style.setProperty("--heads", most);
  map.classList.toggle("dense", data.layers.length > 40 || most > 24);
  byId("desk").classList.toggle("stacked", most > 16);
  const every = most > 24 ? 4 : 1;
  const numbers = Array.from({ length: most }, (_, head) =>
    element("span", { role: "columnheader", "aria-label": `head ${head}` }, head % every ? "" : String(head)),
  );
  const corner = element("span", { role: "columnheader", "aria-label": "layer" });
  map.append(element("div", { role: "row" }, corner, ...numbers));
  data.layers.forEach((layer, place) => {
    const line = data.heads.slice(starts[place], starts[place] + layer.heads).map((head) => {
      cells.push(element("div", { role: "gridcell", class: "cell", "data-head": head.index, tabindex: -1 }));
      return cells.at(-1);
    });
    map.append(element("div", { role: "row" }, element("span", { role: "rowheader", title: layer.name }, String(layer.index)), ...line));
  });
  const headOf = (event) => data.heads[event.target.dataset?.head];
  map.addEventListener("click", (event) => headOf(event) && select(headOf(event)));
  map.addEventListener("keydown", (event) => headOf(event) && mapKey(event, headOf(event)));
  map.addEventListener("mousemove", (event) =>
    headOf(event) ? showTip(cellTip(headOf(event)), event.clientX, event.clientY) : hideTip(),
  );
  map.addEventListener("mouseleave", hideTip);
  map.addEventListener("focusin", (event) => {
    if (!headOf(event) || !event.target.matches(":focus-visible")) return;
    const box = event.target.getBoundingClientRect();
    showTip(cellTip(headOf(event)), box.right, box.bottom);
  });
  map.addEventListener("focusout", hideTip);
}

function mapKey(event, head) {
  const layer = data.layers[head.place];
  const row = (place) => {
    const kept = Math.max(0, Math.min(place, data.layers.length - 1));
    return starts[kept] + Math.min(head.head, data.layers[kept].heads - 1);
  };
  const column = (number) => starts[head.place] + Math.max(0, Math.min(number, layer.heads - 1));
  const moves = {
    ArrowLeft: () => column(head.head - 1),
    ArrowRight: () => column(head.head + 1),
    ArrowUp: () => row(head.place - 1),
    ArrowDown: () => row(head.place + 1),
    Home: () => column(0),
    End: () => column(layer.heads - 1),
  };
  if (event.key in moves) focusCell(moves[event.key]());
  else if (event.key === "Enter" || event.key === " ") select(head);
  else return;
  event.preventDefault();
}

let reachable; // the one cell that Tab reaches
function focusCell(index, focus = true) {
  reachable?.setAttribute("tabindex", -1);
  reachable = cells[index];
  reachable.setAttribute("tabindex", 0);
  if (focus) reachable.focus();
}

function cellText(head) {
  if (state.colour === "kind") return `γ ${exponent(head.gamma)}`;
  const { label } = VERDICTS[state.colour] ?? MEASURES[state.colour];
  return `${label}: ${number(colouredValue(head))}`;
}
const cellTip = (head) => [element("b", {}, place(head)), `${head.kind}: ${MEANINGS[head.kind]}`, cellText(head)];

function paintMap() {
  const scale = state.colour === "kind" ? null : colourScale();
  cells.forEach((cell, index) => {
    const head = data.heads[index];
    const value = colouredValue(head);
    cell.style.background = scale ? (value === null ? "" : scale.colour(value)) : `var(--${head.kind})`;
    cell.setAttribute("aria-label", `${place(head)}, ${head.kind}, ${cellText(head)}`);
  });
  byId("map-legend").replaceChildren(...(scale ? scaleLegend(scale) : kindLegend()));
}

function kindLegend() {
  const present = KINDS.filter((kind) => data.heads.some((head) => head.kind === kind));
  const entries = present.map((kind) => element("span", { "data-kind": kind }, swatch(), kind));
  return [element("div", { class: "key" }, ...entries)];
}

function scaleLegend(scale) {
  const strip = element("div", { class: "strip" });
  strip.style.background = `linear-gradient(to right, ${scale.stops.join(", ")})`;
  const { label, unit } = VERDICTS[state.colour] ?? MEASURES[state.colour];
  const notes = [state.colour in VERDICTS ? "" : "median over long rows", unit, scale.logarithmic ? "log scale" : ""];
  return [
    strip,
    element("div", { class: "ticks" }, ...scale.ticks.map((tick) => element("span", {}, tick))),
    element("div", { class: "quiet" }, [label, ...notes].filter(Boolean).join(", ")),
  ];
}

function dimMap() {
  cells.forEach((cell, index) => cell.classList.toggle("dim", !state.kinds.has(data.heads[index].kind)));
}

// ---------------------------------------------------------------- the panel of one head

function select(head, scroll = false) {
  cells[state.head.index].removeAttribute("aria-selected");
  state.head = head;
  cells[head.index].setAttribute("aria-selected", "true");
  focusCell(head.index, false);
  state.row = details(head).shown.length - 1;
  showHead();
  drawCharts();
  showTokens();
  byId("table").querySelectorAll("tbody tr").forEach(markRow);
  const { top } = byId("panel").getBoundingClientRect();
  if (scroll || top > innerHeight * 0.8) byId("panel").scrollIntoView();
  if (scroll) byId("panel").focus({ preventScroll: true });
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function showHead() {
  const head = state.head;
  byId("head-title").textContent = place(head);
  byId("head-kind").dataset.kind = head.kind;
  byId("head-kind").replaceChildren(swatch(), head.kind);
  byId("head-kind").title = head.name;
  byId("head-sentence").textContent = capital(`${MEANINGS[head.kind]}: ${head.sentence}.`);
  byId("head-facts").replaceChildren(...facts(head).map(([name, value, note]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value), element("dd", { class: "quiet" }, note)),
  ));
  byId("advice-text").textContent = head.advice.rule ? head.advice.text : capital(head.advice.text);
  byId("advice-line").hidden = !head.advice.rule;
  byId("advice-code").textContent = head.advice.rule ? codeLine(head.advice) : "";
  byId("copy").textContent = "Copy";
}

function facts(head) {
  const seen = grouped(head.n_target);
  const likely = `${number(head.top_target_low)} to ${number(head.top_target_high)}`;
  return [
    ["Dilution exponent γ", exponent(head.gamma), `resampled: ${exponent(head.gamma_low)} to ${exponent(head.gamma_high)}`],
    ["Top weight now", number(head.top_now), `${number(head.top_short)} on short rows`],
    [`At ${seen} tokens`, number(head.top_target), `resampled: ${likely}`],
    ["Ceiling there", weight(head.ceiling_target), "no weight can exceed it"],
    ["Falls below ½", letsGo(head), head.half_length < FAR ? "where the fit passes ½" : "on the fitted law"],
    ["Effective keys", `${number(head.keys_now)} → ${number(head.keys_target)}`, `now and at ${seen}`],
  ];
}

function letsGo(head) {
  const shortest = data.layers[head.place].n.reduce((a, b) => Math.min(a, b));
  if (head.half_length === null || head.half_length > FAR) return "never";
  return head.half_length < shortest ? `before ${shortest}` : `at ${grouped(Math.round(head.half_length))}`;
}

const codeLine = (advice) => `undilute.rules.get("${advice.expression}")`;

async function copyCode() {
  getSelection().selectAllChildren(byId("advice-code"));
  try {
    await navigator.clipboard.writeText(byId("advice-code").textContent);
    byId("copy").textContent = "Copied";
  } catch {
    byId("copy").textContent = "Selected"; // no clipboard here: the line is selected for the user's own keys
  }
}

// ---------------------------------------------------------------- its charts

function curve(head, name) {
  const { bins } = data.layers[head.place];
  const [median, low, high] = details(head).curves[name];
  return { line: known(bins.map((n, i) => [n, median[i]])), band: known(bins.map((n, i) => [n, low[i], high[i]])) };
}
const scatter = (head, name) => known(data.layers[head.place].n.map((n, i) => [n, details(head).points[name][i]]));

function reach(head) {
  const { n } = data.layers[head.place];
  const now = n.reduce((a, b) => Math.max(a, b));
  return { from: n.reduce((a, b) => Math.min(a, b)), now, target: Math.max(now, head.n_target) };
}

// What the charts of a head have in common: n, what was measured of it, and where a forecast begins.
function overKeys(head, title, { from, now, target }, curves) {
  const [first, last] = [curves[0].points[0], curves[0].points.at(-1)];
  const at = ([n, value]) => `${number(value)} at n = ${Math.round(n)}`;
  const base = Math.log2(target / from) > 6 ? 4 : 2;
  const powers = Array.from({ length: 40 }, (_, i) => base ** i);
  return {
    described: first
      ? `${title} for ${place(head)}: median ${at(first)}, ${at(last)}. Arrow keys read values.`
      : `${title} for ${place(head)}: no values.`,
    x: { label: "n, keys a row sees", log: 2, range: [from, target], ticks: powers.map((n) => [n, tokens(n)]) },
    curves,
    now: target > now ? now : null,
    says: (n) => `n = ${grouped(Math.round(n))}`,
  };
}

function measured(head, name) {
  const { line, band } = curve(head, name);
  return { median: { name: "median of rows", look: "median", points: line }, band: { name: "quartiles", look: "quartiles", band } };
}
const sampledRows = (head, name) => ({ name: "sampled rows", look: "point", loose: true, points: scatter(head, name) });

function topWeightChart(head) {
  const { from, now, target } = reach(head);
  const lead = Math.log(head.ceiling_target / (1 - head.ceiling_target)) + Math.log(head.n_target - 1);
  const ceiling = (n) => (head.ceiling_target < 1 ? sigmoid(lead - Math.log(n - 1)) : 1);
  const law = (n) => sigmoid(head.gap - head.slope * Math.log(others(n)));
  const { median, band } = measured(head, "top_weight_without_sink");
  const rows = sampledRows(head, "top_weight_without_sink");
  const spec = overKeys(head, "Top weight, sink left out", { from, now, target }, [
    median,
    { name: "fitted law", look: "fit", points: sampled(from, now, law) },
    { name: "forecast", look: "fit forecast", points: sampled(now, target, (n) => Math.min(law(n), ceiling(n))) },
    { name: "ceiling", look: "bound", points: MEASURES.weight_ceiling ? curve(head, "weight_ceiling").line : [] },
    { name: "ceiling, largest spread seen", look: "bound forecast", points: sampled(now, target, ceiling) },
    { name: "uniform, 1/n", look: "uniform", points: sampled(from, target, (n) => 1 / n) },
    rows,
    band,
  ]);
  const ahead = `; forecast ${number(head.top_target)} at ${tokens(target)}. Arrow`;
  const range = [...rows.points.map(([, value]) => value), head.top_target, head.top_target_low, 1].filter((value) => value > 1e-9);
  return {
    ...spec,
    described: spec.described.replace(". Arrow", ahead),
    y: { log: 10, range },
    mark: { at: target, value: head.top_target, low: head.top_target_low, high: head.top_target_high },
    height: 330,
  };
}

function keysChart(head) {
  const { from, now, target } = reach(head);
  const law = (n) => Math.min(n, Math.max(1, head.keys_now * (n / now) ** head.gamma_keys));
  const { median, band } = measured(head, "n_eff_without_sink");
  const curves = [
    median,
    { name: "fitted law", look: "fit", points: sampled(from, now, law) },
    { name: "forecast", look: "fit forecast", points: sampled(now, target, law) },
    { name: "all keys, n", look: "uniform", points: sampled(from, target, (n) => n) },
    sampledRows(head, "n_eff_without_sink"),
    band,
  ];
  const spec = overKeys(head, "Effective keys, sink left out", { from, now, target }, curves);
  return { ...spec, y: { log: 10, range: [1, Math.max(now, 2 * head.keys_target)] }, height: 270 };
}

const COMPANIONS = {
  distance: ["expected_distance", "expected_distance_upper", "distance_bound"],
  logit_spread: ["spread_bound"],
};
const STYLES = ["fit", "fit forecast", "bound"];

function measureChart(head) {
  const { from, now } = reach(head);
  const { median, band } = measured(head, state.measure);
  const companions = (COMPANIONS[state.measure] ?? []).filter((name) => name in MEASURES);
  const bounds = companions.map((name, i) => ({
    name: MEASURES[name].label,
    look: companions.length === 1 ? "bound" : STYLES[i],
    points: curve(head, name).line,
  }));
  const { label, unit } = MEASURES[state.measure];
  const spec = overKeys(head, label, { from, now, target: now }, [median, ...bounds, band]);
  const values = spec.curves.flatMap(({ points = [], band = [] }) => [...points, ...band]).flatMap((row) => row.slice(1));
  const log = least(values) > 0 && most(values) / least(values) > 30 ? 10 : 0;
  return { ...spec, y: { label: unit, log }, height: 270 };
}

function drawCharts() {
  const charts = { top: topWeightChart, keys: keysChart, measure: measureChart };
  for (const [name, chart] of Object.entries(charts)) {
    draw(byId(`chart-${name}`).querySelector(".plot"), chart(state.head));
  }
  byId("measure-formula").textContent = MEASURES[state.measure].formula;
}

// ---------------------------------------------------------------- what the head looks at

// Line ends and, within a single token, spaces as faint signs; the rest of the text as it is.
function visible(text, spaces) {
  const pieces = text.split(spaces ? /(\n|\t| )/ : /(\n|\t)/).filter(Boolean);
  const signs = { "\n": "⏎", "\t": "⇥", ...(spaces ? { " ": "·" } : {}) };
  return pieces.map((piece) => (piece in signs ? element("span", { class: "sign" }, signs[piece]) : piece));
}

const text = (from, to) => data.tokens.slice(Math.max(0, from), Math.max(0, to)).join("");

function showTokens() {
  const head = state.head;
  const { shown } = details(head);
  const layer = data.layers[head.place];
  byId("tokens-title").textContent = `What ${place(head).toLowerCase()} looks at`;
  const button = ({ row }, i) =>
    element("button", { type: "button", class: "plain", click: () => chooseRow(i) }, `row ${grouped(layer.position[row])}`);
  byId("rows").replaceChildren(...shown.map(button));
  chooseRow(state.row);
}

function chooseRow(i) {
  state.row = i;
  [...byId("rows").children].forEach((button, each) => button.setAttribute("aria-pressed", each === i));
  showRow();
}

function showRow() {
  const { row, keys, weights } = details(state.head).shown[state.row];
  const layer = data.layers[state.head.place];
  const position = layer.position[row];
  byId("query").replaceChildren(
    element("span", { class: "quiet" }, `The query at position ${grouped(position)} sees ${grouped(layer.n[row])} keys. `),
    element("bdi", { class: "text" }, ...visible(text(position - 3 * CONTEXT, position))),
    element("mark", { class: "asking" }, ...visible(text(position, position + 1), true)),
  );
  const most = Math.max(...weights);
  byId("keys").replaceChildren(...keys.map((key, i) => keyLine(key, weights[i], most, position)));
}

function keyLine(key, share, most, position) {
  const bar = element("span", { class: "bar" });
  bar.style.width = `${(100 * share) / (most || 1)}%`;
  const back = position - key;
  const distance = back === 0 ? "itself" : `${grouped(Math.abs(back))} ${back > 0 ? "back" : "ahead"}`;
  const sink = element("span", { class: "badge small", "data-kind": "sink" }, "sink");
  const where = element("span", { class: "where", title: `position ${key}` }, key < data.subject.sinks ? sink : distance);
  return element(
    "li",
    {},
    element("span", { class: "weight" }, element("span", { class: "track" }, bar), element("b", {}, number(share))),
    where,
    element("span", { class: "before text" }, element("bdi", {}, ...visible(text(key - CONTEXT, key)))),
    element("span", { class: "after text" },
      element("mark", {}, ...visible(text(key, key + 1), true)),
      element("bdi", {}, ...visible(text(key + 1, key + 1 + CONTEXT))),
    ),
  );
}

// ---------------------------------------------------------------- the table

function advised({ kind, advice }) {
  if (advice.rule) return advice.expression;
  return kind === "diluting" ? "no factor holds it" : "leave it";
}

const badge = ({ kind }) => element("span", { class: "badge small", "data-kind": kind }, swatch(), kind);

function gammaCell(head) {
  const interval = ` ${exponent(head.gamma_low)} to ${exponent(head.gamma_high)}`;
  return element("span", {}, exponent(head.gamma), element("span", { class: "quiet" }, interval));
}

// value: what is sorted by; shown as its number, as `text` of it, or by `show` of the head.
// first: the direction of the first click, 1 smallest first, −1 largest first.
const COLUMNS = [
  { name: "layer", label: "layer", value: (head) => head.layer, first: 1, text: String },
  { name: "head", label: "head", value: (head) => head.head, first: 1, text: String },
  { name: "kind", label: "kind", value: (head) => KINDS.indexOf(head.kind), first: 1, show: badge },
  { name: "gamma", label: "γ (resampled)", value: (head) => head.gamma, first: -1, show: gammaCell },
  { name: "top_short", label: "short", group: "top weight", value: (head) => head.top_short, first: -1 },
  { name: "top_now", label: "now", group: "top weight", value: (head) => head.top_now, first: -1 },
  { name: "top_target", label: "target", group: "top weight", value: (head) => head.top_target, first: 1 },
  { name: "ceiling", label: "ceiling", value: (head) => head.ceiling_target, first: 1, text: weight },
  { name: "keys", label: "effective keys", value: (head) => head.keys_now, first: -1 },
  { name: "sink", label: "sink share", value: (head) => head.medians.sink_share, first: -1 },
  { name: "advice", label: "advice", value: advised, first: 1, show: advised },
];

function buildTable() {
  const [upper, lower] = [element("tr"), element("tr")];
  COLUMNS.forEach((column, i) => {
    const button = element("button", { type: "button", class: "sort", click: () => sortBy(column) }, column.label);
    if (column.group) button.setAttribute("aria-label", `${column.group}, ${column.label}`);
    const cell = element("th", { scope: "col", "data-column": column.name, rowspan: column.group ? null : 2 }, button);
    if (column.group && column.group !== COLUMNS[i - 1].group) {
      const size = COLUMNS.filter((each) => each.group === column.group).length;
      upper.append(element("th", { colspan: size, scope: "colgroup", class: "group" }, column.group));
    }
    (column.group ? lower : upper).append(cell);
  });
  byId("table").tHead.append(upper, lower);
  const headOf = (event) => data.heads[event.target.closest("tr")?.dataset.head];
  const body = byId("table").tBodies[0];
  body.addEventListener("click", (event) => select(headOf(event), true));
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (event.key === "Enter" || event.key === " ") select(headOf(event), true);
    else if (next) focusRow(next);
    else return;
    event.preventDefault();
  });
}

function focusRow(row) {
  for (const each of row.parentNode.querySelectorAll('[tabindex="0"]')) each.tabIndex = -1;
  row.tabIndex = 0;
  row.focus();
}

function sortBy(column) {
  const again = state.sort.column === column.name;
  state.sort = { column: column.name, direction: again ? -state.sort.direction : column.first };
  showTable();
}

function sorted(heads) {
  const { value } = COLUMNS.find((each) => each.name === state.sort.column);
  const { direction } = state.sort;
  return heads.sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a === b) return one.rank - other.rank;
    if (a === null || b === null) return a === null ? 1 : -1;
    return a < b ? -direction : direction;
  });
}

// "12" finds layer 12 and every head 12, "12.4" one head, anything else a kind or advice that contains it.
function matches(head) {
  const query = state.query.trim().toLowerCase();
  if (/^\d+$/.test(query)) return head.layer === Number(query) || head.head === Number(query);
  if (/^\d+\.\d+$/.test(query)) return `${head.layer}.${head.head}` === query;
  return `${head.kind} ${place(head)} ${advised(head)} ${head.advice.text}`.toLowerCase().includes(query);
}

function showTable() {
  const found = sorted(data.heads.filter((head) => state.kinds.has(head.kind) && matches(head)));
  const rows = found.slice(0, state.limit).map((head, i) => {
    const shown = ({ name, value, show, text = number }) =>
      element("td", { "data-column": name }, show ? show(head) : text(value(head)));
    const row = element("tr", { "data-head": head.index, tabindex: i ? -1 : 0 }, ...COLUMNS.map(shown));
    markRow(row);
    return row;
  });
  byId("table").tBodies[0].replaceChildren(...rows);
  byId("table").querySelectorAll("th[data-column]").forEach((cell) => {
    const chosen = cell.dataset.column === state.sort.column;
    cell.setAttribute("aria-sort", chosen ? (state.sort.direction > 0 ? "ascending" : "descending") : "none");
  });
  byId("matches").textContent = `${grouped(found.length)} of ${grouped(data.heads.length)} heads`;
  const left = found.length - rows.length;
  byId("more").hidden = left <= 0;
  byId("more").textContent = `Show ${Math.min(STEP, left)} more`;
}

function markRow(row) {
  if (Number(row.dataset.head) === state.head.index) row.setAttribute("aria-current", "true");
  else row.removeAttribute("aria-current");
}

// ---------------------------------------------------------------- filters, choices, theme

function showKinds(kinds) {
  state.kinds = new Set(kinds);
  state.limit = STEP;
  const only = state.kinds.size === 1 ? [...state.kinds][0] : null;
  document.querySelectorAll("button.kind").forEach((button) => {
    button.setAttribute("aria-pressed", button.dataset.kind === only);
  });
  document.querySelectorAll("#chips input").forEach((box) => (box.checked = state.kinds.has(box.value)));
  dimMap();
  showTable();
}
const onlyOrAll = (kind) => showKinds(state.kinds.size === 1 && state.kinds.has(kind) ? KINDS : [kind]);

function buildFilters() {
  document.querySelectorAll("button.kind, .stack [data-kind]").forEach((each) => {
    each.addEventListener("click", () => onlyOrAll(each.dataset.kind));
  });
  const toggle = (kind) => showKinds(KINDS.filter((each) => state.kinds.has(each) !== (each === kind)));
  byId("chips").append(...KINDS.map((kind) =>
    element("label", { class: "chip", "data-kind": kind },
      element("input", { type: "checkbox", value: kind, change: () => toggle(kind) }), swatch(), kind),
  ));
  byId("find").addEventListener("input", (event) => {
    Object.assign(state, { query: event.target.value, limit: STEP });
    showTable();
  });
  byId("more").addEventListener("click", () => {
    state.limit += STEP;
    showTable();
  });
}

const option = (value, label) => element("option", { value }, label);

function buildChoices() {
  const measures = () => data.measures.map(({ name, label }) => option(name, label));
  const verdicts = Object.entries(VERDICTS).map(([name, { label }]) => option(name, label));
  byId("colour").append(
    element("optgroup", { label: "verdict" }, ...verdicts),
    element("optgroup", { label: "median over long rows" }, ...measures()),
  );
  byId("colour").addEventListener("change", (event) => {
    state.colour = event.target.value;
    paintMap();
  });
  byId("measure").append(...measures());
  byId("measure").value = state.measure;
  byId("measure").addEventListener("change", (event) => {
    state.measure = event.target.value;
    drawCharts();
  });
  byId("copy").addEventListener("click", copyCode);
}

function buildTheme() {
  const button = byId("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const name = () => (button.textContent = dark() ? "Light theme" : "Dark theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  name();
}

buildTheme();
buildChoices();
buildMap();
buildFilters();
buildTable();
paintMap();
showKinds(KINDS);
select(state.head);

let drawnWidth = byId("charts").clientWidth;
new ResizeObserver(() => {
  if (byId("charts").clientWidth === drawnWidth) return;
  drawnWidth = byId("charts").clientWidth;
  drawCharts();
}).observe(byId("charts"));
