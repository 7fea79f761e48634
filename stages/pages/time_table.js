"use strict";
(() => {
  const place = document.getElementById("timings");
  if (!place || !Array.isArray(window.RETRACE_TIMINGS)) return;
  // The file has the runs of all recipes that were in use on this machine.
  const stages = place.dataset.stages.split(" ");
  const runs = window.RETRACE_TIMINGS.filter((run) => stages.includes(run.name));
  if (runs.length === 0) return;

  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const duration = (seconds) => {
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    if (seconds < 100) return `${Math.round(seconds)} s`;
    const whole = Math.round(seconds);
    if (whole < 6000) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    const minutes = Math.round(seconds / 60);
    return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };
  const total = runs.reduce((sum, run) => sum + run.seconds, 0);
  const longest = Math.max(...runs.map((run) => run.seconds), 1e-9);
  const spent = {};
  for (const run of runs)
    for (const [phase, seconds] of Object.entries(run.phases || {})) spent[phase] = (spent[phase] || 0) + seconds;
  const phases = Object.keys(spent).sort((a, b) => spent[b] - spent[a] || (a < b ? -1 : 1));
  const shade = (phase) => (phases.indexOf(phase) < 5 ? `phase-${phases.indexOf(phase) + 1}` : "phase-rest");

  const table = element("table", "bars");
  table.append(element("caption", "", `Last finished run of each stage on this machine, ${duration(total)} together.`));
  const body = element("tbody");
  for (const run of runs) {
    const row = element("tr");
    const name = element("th", "", run.name);
    name.scope = "row";
    const bar = element("span", "bar");
    const parts = Object.entries(run.phases || {}).sort((a, b) => phases.indexOf(a[0]) - phases.indexOf(b[0]));
    const rest = run.seconds - parts.reduce((sum, part) => sum + part[1], 0);
    if (rest > 0) parts.push(["other", rest]);
    for (const [phase, seconds] of parts) {
      const piece = element("span", phase === "other" ? "phase-rest" : shade(phase));
      piece.style.width = `${(100 * seconds) / longest}%`;
      piece.title = `${phase}: ${duration(seconds)}`;
      bar.append(piece);
    }
    const large = parts.filter((part) => parts.length > 1 && part[1] >= 0.05 * run.seconds);
    const drawn = element("td", "wide");
    drawn.append(bar);
    if (large.length) {
      const told = large.map(([phase, seconds]) => `${phase} ${duration(seconds)}`);
      drawn.append(element("span", "quiet", told.join(", ")));
    }
    row.append(name, element("td", "number", duration(run.seconds)), drawn);
    body.append(row);
  }
  table.append(body);
  const legend = element("p", "legend");
  for (const phase of [...phases.slice(0, 5), phases.length > 5 ? "all else" : "other"]) {
    const entry = element("span");
    entry.append(element("i", phases.includes(phase) ? shade(phase) : "phase-rest"), phase);
    legend.append(entry);
  }
  place.replaceChildren(legend, table);
})();
