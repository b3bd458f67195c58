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

// what a round had cost by its end: the costs are known at some rounds, and grow evenly between them
function placed(costs, across, rounds) {
  if (across === "round") return rounds;
  const known = costs.round, spent = costs[across];
  return rounds.map((round) => {
    const after = known.findIndex((one) => one >= round);
    if (after <= 0) return after === 0 ? spent[0] * round / known[0] : spent.at(-1);
    const share = (round - known[after - 1]) / (known[after] - known[after - 1]);
    return spent[after - 1] + share * (spent[after] - spent[after - 1]);
  });
}

// the colours of the page, which follow the reader's light or dark mode
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const night = matchMedia("screen and (prefers-color-scheme: dark)");

// a colour that is dark itself is made lighter where the page is dark
function visible(colour) {
  const parts = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
  const light = (0.3 * parts[0] + 0.59 * parts[1] + 0.11 * parts[2]) / 255;
  const share = night.matches ? Math.max(0, 0.62 - light) : 0;
  return "#" + parts.map((part) => Math.round(part + share * (255 - part)).toString(16).padStart(2, "0")).join("");
}

function curves(given, points, logarithmic, single, across) {
  const line = { ...given, colour: visible(given.colour) };
  const base = { type: "scatter", mode: "lines", connectgaps: true };
  const whole = acrossSeeds(points, logarithmic);
  whole.rounds = placed(line.costs, across, whole.rounds);
  const places = placed(line.costs, across, points.rounds);
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
        ...base, x: places, y: values, opacity: 0.55, name: plain(`${line.label}, seed ${line.seeds[place]}`),
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
      ...base, mode: "markers", x: ends.map(([end]) => places[end]), y: ends.map(([end, place]) => points.seeds[place][end]),
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

// the trials of a search
function trials({ across, up, labels, colour }, name, column) {
  return [{
    type: "scatter", mode: "markers", x: across[name], y: up[column], text: labels.map(plain), meta: "trial",
    name: "", hovertemplate: "%{text}<br>%{y:.4~g}", marker: { color: visible(colour), size: 8, opacity: 0.8 },
  }];
}

// what is chosen in an option, in the words of the reader
const words = (choice) => choice.selectedOptions[0].textContent;

function draw(figure) {
  const data = DATA[figure.id];
  const column = figure.querySelector(".column"), across = figure.querySelector(".across");
  const logarithmic = figure.querySelector(".scale").value === "log";
  const single = figure.querySelector(".single")?.checked;
  const shown = [...figure.querySelectorAll(".legend input")].map((box) => box.checked);
  const traces = data.up ? trials(data, across.value, column.value) : data.filter((_, place) => shown[place])
    .flatMap((line) => curves(line, line.points[column.value], logarithmic, single, across.value));
  const wide = data.up && traces[0].x.every((value) => value > 0);
  const axis = { gridcolor: style("--line"), linecolor: style("--dim"), zeroline: false, automargin: true };
  figure.querySelectorAll(".legend svg line").forEach((sample, place) => sample.setAttribute("stroke", visible(data[place].colour)));
  // the buttons are listed, for Plotly's own choice has one that uploads the numbers
  Plotly.react(figure.querySelector(".plot"), traces, {
    showlegend: false, hovermode: data.up ? "closest" : "x unified", hoverdistance: data.up ? 20 : -1, hoverlabel: { namelength: -1, bgcolor: style("--soft") },
    paper_bgcolor: style("--page"), plot_bgcolor: style("--page"),
    font: { family: "system-ui, sans-serif", size: 12, color: style("--ink") }, margin: { l: 10, r: 10, t: 28, b: 36 },
    xaxis: { ...axis, title: { text: plain(words(across)) }, type: wide ? "log" : "linear",
      ...(wide ? { tickformat: "~g", tickvals: [...new Set(traces[0].x)].sort((one, other) => one - other) } : {}) },
    yaxis: { ...axis, title: { text: plain(words(column)) }, type: logarithmic ? "log" : "linear", tickformat: "~g", hoverformat: ".4~g",
      nticks: logarithmic ? ticks(traces) : 8 },
  }, {
    responsive: true, displaylogo: false, plotlyServerURL: "",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  });
}

// the numbers behind what is shown
function csv(figure) {
  const data = DATA[figure.id], column = figure.querySelector(".column").value, across = figure.querySelector(".across").value;
  const rows = data.up
    ? [["algorithm", across, column], ...data.labels.map((label, place) => [label, data.across[across][place], data.up[column][place]])]
    : [["algorithm", "seed", across, column], ...data.flatMap((line) => {
      const points = line.points[column], places = placed(line.costs, across, points.rounds);
      return points.seeds.flatMap((values, seed) => values.map((value, place) => [line.label, line.seeds[seed], places[place], value]));
    }).filter((row) => row[3] !== null)];
  const quoted = (cell) => (/[",\n]/.test(cell) ? `"${String(cell).replace(/"/g, '""')}"` : cell);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows.map((row) => row.map(quoted).join(",") + "\n").join("")], { type: "text/csv" }));
  link.download = `${figure.id}-${column}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

const usualScale = (column) => (column.includes("accuracy") ? "linear" : "log");

for (const figure of document.querySelectorAll("figure")) {
  const column = figure.querySelector(".column"), scale = figure.querySelector(".scale");
  scale.value = usualScale(column.value);
  column.addEventListener("change", () => { scale.value = usualScale(column.value); });
  figure.addEventListener("change", () => draw(figure));
  figure.querySelector(".csv").addEventListener("click", () => csv(figure));
}

// a figure is drawn when it comes into sight, and all of them before printing
const sight = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((one) => one.isIntersecting)) {
    sight.unobserve(entry.target);
    draw(entry.target);
  }
}, { rootMargin: "400px" });
document.querySelectorAll("figure").forEach((figure) => sight.observe(figure));
night.addEventListener("change", () => document.querySelectorAll("figure:has(.js-plotly-plot)").forEach(draw));
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
