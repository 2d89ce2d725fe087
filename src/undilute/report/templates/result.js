"use strict";
// Draws every element with data-figure once it comes near the screen, with room for its legend at any width.
(() => {
  const ROW = 21;

  function legendRows(data, width) {
    const names = data.filter((trace) => trace.showlegend !== false).map((trace) => trace.name.length);
    const each = 62 + 7.4 * Math.max(0, ...names);
    return Math.ceil(names.length / Math.max(1, Math.floor((width - 24) / each)));
  }

  function thinned(axis, width) {
    if (!axis.ticktext || width > 560) return axis;
    const step = Math.ceil((axis.ticktext.length * Math.max(...axis.ticktext.map((text) => text.length)) * 9) / (width - 90));
    return { ...axis, ticktext: axis.ticktext.map((text, place) => (place % step ? "" : text)) };
  }

  function wrapped(text, width) {
    return text.length * 6.6 > width - 30 ? text.replaceAll(" · ", "<br>") : text;
  }

  function linesOf(text) {
    return text.split("<br>").length;
  }

  function cellsLayout(figure, width) {
    const { title, xaxis, yaxis, margin } = figure.layout;
    const text = wrapped(title.text, width);
    const above = 10 + 17 * linesOf(text);
    const narrow = width < 560; // names of rows take two lines, those of columns stand upright
    const names = yaxis.ticktext.map((name) => (narrow ? name.replaceAll(", ", ",<br>") : name));
    return {
      ...figure.layout,
      width,
      height: above + Math.max(2, names.length) * 40 + (narrow ? 130 : 76),
      margin: { ...margin, t: above },
      title: { ...title, text, pad: { ...title.pad, b: above - 19 } }, // plotly places the first line of several
      xaxis: { ...xaxis, tickangle: narrow ? -90 : 0 },
      yaxis: { ...yaxis, ticktext: names },
    };
  }

  function layoutFor(figure, width) {
    return figure.layout.legend ? curvesLayout(figure, width) : cellsLayout(figure, width);
  }

  function curvesLayout(figure, width) {
    const plot = Math.max(280, Math.min(440, 0.62 * width));
    const below = 74; // numbers and name of the x axis
    const legend = (legendRows(figure.data, width) + 1.4) * ROW;
    const text = wrapped(figure.layout.legend.title.text, width);
    const height = plot + below + legend + (linesOf(text) - 1) * 17;
    return {
      ...figure.layout,
      height,
      width,
      xaxis: thinned(figure.layout.xaxis, width),
      legend: { ...figure.layout.legend, y: -below / plot, title: { ...figure.layout.legend.title, text } },
    };
  }

  function draw(element) {
    const figure = JSON.parse(element.dataset.figure);
    const width = Math.floor(element.clientWidth);
    if (!width) return; // inside something folded
    element.drawnWidth = width;
    Plotly.react(element, figure.data, layoutFor(figure, width), {
      displaylogo: false,
      displayModeBar: "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    });
  }

  function start() {
    const elements = [...document.querySelectorAll("[data-figure]")];
    const near = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (entry.isIntersecting && entry.target.drawnWidth === undefined) draw(entry.target);
        }
      },
      { rootMargin: "600px" },
    );
    for (const element of elements) near.observe(element);
    new ResizeObserver(() => {
      for (const element of elements) {
        if (element.drawnWidth !== undefined && Math.floor(element.clientWidth) !== element.drawnWidth) draw(element);
      }
    }).observe(document.body);
    addEventListener("beforeprint", () => elements.filter((each) => each.drawnWidth === undefined).forEach(draw));
  }

  if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
  else start();
})();
