"use strict";
const { launches, below } = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const SVG = new Set(["svg", "rect", "text", "title", "path", "g"]);
const make = (tag, attributes = {}, ...children) => {
  const node = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};
const TONES = ["#8ab4f8", "#f5b7a0", "#a8dab5", "#d7aefb", "#fdd663", "#78d9ec", "#fcaf9c", "#c5cae9", "#b7e1c4", "#ffcc80"];
const tone = (number) => TONES[number % TONES.length];
const time = (ns) => (ns >= 1e6 ? `${(ns / 1e6).toFixed(2)} ms` : ns >= 1e3 ? `${(ns / 1e3).toFixed(2)} us` : `${ns.toFixed(0)} ns`);
const percent = (share) => `${(100 * share).toFixed(1)}%`;
const ROW = 22, NAMES = () => (innerWidth < 600 ? 70 : 150);

function table(head, rows) {
  const body = rows.map((cells) => make("tr", {}, ...cells));
  return make("div", { class: "wide" }, make("table", {}, make("thead", {}, make("tr", {}, ...head.map((text, i) => make("th", rows[0]?.[i]?.classList.contains("name") ? { class: "name" } : {}, text)))), make("tbody", {}, ...body)));
}
const cell = (text, attributes = {}) => make("td", attributes, text);
const share = (part) => cell(percent(part), { class: "share", style: `--part: ${Math.min(100, 100 * part)}%` });

function show(launch, order) {
  const section = make("section", { class: "launch" });
  page.append(section);
  section.append(make("h2", {}, launch.kernel));
  const model = launch.predicted;
  const facts = launch.blocks.length ? [time(launch.nanoseconds), `${launch.warps} warps recorded`] : [];
  if (model) facts.push(`${time(model.nanoseconds)} predicted for ${model.device}`);
  if (model && launch.blocks.length) facts.push(`predicted / measured ${(model.nanoseconds / Math.max(launch.nanoseconds, 1e-9)).toFixed(2)}`);
  if (model?.note) facts.push(model.note);
  if (launch.dropped) facts.push(`${launch.dropped} oldest spans dropped`);
  if (launch.unpaired) facts.push(`${launch.unpaired} spans of warps that did not end`);
  if (launch.left_out) facts.push(`lanes of ${launch.left_out} more blocks left out; shares count them`);
  section.append(make("p", {}, facts.join(" · ")));
  const pick = make("select", { "aria-label": "block" }, ...launch.blocks.map((block, i) => make("option", { value: i }, `block ${block.block}, SM ${block.sm}`)));
  const under = make("select", { "aria-label": "trace below" }, ...below.map((one, i) => make("option", { value: i }, one.name)));
  const closer = make("button", { type: "button" }, "zoom in"), farther = make("button", { type: "button" }, "zoom out"), all = make("button", { type: "button" }, "all");
  const lanes = make("div", { class: "lanes" });
  const chosen = make("div", { id: order ? `chosen${order}` : "chosen", class: "chosen" }, "Click a span to see its line.");
  section.append(make("div", { class: "tools" }, ...(launch.blocks.length ? [pick] : []), ...(below.length ? [under] : []), closer, farther, all), lanes, chosen);
  let from = 0, span = 1, begin = 0, whole = 1;
  const choose = (node, lines) => {
    section.querySelectorAll(".chosen-span").forEach((one) => one.classList.remove("chosen", "chosen-span"));
    node.classList.add("chosen", "chosen-span");
    chosen.replaceChildren(...lines.map((line, i) => make(i ? "div" : "b", {}, i === lines.length - 1 && i ? make("code", {}, line) : line)));
  };
  const draw = () => {
    const block = launch.blocks[pick.value] ?? { lanes: {} }, wide = Math.max(280, lanes.clientWidth || 280), names = NAMES();
    const entries = Object.entries(block.lanes).sort((a, b) => parseInt(a[0].slice(5)) - parseInt(b[0].slice(5)));
    const others = [];
    if (model) others.push({ ...model, title: `predicted, block ${model.block}`, ns: true });
    if (below.length) others.push({ ...below[under.value], title: "below: " + below[under.value].name });
    const rows = entries.length + others.reduce((sum, other) => sum + other.lanes.length + 1, 0);
    span = Math.min(whole, Math.max(whole / 1e5, span));
    from = Math.max(begin, Math.min(begin + whole - span, from));
    const unit = (wide - names) / span, x = (at) => names + (at - from) * unit;
    const svg = make("svg", { width: wide, height: rows * ROW + 22 });
    const bar = (y, left, right, deep, attributes, lines) => {
      const a = Math.max(names, x(left)), b = Math.min(wide, x(right));
      if (b < names || a > wide) return;
      const node = make("rect", { x: a, y: y + 2 + 4 * deep, width: Math.max(1, b - a), height: Math.max(4, ROW - 4 - 4 * deep), ...attributes }, make("title", {}, lines.join("\n")));
      node.addEventListener("click", () => choose(node, lines));
      svg.append(node);
      if (b - a > 70) { const text = make("text", { x: a + 4, y: y + 15 }); text.textContent = lines[0].slice(0, (b - a - 8) / 6.5); svg.append(text); }
    };
    const label = (row, text) => { const node = make("text", { x: 2, y: row * ROW + 15 }); node.textContent = text.length * 6.5 > names ? text.slice(0, names / 6.5 - 1) + "…" : text; node.append(make("title", {}, text)); svg.append(node); };
    entries.forEach(([name, spans], row) => {
      label(row, name);
      for (const [scope, left, right, deep] of spans) {
        const [called, line, file, source] = launch.scopes[scope];
        bar(row * ROW, left, right, Math.min(deep, 3), { fill: tone(scope), "data-scope": scope },
          [called, `${time(right - left)}, from ${time(left)} to ${time(right)}; ${name}`, `${file || "file unknown"}:${line}`, source || "no source at hand"]);
      }
    });
    let head = entries.length;
    for (const other of others) {
      const base = head;
      label(base, other.title);
      const every = other.lanes.flatMap(([, spans]) => spans), low = every.reduce((least, one) => Math.min(least, one[1]), Infinity), high = every.reduce((most, one) => Math.max(most, one[2]), -Infinity);
      // Predicted nanoseconds are drawn as they are; another tool's units are scaled to the block above.
      const scale = other.ns ? 1 : whole / Math.max(high - low, 1e-9), at = (t) => begin + (t - (other.ns ? 0 : low)) * scale;
      other.lanes.forEach(([name, spans], i) => {
        label(base + 1 + i, name);
        const outer = (one) => (one[3] === "scope" ? 0 : 1);  // scopes first: what happens in them is drawn on top
        for (const [called, left, right, kind, line, waited, file, source, depth] of [...spans].sort((one, two) => outer(one) - outer(two)))
          bar((base + 1 + i) * ROW, at(left), at(right), kind === "scope" ? Math.min(depth ?? 0, 3) : 1 + Math.min(depth ?? 0, 3), { class: ["wait", "op", "scope", "compute", "issue", "work"].includes(kind) ? kind : "other", "data-scope": other.ns ? "predicted" : "below" },
            [called, ...(waited ? [`${kind === "work" ? "issued by" : "waited for"} ${waited}`] : []), other.ns ? `${kind}, ${time(right - left)}, from ${time(left)} to ${time(right)}` : `${(right - left).toFixed(1)} of its own units; scaled to the block above`, file ? `${file}:${line}` : `line ${line ?? "unknown"}`, ...(source ? [source] : [])]);
      });
      const clip = (t) => Math.min(wide, Math.max(names, x(at(t))));
      for (const [a, start, b, end] of other.flows)
        if (x(at(end)) >= names && x(at(start)) <= wide)
          svg.append(make("path", { class: "flow", d: `M${clip(start)} ${(base + 1.5 + a) * ROW}L${clip(end)} ${(base + 1.5 + b) * ROW}` }));
      for (const [row, start, end] of other.critical ?? [])
        if (x(at(end)) >= names && x(at(start)) <= wide)
          svg.append(make("path", { class: "critical", d: `M${clip(start)} ${(base + 2 + row) * ROW - 2}H${clip(end)}` }));
      head += other.lanes.length + 1;
    }
    const axis = make("text", { x: names, y: rows * ROW + 15 });
    axis.textContent = `${time(from)} to ${time(from + span)}`;
    svg.append(axis);
    lanes.replaceChildren(svg);
  };
  const reset = () => {
    const spans = Object.values(launch.blocks[pick.value]?.lanes ?? {}).flat();
    begin = spans.length ? spans.reduce((low, one) => Math.min(low, one[1]), Infinity) : 0;
    whole = Math.max(1, model?.length ?? 0, spans.reduce((high, one) => Math.max(high, one[2]), begin) - begin);
    from = begin; span = whole;
    draw();
  };
  const zoom = (factor, about = from + span / 2) => { const part = (about - from) / span; span = Math.min(whole, Math.max(whole / 1e5, span * factor)); from = about - part * span; draw(); };
  closer.addEventListener("click", () => zoom(0.5));
  farther.addEventListener("click", () => zoom(2));
  all.addEventListener("click", reset);
  pick.addEventListener("change", reset);
  under.addEventListener("change", draw);
  let held = null;
  lanes.addEventListener("pointerdown", (event) => { held = { at: event.clientX, from }; });
  addEventListener("pointerup", () => { held = null; });
  lanes.addEventListener("pointermove", (event) => {
    if (!held || Math.abs(event.clientX - held.at) < 4) return;
    from = held.from - ((event.clientX - held.at) * span) / (lanes.clientWidth - NAMES());
    draw();
  });
  addEventListener("resize", draw);
  if (launch.blocks.length || model) reset();
  if (model) {
    section.append(make("h3", {}, "What limits it, predicted"));
    section.append(table(["share of the time", "part of the machine"], model.limits.map(([cause, part]) => [share(part), cell(cause, { class: "name" })])));
    section.append(make("h3", {}, "Critical path, predicted"));
    section.append(make("p", {}, "The red line marks the spans that the block's time consists of."));
    section.append(table(["share", "time", "lane", "kind"], model.path.map(([lane, kind, ns, part]) => [share(part), cell(time(ns)), cell(lane, { class: "name" }), cell(kind, { class: "name" })])));
    section.append(make("p", {}, `Model: ${model.device}; ${model.source}`));
  }
  if (!launch.blocks.length) return;
  section.append(make("h3", {}, "What limits it, measured"));
  if (launch.limits_of) section.append(make("p", {}, launch.limits_of));
  if (launch.limits.length) section.append(table(["share of the warps' time", "waiting for"], launch.limits.map(([cause, part]) => [share(part), cell(cause, { class: "name" })])));
  else section.append(make("p", {}, "Unknown: record automatic scopes (auto=True, --timeline-auto), which name waits."));
  section.append(make("h3", {}, "Time per scope"));
  section.append(table(["share", "mean", "passages", "scope", "line"], launch.shares.map(([name, line, count, mean, part]) => {
    const number = launch.scopes.findIndex((one) => one[0] === name && one[1] === line);
    return [share(part), cell(time(mean)), cell(String(count)), cell(name, { class: "name swatch", style: `--tone: ${tone(number)}` }), cell(String(line))];
  })));
  section.append(make("h3", {}, "Time per role"));
  section.append(make("p", {}, "Warps that passed the same scopes share a role."));
  section.append(table(["role", "share of its time", "scope"], launch.roles.flatMap(([role, parts]) => parts.map(([name, part], i) => [cell(i ? "" : role, { class: "name" }), share(part), cell(name, { class: "name" })]))));
}
launches.forEach(show);
if (!launches.length) page.append(make("p", {}, "No launch was recorded."));
