"use strict";
(() => {
  const data = window.RETRACE_ROLLOUTS;
  const list = document.getElementById("list");
  if (!data) return;
  const SHOWN = 20; // rollouts on one page
  const count = data.step.length;
  const form = document.getElementById("filter");
  const shade = document.getElementById("shade");
  const correct = data.verdicts.indexOf("correct");

  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // Rows come in pieces, each loaded once, when one of its rows is shown.
  const pieces = new Map();
  const waiting = new Map();
  window.retraceRows = (number, rows) => {
    pieces.set(number, rows);
    const told = waiting.get(number);
    if (told) told.forEach((call) => call());
    waiting.delete(number);
  };
  const load = (number) =>
    new Promise((resolve, reject) => {
      if (pieces.has(number)) return resolve();
      if (waiting.has(number)) return waiting.get(number).push(resolve);
      waiting.set(number, [resolve]);
      const script = document.createElement("script");
      script.src = `rows-${number}.js`;
      script.onerror = () => reject(new Error(`rows-${number}.js is not beside this page`));
      document.head.append(script);
    });
  const rowOf = async (row) => {
    await load(Math.floor(row / data.piece));
    return pieces.get(Math.floor(row / data.piece))[row % data.piece];
  };

  // First row and right responses of each group; a group's rows lie together.
  const groups = [];
  for (let row = 0; row < count; row++) {
    const group = (groups[data.group[row]] ||= { first: row, rows: 0, right: 0 });
    group.rows++;
    if (data.verdict[row] === correct) group.right++;
  }
  const kindOf = (group) => (group.right === 0 ? "wrong" : group.right === group.rows ? "right" : "mixed");

  const isWithin = (value, name, fields) => {
    const from = fields[`${name}_from`], to = fields[`${name}_to`];
    return (from === "" || value >= Number(from)) && (to === "" || value <= Number(to));
  };
  const chosen = (fields) => {
    const verdict = data.verdicts.indexOf(fields.verdict);
    const text = fields.text.toLowerCase();
    const matches = data.problems.map((one) => !text || one.join("\n").toLowerCase().includes(text));
    const found = [];
    for (let row = 0; row < count; row++) {
      const flags = data.flags[row];
      const keeps =
        (fields.verdict === "" || data.verdict[row] === verdict) &&
        isWithin(data.reward[row], "reward", fields) &&
        isWithin(data.tokens[row], "tokens", fields) &&
        isWithin(data.step[row], "step", fields) &&
        (!data.turns ||
          (isWithin(data.turns[row], "turns", fields) &&
            isWithin(data.failed[row], "failed", fields) &&
            (fields.fault === "" || data.faulty[row] === Number(fields.fault)))) &&
        matches[data.problem[row]] &&
        (fields.groups === "" || kindOf(groups[data.group[row]]) === fields.groups) &&
        (fields.kept === "" ||
          (fields.kept === "cut" ? flags & 1 : fields.kept === "trained" ? flags & 2 : !(flags & 2)));
      if (keeps) found.push(row);
    }
    const by = {
      long: ["tokens", -1], short: ["tokens", 1], low: ["reward", 1], high: ["reward", -1],
      turns: ["turns", -1], failed: ["failed", -1], faulty: ["faulty", -1],
    }[fields.order];
    if (by) found.sort((a, b) => by[1] * (data[by[0]][a] - data[by[0]][b]) || a - b);
    return found;
  };

  const marked = (text, answer) => {
    const at = answer ? text.lastIndexOf(answer) : -1;
    return at < 0 ? [text] : [text.slice(0, at), element("mark", "", answer), text.slice(at + answer.length)];
  };
  const response = (parts) => {
    const [text, answer, tokens, logprobs, measured] = parts;
    const episode = typeof text === "object" ? text : { segments: [[text || "(empty)", 0]], observed: [] };
    const values = data.colour ? measured : logprobs;
    const full = { gap: 1, entropy: 3 }[data.colour] || 5; // nats of the full shade
    const shown = element("pre");
    shown.dir = "auto";
    if (shade.checked && values) {
      let cut = 0; // borders passed: after an odd number of them the environment wrote
      tokens.forEach((token, place) => {
        while (episode.observed[cut] <= place) cut++;
        if (cut % 2) return shown.append(element("span", "observed", data.pieces[token]));
        const piece = element("span", values[place] > 0 ? "token more" : "token", data.pieces[token]);
        piece.style.setProperty("--surprise", `${Math.min(1, Math.abs(values[place]) / full) * 70}%`);
        const drawn = `log-probability ${logprobs[place]}, probability ${Math.exp(logprobs[place]).toPrecision(2)}`;
        piece.title = data.colour ? `${data.colour} ${values[place]}, drawn with ${drawn}` : drawn;
        shown.append(piece);
      });
      return shown;
    }
    const last = episode.segments.findLastIndex((one) => !one[1]); // the turn that was judged
    episode.segments.forEach(([own, isObserved], place) => {
      const part = isObserved ? element("span", "observed") : shown;
      part.append(...(place === last ? marked(own, answer) : [own]));
      if (isObserved) shown.append(part);
    });
    return shown;
  };
  const card = async (row) => {
    const verdict = data.verdicts[data.verdict[row]];
    const made = element("div", verdict === "correct" ? "answer" : "answer wrong");
    made.append(element("span", "chip", `${verdict}, reward ${data.reward[row]}`));
    const flags = [data.flags[row] & 1 ? "truncated" : "", data.flags[row] & 2 ? "trained on" : "left out"];
    made.append(element("p", "quiet", [`${data.tokens[row]} tokens`, ...flags.filter(Boolean)].join(", ")));
    const parts = await rowOf(row);
    const { ending, reward, fault } = parts[0];
    if (ending !== undefined) {
      const said = [`turns ${data.turns[row]}`, `calls ${data.calls[row]}`, `failed calls ${data.failed[row]}`];
      if (ending) said.push(`ending ${ending.replaceAll("_", " ")}`);
      if (reward !== null) said.push(`environment's reward ${reward}`);
      made.append(element("p", "quiet", said.join(", ")));
      if (fault) made.append(element("p", "fault", `The environment failed: ${fault}`));
    }
    made.append(response(parts));
    return made;
  };
  const article = async (row) => {
    const [name, problem, gold] = data.problems[data.problem[row]];
    const made = element("article", "card");
    const head = element("p", "quiet");
    const group = groups[data.group[row]];
    head.append(element("code", "id", name), ` step ${data.step[row]}, weights of version ${data.version[row]}`);
    made.append(head);
    if (problem) {
      const text = element("pre", "problem", problem);
      text.dir = "auto";
      const answer = element("p", "", "Answer ");
      answer.append(element("code", "", gold));
      made.append(text, answer);
    }
    const answers = element("div", "answers");
    answers.append(await card(row));
    const more = element("button", "", `Show its group: ${group.right} of ${group.rows} right`);
    more.type = "button";
    more.onclick = async () => {
      more.disabled = true;
      const others = Array.from({ length: group.rows }, (_, place) => group.first + place);
      answers.replaceChildren(...(await Promise.all(others.map(card))));
    };
    made.append(answers, more);
    return made;
  };

  let found = [];
  let first = 0;
  let turn = 0; // only the newest call may write, a slow piece may come late
  const show = async () => {
    const mine = ++turn;
    const end = Math.min(first + SHOWN, found.length);
    let made;
    try {
      made = await Promise.all(found.slice(first, end).map(article));
    } catch (error) {
      made = [element("p", "absent", error.message)];
    }
    if (mine !== turn) return;
    list.replaceChildren(...made);
    const range = found.length ? `${(first + 1).toLocaleString("en")} to ${end.toLocaleString("en")} of ` : "";
    document.getElementById("count").textContent =
      `${range}${found.length.toLocaleString("en")} rollouts that match, of ${count.toLocaleString("en")}`;
    document.getElementById("before").disabled = first === 0;
    document.getElementById("after").disabled = end === found.length;
  };
  const fields = () => Object.fromEntries(new FormData(form));
  const remember = () => {
    // The address holds the filter, so that it can be sent to somebody.
    const set = Object.entries(fields()).filter(([, value]) => value !== "");
    history.replaceState(null, "", `#${new URLSearchParams(set)}`);
  };
  const filter = () => {
    found = chosen(fields());
    first = 0;
    remember();
    show();
  };
  const turnPage = (by) => {
    first = Math.max(0, first + by * SHOWN);
    show();
    document.getElementById("rows").scrollIntoView();
  };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1)))
    if (name === "shade") shade.checked = true;
    else if (form.elements[name]) form.elements[name].value = value;
  form.oninput = filter;
  shade.oninput = () => (remember(), show()); // it stands outside of the form
  form.onsubmit = (event) => event.preventDefault();
  form.onreset = () => setTimeout(filter);
  document.getElementById("before").onclick = () => turnPage(-1);
  document.getElementById("after").onclick = () => turnPage(1);
  filter();
})();
