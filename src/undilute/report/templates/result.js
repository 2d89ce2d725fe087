// Draws every chart of a page of results once it comes near the screen, and again where the width changes.

function drawHere(plot) {
  const width = Math.floor(plot.clientWidth);
  if (!width) return; // inside something folded
  plot.drawnWidth = width;
  draw(plot, JSON.parse(plot.dataset.chart));
}

const plots = [...document.querySelectorAll("[data-chart]")];
const near = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting && !target.drawnWidth) drawHere(target);
  },
  { rootMargin: "600px" },
);
for (const plot of plots) near.observe(plot);
new ResizeObserver(() => {
  for (const plot of plots) if (plot.drawnWidth && Math.floor(plot.clientWidth) !== plot.drawnWidth) drawHere(plot);
}).observe(document.body);
addEventListener("beforeprint", () => plots.filter(({ drawnWidth }) => !drawnWidth).forEach(drawHere));
