"use strict";
// Elements, numbers as text, and the tip that follows mouse and keyboard. Strings go in as text, never as markup.

const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
const element = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const swatch = () => element("i", { class: "swatch" });

const power = (exponent) => "10" + [...String(exponent)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("");
const grouped = (value) => value.toLocaleString("en");

function number(value, digits = 2, zeros = true) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e7 || (size > 0 && size < 1e-4)) {
    const [mantissa, exponent] = value.toExponential(1).split("e");
    return `${mantissa}×${power(Number(exponent))}`.replace("-", "−");
  }
  if (size >= 100) return grouped(Math.round(value)).replace("-", "−");
  const text = value === 0 ? "0" : value.toPrecision(size >= 1 ? 3 : digits);
  return (zeros ? text : String(Number(text))).replace("-", "−");
}
// Up to six digits, for what was given rather than fitted.
function exact(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-4)) {
    const [mantissa, exponent] = value.toExponential(4).split("e");
    return `${Number(mantissa)}·${power(Number(exponent))}`.replace("-", "−");
  }
  return Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 10 }).replace("-", "−");
}
const tickText = (value) => number(value, 3, false);
const weight = (value) => (value > 0.995 ? "≈ 1" : number(value));
const exponent = (value) => value.toFixed(2).replace("-", "−");
const tokens = (value) => (value >= 1024 && value % 1024 === 0 ? `${value / 1024}k` : grouped(value));

function showTip(lines, x, y, live = "off") {
  const tip = byId("tip");
  tip.setAttribute("aria-live", live);
  tip.replaceChildren(...lines.map((line) => (line instanceof Node ? line : element("div", {}, line))));
  tip.hidden = false;
  const { offsetWidth, offsetHeight } = tip;
  const room = document.documentElement.clientWidth - offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(x + 14, room))}px`;
  tip.style.top = `${y + 18 + offsetHeight > innerHeight ? y - offsetHeight - 12 : y + 18}px`;
}
const hideTip = () => (byId("tip").hidden = true);
