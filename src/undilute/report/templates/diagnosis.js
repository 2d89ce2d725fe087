// The page of a diagnosis: what was asked, map, panel of one head, tokens and table, from the data embedded in the page.

const embedded = (id) => JSON.parse(byId(id).textContent);

const data = embedded("overview");
const { target } = data.question;
const { probe } = data; // null if nothing was asked
const together = probe?.together ?? null; // null if no head steadily finds what is asked for
const steady = data.heads.filter((head) => head.kind === "retrieval" && head.steady).length;
const KINDS = data.kinds.map((each) => each.kind);
const MEANINGS = Object.fromEntries(data.kinds.map((each) => [each.kind, each.meaning]));
const MEASURES = Object.fromEntries(data.measures.map((each) => [each.name, each]));
const DRAWN = data.measures.filter((each) => each.drawn).map((each) => each.name); // in the order of a head's curves
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
// Retrieval heads by their score, the others by what they lose.
const score = (head) => head.asked?.score.value ?? null;
const weighs = (head) => (head.kind === "retrieval" ? score(head) : head.lost);
const ranked = [...data.heads].sort(
  (a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind) || weighs(b) - weighs(a) || a.index - b.index,
);
ranked.forEach((head, rank) => (head.rank = rank));
const finders = ranked.filter((head) => head.kind === "retrieval");

const state = {
  head: ranked[0],
  colour: probe ? "score" : "kind",
  measure: DRAWN.includes("distance") ? "distance" : DRAWN[0],
  row: 0,
  question: 0,
  kinds: new Set(KINDS),
  query: "",
  sort: { column: "kind", direction: 1 },
  limit: STEP,
};

const place = (head) => `Layer ${head.layer}, head ${head.head}`;
const others = (n) => Math.max(n - data.subject.sinks - 1, 1); // the keys that compete with the top one
const sigmoid = (value) => 1 / (1 + Math.exp(-value));
const percent = (share) => `${Math.round(100 * share)} %`;
const signed = (value) => (value === null ? "–" : exponent(value).replace(/^−(0\.0+)$/, "$1"));

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
  ...(probe ? { score: { label: "retrieval score" } } : {}),
  kind: { label: "kind of head" },
  gamma: { label: "dilution exponent γ" },
  top_target: { label: `forecast top weight at ${grouped(target)}` },
  top_now: { label: "fitted top weight now" },
};
function colouredValue(head) {
  if (state.colour === "score") return score(head);
  return state.colour in VERDICTS ? head[state.colour] : head.medians[state.colour];
}

// A head that is of its kind in few windows is faint, but never gone.
const opacity = (share) => 0.25 + 0.75 * share;
const faded = (colour, share) => `color-mix(in srgb, ${colour}, transparent ${(100 * (1 - opacity(share))).toFixed(1)}%)`;

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
  map.addEventListener("click", (event) => headOf(event) && selectInMap(headOf(event)));
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
  else if (event.key === "Enter" || event.key === " ") selectInMap(head);
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
const units = (head) => (head.kind === "retrieval" ? "haystacks" : "windows");
const held = (head) => `so in ${percent(head.share)} of ${units(head)}${head.steady ? "" : ", not steady"}`;
const cellTip = (head) => [
  element("b", {}, place(head)), `${head.kind}: ${MEANINGS[head.kind]}`, held(head), cellText(head),
];

function paintMap() {
  const scale = state.colour === "kind" ? null : colourScale();
  cells.forEach((cell, index) => {
    const head = data.heads[index];
    const value = colouredValue(head);
    const colour = scale ? (value === null ? null : scale.colour(value)) : `var(--${head.kind})`;
    cell.style.background = colour === null ? "" : faded(colour, head.share);
    cell.setAttribute("aria-label", `${place(head)}, ${head.kind}, ${cellText(head)}, ${held(head)}`);
  });
  byId("map-legend").replaceChildren(...(scale ? scaleLegend(scale) : kindLegend()), opacityLegend());
}

function opacityLegend() {
  const samples = [0, 0.5, 1].map((share) => {
    const each = element("i", { class: "sample-cell" });
    each.style.background = faded("var(--ink)", share);
    return each;
  });
  const asked = finders.length ? ", a retrieval head of haystacks" : "";
  const says = `Opacity: the share of windows in which a head is of its kind${asked}, from none to all.`;
  return element("div", { class: "quiet opacity" }, element("span", {}, ...samples), says);
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
  const chance = state.colour === "score" ? `chance ${number(probe.chance)}` : "";
  const median = state.colour in VERDICTS ? "" : "median over long rows";
  const notes = [median, unit, chance, scale.logarithmic ? "log scale" : ""];
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

function select(head) {
  cells[state.head.index].removeAttribute("aria-selected");
  state.head = head;
  cells[head.index].setAttribute("aria-selected", "true");
  focusCell(head.index, false);
  state.row = details(head).shown.length - 1;
  showHead();
  drawCharts();
  drawAlpha();
  showLooked();
  showTokens();
  byId("table").querySelectorAll("tbody tr").forEach(markRow);
}

// On a narrow screen the panel is below the map.
function selectInMap(head) {
  select(head);
  if (byId("panel").getBoundingClientRect().top > innerHeight * 0.8) byId("panel").scrollIntoView();
}

function selectAndGo(head) {
  select(head);
  byId("panel").scrollIntoView();
  byId("panel").focus({ preventScroll: true });
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

function showHead() {
  const head = state.head;
  byId("head-title").textContent = place(head);
  byId("head-kind").dataset.kind = head.kind;
  byId("head-kind").replaceChildren(swatch(), head.kind);
  byId("head-kind").title = head.name;
  byId("head-share").textContent = held(head);
  byId("head-sentence").textContent = capital(`${MEANINGS[head.kind]}: ${head.sentence}.`);
  showTiles("head-facts", facts(head));
  const finds = head.kind === "retrieval" && head.asked !== null;
  byId("head-asked").hidden = !finds;
  byId("head-not-asked").hidden = finds || head.asked === null;
  if (finds) showTiles("asked-facts", [...askedFacts(head.asked), ["On plain text", head.plain_kind, MEANINGS[head.plain_kind]]]);
  else if (head.asked) byId("head-not-asked").textContent = `Asked for a fact, it does not look for it: ${scored(head.asked)}.`;
}

const scored = ({ score }) => `retrieval score ${plusMinus(score)}, chance ${number(score.chance)}`;

const plusMinus = ({ value, error }) => number(value) + (error === null ? "" : ` ± ${number(error)}`);

function showTiles(id, tiles) {
  byId(id).replaceChildren(...tiles.map(([name, value, note]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value), element("dd", { class: "quiet" }, note)),
  ));
}

// Of one head when it is asked, or of several together.
function askedFacts({ score, alpha, ratio, law, auc }) {
  const [first, last] = [alpha[0], alpha.at(-1)];
  const { value, low, high } = law.slope;
  const lengths = `at ${grouped(first.length)} and ${grouped(last.length)} tokens`;
  return [
    ["Retrieval score", plusMinus(score), `chance ${number(score.chance)}`],
    ["α*", `${number(first.value)} → ${number(last.value)}`, lengths],
    ["Slope of logit α* on ln n", signed(value), `95 %: ${signed(low)} to ${signed(high)}; the law has −1`],
    ["Lead R", `${number(ratio[0].value)} → ${number(ratio.at(-1).value)}`, "attention of the fact’s tokens, times others’"],
    ["AUC", number(auc), auc === null ? "too few right or wrong answers" : "α* of right against wrong answers"],
  ];
}

function facts(head) {
  const seen = grouped(head.n_target);
  const likely = `${number(head.top_target_low)} to ${number(head.top_target_high)}`;
  return [
    ["Dilution exponent γ", exponent(head.gamma), `resampled: ${exponent(head.gamma_low)} to ${exponent(head.gamma_high)}`],
    ["Top weight now", number(head.top_now), `${number(head.top_short)} on short rows`],
    [`Forecast at ${seen}`, number(head.top_target), `90 %: ${likely}`],
    ["Ceiling there", weight(head.ceiling_target), "no weight can exceed it"],
    ["Falls below ½", letsGo(head), head.half_length < FAR ? "where the fitted law passes ½" : "on the fitted law"],
    ["Effective keys", `${number(head.keys_now)} → ${number(head.keys_target)}`, `now and at ${seen}, by the fitted law`],
    ["Factor that would hold it", head.factor === null ? "none" : number(head.factor), "by the law: not tried by itself"],
    ["Steadiness", percent(head.share), `of ${units(head)} show it as ${head.kind}`],
  ];
}

function letsGo(head) {
  const shortest = data.layers[head.place].n.reduce((a, b) => Math.min(a, b));
  if (head.half_length === null || head.half_length > FAR) return "never";
  return head.half_length < shortest ? `before ${shortest}` : `at ${grouped(Math.round(head.half_length))}`;
}

// ---------------------------------------------------------------- its charts

function curve(head, name) {
  const { bins } = data.layers[head.place];
  const [median, low, high] = details(head).curves[DRAWN.indexOf(name)];
  return { line: known(bins.map((n, i) => [n, median[i]])), band: known(bins.map((n, i) => [n, low[i], high[i]])) };
}
function scatter(head, name) {
  const { n, drawn } = data.layers[head.place];
  return known(drawn.map((row, i) => [n[row], details(head).points[name][i]]));
}

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

const forecastMeans = (target) =>
  `The dot with its interval is the forecast at ${tokens(target)}, made the way that did best when checked. ` +
  "The dashed line is only the fitted law continued.";

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
    { name: "fitted law continued", look: "fit continued", points: sampled(now, target, (n) => Math.min(law(n), ceiling(n))) },
    { name: "ceiling", look: "bound", points: MEASURES.weight_ceiling ? curve(head, "weight_ceiling").line : [] },
    { name: "ceiling, largest spread seen", look: "bound continued", points: sampled(now, target, ceiling) },
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
    means: target > now ? forecastMeans(target) : null,
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
    { name: "fitted law continued", look: "fit continued", points: sampled(now, target, law) },
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
const STYLES = ["fit", "fit continued", "bound"];

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

const plot = (name) => byId(`chart-${name}`).querySelector(".plot");

function drawCharts() {
  const charts = { top: topWeightChart, keys: keysChart, measure: measureChart };
  for (const [name, chart] of Object.entries(charts)) draw(plot(name), chart(state.head));
  if (!byId("head-asked").hidden) draw(plot("asked"), askedChart(state.head));
  byId("measure-formula").textContent = MEASURES[state.measure].formula;
}

// ---------------------------------------------------------------- when asked

const points = (values) => known(values.map(({ length, value }) => [length, value]));
const band = (values) => known(values.map(({ length, low, high }) => [length, low, high]));

// The article's law from the first of some points: logit α* falls by 1 where ln n rises by 1.
function lawFrom(line) {
  if (!line.length) return [];
  const [n, alpha] = line[0];
  const lead = Math.log(alpha / (1 - alpha)) + Math.log(n);
  return known(line.map(([at]) => [at, sigmoid(lead - Math.log(at))]));
}
const theLaw = (line) => ({ name: "the law, slope −1", look: "law", points: lawFrom(line) });

// All charts of the probe share this axis, and the room left of it, so that they can stand under each other.
function overLengths(title, curves, y) {
  const { lengths } = probe;
  const ticks = lengths.map((n) => [n, grouped(n)]);
  const said = curves.filter(({ points, silent }) => points?.length && !silent).map(({ name, points }) =>
    `${name} ${points.map(([n, value]) => `${number(value)} at ${grouped(n)}`).join(", ")}`,
  );
  return {
    described: `${title} over length in tokens: ${said.join("; ")}. Arrow keys read values.`,
    x: { label: "text with its question, tokens", log: 2, range: [lengths[0], lengths.at(-1)], ticks },
    y: { ...y, letters: 5 },
    curves,
  };
}
function fromZero(curves) {
  const values = curves.flatMap(({ points = [], band = [] }) => [...points, ...band]).flatMap((row) => row.slice(1));
  return { range: [0, most([0.05, ...values])] };
}

function answered({ when_right, when_wrong }) {
  return [
    { name: "answered rightly", look: "right", colour: "var(--right)", marker: "circle", points: points(when_right) },
    { name: "answered wrongly", look: "wrong", colour: "var(--wrong)", marker: "x", points: points(when_wrong) },
  ];
}

const withBand = (name, alpha) => ({
  name, look: "together", colour: "var(--retrieval)", marker: "circle", points: points(alpha), band: band(alpha),
});

function alphaChart() {
  const mean = points(together.alpha);
  const chosen = finders.includes(state.head) ? [state.head] : [];
  const curves = [
    withBand(steady > 1 ? `mean of ${steady} steady heads, 95 %` : "the one steady head, 95 %", together.alpha),
    ...chosen.map((head) => ({ name: place(head), look: "chosen", points: points(head.asked.alpha) })),
    theLaw(mean),
    ...finders.map((head) => ({ name: "single heads", look: "single", silent: true, points: points(head.asked.alpha) })),
  ];
  return { ...overLengths("Attention on what is asked for", curves, fromZero(curves)), height: 330 };
}

const RECALL = ["var(--sharp)", "var(--diffuse)", "var(--local)", "var(--diluting)"];
const MARKS = ["circle", "square", "triangle-up", "diamond"];

function recallChart() {
  const tasks = [...new Set(probe.recall.map(({ task }) => task))];
  const curves = tasks.map((task, i) => {
    const own = probe.recall.filter((each) => each.task === task);
    const name = `${own[0].label}: ${own[0].questions} questions in ${own[0].haystacks} ${own[0].haystacks === 1 ? "haystack" : "haystacks"}`;
    const values = own.map(({ length, right }) => ({
      length, value: 100 * right.value, low: 100 * right.low, high: 100 * right.high,
    }));
    const style = { look: "recall", colour: RECALL[i % RECALL.length], marker: MARKS[i % MARKS.length] };
    return { name, ...style, points: points(values), band: band(values) };
  });
  const y = { label: "% answered rightly, with 95 % intervals", range: [0, 100], ticks: [0, 25, 50, 75, 100].map((at) => [at, `${at}`]) };
  return { ...overLengths("Recall in percent", curves, y), height: 230 };
}

function answersChart() {
  const curves = answered(together);
  return { ...overLengths("Attention on what is asked for, mean of retrieval heads", curves, fromZero(curves)), height: 250 };
}

function askedChart(head) {
  const line = points(head.asked.alpha);
  const curves = [withBand("α*, 95 %", head.asked.alpha), ...answered(head.asked), theLaw(line)];
  return { ...overLengths(`Attention on what is asked for, ${place(head)}`, curves, fromZero(curves)), height: 270 };
}

// The charts of all retrieval heads; only the first knows which head is selected.
function drawAlpha() {
  if (!together) return;
  draw(plot("alpha"), alphaChart());
  for (const button of byId("finders").children) button.setAttribute("aria-pressed", Number(button.dataset.head) === state.head.index);
}

function drawAsked() {
  if (!probe) return;
  drawAlpha();
  draw(plot("recall"), recallChart());
  if (together) draw(plot("answers"), answersChart());
}

function buildAsked() {
  if (!together) return;
  showTiles("together-facts", [...askedFacts(together), ["Found in", percent(together.share), "of haystacks, on average"]]);
  byId("finders").append(...finders.map((head) => {
    const title = `${place(head)}, ${scored(head.asked)}`;
    const button = { type: "button", class: "plain", "data-head": head.index, title, click: () => select(head) };
    const figure = element("span", { class: "small-figure" }, number(score(head)));
    return element("button", button, `${head.layer}.${head.head} `, figure);
  }));
}

// ---------------------------------------------------------------- what the head looks at

// Line ends and, within a single token, spaces as faint signs; the rest of the text as it is.
function visible(text, spaces) {
  const pieces = text.split(spaces ? /(\n|\t| )/ : /(\n|\t)/).filter(Boolean);
  const signs = { "\n": "⏎", "\t": "⇥", ...(spaces ? { " ": "·" } : {}) };
  return pieces.map((piece) => (piece in signs ? element("span", { class: "sign" }, signs[piece]) : piece));
}

// Some tokens as text. Those of the fact that answers are marked.
function passage(words, from, to, fact = [0, 0]) {
  const [begin, end] = [Math.max(0, from), Math.max(0, Math.min(to, words.length))];
  const inner = fact.map((edge) => Math.min(Math.max(edge, begin), end));
  const part = (start, stop) => visible(words.slice(start, stop).join(""));
  const marked = part(...inner);
  return [...part(begin, inner[0]), ...(marked.length ? [element("span", { class: "fact" }, ...marked)] : []), ...part(inner[1], end)];
}

// One of the heaviest keys among its neighbours. words: all tokens; fact: the span that answers.
function keyLine({ words, key, share, most, where, title, fact }) {
  const bar = element("span", { class: "bar" });
  bar.style.width = `${(100 * share) / (most || 1)}%`;
  const inFact = fact && key >= fact[0] && key < fact[1];
  return element(
    "li",
    inFact ? { class: "in-fact" } : {},
    element("span", { class: "weight" }, element("span", { class: "track" }, bar), element("b", {}, number(share))),
    element("span", { class: "where", title }, where),
    element("span", { class: "before text" }, element("bdi", {}, ...passage(words, key - CONTEXT, key, fact))),
    element("span", { class: "after text" },
      element("mark", {}, ...(key < 0 ? [] : visible(words[key] ?? "", true))),
      element("bdi", {}, ...passage(words, key + 1, key + 1 + CONTEXT, fact)),
    ),
  );
}
const sinkBadge = () => element("span", { class: "badge small", "data-kind": "sink" }, "sink");

// What a retrieval head looked at from the last token of a question.
function showLooked() {
  const head = state.head;
  const shown = Boolean(together) && finders.includes(head) && probe.looked.length > 0;
  byId("looked").hidden = !shown;
  if (!shown) return;
  byId("looked-title").textContent = `What ${place(head).toLowerCase()} looks at when asked`;
  byId("questions").replaceChildren(...probe.looked.map(({ question, right }, i) => {
    const button = { type: "button", class: "plain", click: () => chooseQuestion(i) };
    return element("button", button, ...visible(question.join("").trim()), right ? " ✓" : " ✗");
  }));
  chooseQuestion(state.question);
}

function chooseQuestion(i) {
  state.question = i;
  [...byId("questions").children].forEach((button, each) => button.setAttribute("aria-pressed", each === i));
  const { question, span, right, heads } = probe.looked[i];
  const [start, stop] = span;
  const words = [...probe.haystack, ...question];
  const quiet = (text) => element("span", { class: "quiet" }, text);
  byId("asking").replaceChildren(
    quiet("Asked: "),
    element("bdi", { class: "text" }, ...visible(question.slice(0, -1).join("").trimStart())),
    element("mark", { class: "asking" }, ...visible(question.at(-1) ?? "", true)),
    element("span", { class: `verdict ${right ? "helped" : "failed"}` }, right ? "answered rightly" : "answered wrongly"),
  );
  byId("fact").replaceChildren(
    quiet(`The fact stands at token ${grouped(start)} of ${grouped(probe.haystack.length)}: `),
    element("bdi", { class: "text" }, ...passage(probe.haystack, start - CONTEXT, stop + CONTEXT, span)),
  );
  const own = heads.find(({ layer, head }) => layer === state.head.layer && head === state.head.head) ?? { keys: [], weights: [] };
  const top = Math.max(...own.weights);
  byId("looked-keys").replaceChildren(...own.keys.map((key, i) => {
    const where = () => {
      if (key < 0) return "before the text";
      if (key < data.subject.sinks) return sinkBadge();
      if (key >= start && key < stop) return element("span", { class: "fact" }, "the fact");
      return key >= probe.haystack.length ? "the question" : `token ${grouped(key)}`;
    };
    return keyLine({ words, key, share: own.weights[i], most: top, where: where(), title: `position ${key}`, fact: span });
  }));
}

function showTokens() {
  const head = state.head;
  const { shown } = details(head);
  const layer = data.layers[head.place];
  byId("tokens-title").textContent = `What ${place(head).toLowerCase()} looks at on plain text`;
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
    element("bdi", { class: "text" }, ...passage(data.tokens, position - 3 * CONTEXT, position)),
    element("mark", { class: "asking" }, ...visible(data.tokens[position] ?? "", true)),
  );
  const top = Math.max(...weights);
  byId("keys").replaceChildren(...keys.map((key, i) => {
    const back = position - key;
    const distance = back === 0 ? "itself" : `${grouped(Math.abs(back))} ${back > 0 ? "back" : "ahead"}`;
    const where = key < data.subject.sinks ? sinkBadge() : distance;
    return keyLine({ words: data.tokens, key, share: weights[i], most: top, where, title: `position ${key}` });
  }));
}

// ---------------------------------------------------------------- the table

const badge = ({ kind }) => element("span", { class: "badge small", "data-kind": kind }, swatch(), kind);

function gammaCell(head) {
  const interval = ` ${exponent(head.gamma_low)} to ${exponent(head.gamma_high)}`;
  return element("span", {}, exponent(head.gamma), element("span", { class: "quiet" }, interval));
}

const longest = (head) => head.asked?.alpha.at(-1).value ?? null; // α* in the longest haystacks

// value: what is sorted by; shown as its number, as `text` of it, or by `show` of the head.
// first: the direction of the first click, 1 smallest first, −1 largest first.
const COLUMNS = [
  { name: "layer", label: "layer", value: (head) => head.layer, first: 1, text: String },
  { name: "head", label: "head", value: (head) => head.head, first: 1, text: String },
  { name: "kind", label: "kind", value: (head) => KINDS.indexOf(head.kind), first: 1, show: badge },
  { name: "share", label: "steady", value: (head) => head.share, first: -1, text: percent },
  ...(probe ? [
    { name: "score", label: "score", group: "when asked", value: score, first: -1 },
    { name: "alpha", label: `α* at ${grouped(probe.lengths.at(-1))}`, group: "when asked", value: longest, first: -1 },
    { name: "auc", label: "AUC", group: "when asked", value: (head) => head.asked?.auc ?? null, first: -1 },
  ] : []),
  { name: "gamma", label: "γ (resampled)", value: (head) => head.gamma, first: -1, show: gammaCell },
  { name: "top_short", label: "short", group: "top weight", value: (head) => head.top_short, first: -1 },
  { name: "top_now", label: "now", group: "top weight", value: (head) => head.top_now, first: -1 },
  { name: "top_target", label: "target", group: "top weight", value: (head) => head.top_target, first: 1 },
  { name: "keys", label: "effective keys", value: (head) => head.keys_now, first: -1 },
  { name: "sink", label: "sink share", value: (head) => head.medians.sink_share, first: -1 },
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
  body.addEventListener("click", (event) => selectAndGo(headOf(event)));
  body.addEventListener("keydown", (event) => {
    const row = event.target.closest("tr");
    const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (event.key === "Enter" || event.key === " ") selectAndGo(headOf(event));
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

// "12" finds layer 12 and every head 12, "12.4" one head, anything else a kind, here or on plain text, that contains it.
function matches(head) {
  const query = state.query.trim().toLowerCase();
  if (/^\d+$/.test(query)) return head.layer === Number(query) || head.head === Number(query);
  if (/^\d+\.\d+$/.test(query)) return `${head.layer}.${head.head}` === query;
  return `${head.kind} ${head.plain_kind} ${place(head)}`.toLowerCase().includes(query);
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
  const measures = (some) => some.map(({ name, label }) => option(name, label));
  const verdicts = Object.entries(VERDICTS).map(([name, { label }]) => option(name, label));
  byId("colour").append(
    element("optgroup", { label: "verdict" }, ...verdicts),
    element("optgroup", { label: "median over long rows" }, ...measures(data.measures)),
  );
  byId("colour").value = state.colour;
  byId("colour").addEventListener("change", (event) => {
    state.colour = event.target.value;
    paintMap();
  });
  byId("measure").append(...measures(DRAWN.map((name) => MEASURES[name])));
  byId("measure").value = state.measure;
  byId("measure").addEventListener("change", (event) => {
    state.measure = event.target.value;
    drawCharts();
  });
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
buildAsked();
buildMap();
buildFilters();
buildTable();
paintMap();
showKinds(KINDS);
select(state.head);
drawAsked();

// Charts are drawn again when there is more or less room for them.
for (const [id, drawAgain] of [["charts", drawCharts], ["asked", drawAsked]]) {
  let drawnWidth = byId(id).clientWidth;
  new ResizeObserver(() => {
    if (byId(id).clientWidth === drawnWidth) return;
    drawnWidth = byId(id).clientWidth;
    drawAgain();
  }).observe(byId(id));
}
