"use strict";

// Figures: everything drawn is a function of the numbers and of the figure's controls.

const DATA = JSON.parse(document.getElementById("data").textContent);

// Plotly reads a little HTML in its texts
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

// mean, least and largest of the seeds, at the rounds that have any value that the axis can show
function acrossSeeds({ rounds, seeds }, logarithmic) {
  const found = { rounds: [], mean: [], min: [], max: [] };
  rounds.forEach((round, place) => {
    const values = seeds.map((seed) => seed[place]).filter((value) => value !== null && (!logarithmic || value > 0));
    if (!values.length) return;
    found.rounds.push(round);
    found.mean.push(values.reduce((sum, value) => sum + value, 0) / values.length);
    found.min.push(Math.min(...values));
    found.max.push(Math.max(...values));
  });
  return found;
}

function curves(line, points, logarithmic, single) {
  const base = { type: "scatter", mode: "lines", connectgaps: true };
  const whole = acrossSeeds(points, logarithmic);
  const traces = [];
  if (points.seeds.length > 1 && !single) {
    traces.push({
      ...base, x: whole.rounds.concat([...whole.rounds].reverse()), y: whole.max.concat([...whole.min].reverse()),
      fill: "toself", fillcolor: line.colour, opacity: 0.18, line: { width: 0 }, hoverinfo: "skip", meta: "band",
    });
  }
  if (single) {
    points.seeds.forEach((values, place) => {
      traces.push({
        ...base, x: points.rounds, y: values, opacity: 0.55, name: plain(`${line.label}, seed ${line.seeds[place]}`),
        line: { color: line.colour, width: 1, dash: line.dash }, meta: "seed",
      });
    });
  }
  traces.push({
    ...base, x: whole.rounds, y: whole.mean, name: plain(line.label),
    mode: whole.rounds.length > 1 ? "lines" : "markers",
    line: { color: line.colour, width: 2, dash: line.dash }, marker: { color: line.colour }, meta: "mean",
  });
  const ends = points.seeds.map((values, place) => [values.findLastIndex((value) => value !== null), place])
    .filter(([end, place]) => end >= 0 && line.diverged[place] != null);
  if (ends.length) {
    traces.push({
      ...base, mode: "markers", x: ends.map(([end]) => points.rounds[end]), y: ends.map(([end, place]) => points.seeds[place][end]),
      name: plain(`${line.label} diverged`), marker: { symbol: "x", size: 9, color: line.colour }, meta: "diverged",
    });
  }
  return traces;
}

// for Plotly to choose 1, 2, 5, 10 on a log axis, or whole decades: its own choice writes labels over one another
function ticks(traces) {
  const values = traces.flatMap((trace) => trace.y).filter((value) => value > 0).map(Math.log10);
  values.sort((one, other) => one - other);
  const decades = values.at(-1) - values[0];
  return decades > 2 ? 6 : decades > 0.9 ? 3 : 5;
}

function draw(figure) {
  const lines = DATA[figure.id];
  const column = figure.querySelector(".column").value;
  const logarithmic = figure.querySelector(".scale").value === "log";
  const single = figure.querySelector(".single").checked;
  const shown = [...figure.querySelectorAll(".legend input")].map((box) => box.checked);
  const traces = lines.filter((_, place) => shown[place])
    .flatMap((line) => curves(line, line.points[column], logarithmic, single));
  const axis = { gridcolor: "#e6e6e6", linecolor: "#888", zeroline: false, automargin: true };
  // the buttons are listed, for Plotly's own choice has one that uploads the numbers
  Plotly.react(figure.querySelector(".plot"), traces, {
    showlegend: false, hovermode: "x unified", hoverlabel: { namelength: -1 },
    font: { family: "system-ui, sans-serif", size: 12 }, margin: { l: 10, r: 10, t: 28, b: 36 },
    xaxis: { ...axis, title: { text: "round" } },
    yaxis: { ...axis, type: logarithmic ? "log" : "linear", tickformat: "~g", hoverformat: ".4~g",
      nticks: logarithmic ? ticks(traces) : 8 },
  }, {
    responsive: true, displaylogo: false, plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  });
}

const usualScale = (column) => (column.includes("accuracy") ? "linear" : "log");

for (const figure of document.querySelectorAll("figure")) {
  const column = figure.querySelector(".column"), scale = figure.querySelector(".scale");
  scale.value = usualScale(column.value);
  column.addEventListener("change", () => { scale.value = usualScale(column.value); });
  figure.addEventListener("change", () => draw(figure));
}

// a figure is drawn when it comes into sight, and all of them before printing
const sight = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((one) => one.isIntersecting)) {
    sight.unobserve(entry.target);
    draw(entry.target);
  }
}, { rootMargin: "400px" });
document.querySelectorAll("figure").forEach((figure) => sight.observe(figure));
window.addEventListener("beforeprint", () => document.querySelectorAll("figure").forEach(draw));

// Tables: one row group a record, sorted by its first row

const value = ({ cells }, place) => cells[place].dataset.value ?? cells[place].textContent.trim();

function compare(one, other) {
  const numbers = [Number(one), Number(other)];
  return numbers.some(Number.isNaN) ? one.localeCompare(other, "en", { numeric: true }) : numbers[0] - numbers[1];
}

function sort(heading) {
  const table = heading.closest("table"), place = heading.cellIndex;
  const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  const groups = [...table.tBodies].map((body) => ({ body, value: value(body.rows[0], place) }));
  const missing = groups.filter((group) => group.value === ""), there = groups.filter((group) => group.value !== "");
  there.sort((one, other) => sign * compare(one.value, other.value));
  table.append(...[...there, ...missing].map((group) => group.body));  // what is missing is last either way
}

for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sort(button.closest("th")));

document.getElementById("outcome")?.addEventListener("change", ({ target }) => {
  for (const body of document.getElementById("verdicts").tBodies) {
    body.hidden = target.value !== "" && body.rows[0].dataset.outcome !== target.value;
  }
});
