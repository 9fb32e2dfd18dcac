"use strict";
const runs = JSON.parse(document.getElementById("data").textContent);
const make = (name, attributes = {}, ...inside) => {
  const svg = ["svg", "g", "rect", "text", "line", "path", "title"].includes(name);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...inside);
  return node;
};

// -- sorting: a click on a head sorts by what stands below, the largest first; the third restores ------

for (const table of document.querySelectorAll("table.sorted")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  for (const head of table.tHead.rows[0].cells) {
    head.tabIndex = 0;
    const sort = () => {
      const order = { descending: "ascending", ascending: null }[head.getAttribute("aria-sort")];
      const wanted = order === undefined ? "descending" : order;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      const key = (row) => {
        const cell = row.cells[head.cellIndex];
        const number = parseFloat(cell?.dataset.by ?? cell?.textContent);
        return isNaN(number) ? (cell?.textContent ?? "") : number;
      };
      const less = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? 1 : -1);
      const rows = [...original];
      if (wanted) {
        head.setAttribute("aria-sort", wanted);
        rows.sort((a, b) => (wanted === "descending" ? -1 : 1) * less(key(a), key(b)));
      }
      body.append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  }
}

// -- layouts: hovering shows them, a click keeps the card until Escape ------------------------------------

const card = document.getElementById("card");
let pinned = false;
const dismiss = () => { card.hidden = true; pinned = false; };
const place = (near) => {
  card.hidden = false;
  const at = near.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, innerWidth - card.offsetWidth - 24));
  const below = at.bottom + 6 + card.offsetHeight < innerHeight || at.top < card.offsetHeight + 12;
  card.style.left = `${left + scrollX}px`;
  card.style.top = `${(below ? at.bottom + 6 : at.top - card.offsetHeight - 6) + scrollY}px`;
};
const picture = (run, number) => {
  const told = number == null ? null : run.pictures[number];
  const out = make("div");
  if (told) {
    out.innerHTML = told.svg;
    out.append(make("pre", {}, told.text));
  }
  return out;
};
const tell = (element) => {
  const run = runs[element.closest("[data-run]").dataset.run];
  card.replaceChildren();
  if (element.dataset.picture !== undefined) {
    card.append(picture(run, +element.dataset.picture));
    return;
  }
  const kernel = run.kernels[+element.closest(".kernel").id.split("-k")[1]];
  const values = kernel.values[element.closest("[data-at]").dataset.at] ?? [];
  const drawn = make("div");
  const show = (value, button) => {
    for (const other of card.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
    drawn.replaceChildren(make("pre", {}, `${value.type}\n${value.layout}`), picture(run, value.picture));
  };
  for (const value of values) {
    const button = make("button", { type: "button" }, value.name || value.type);
    button.addEventListener("click", () => show(value, button));
    card.append(button);
  }
  card.append(drawn);
  const last = values.length - 1;
  show(values[last], card.querySelectorAll("button")[last]);
};
for (const element of document.querySelectorAll(".held")) {
  const open = () => { if (!pinned) { tell(element); place(element); } };
  element.addEventListener("mouseenter", open);
  element.addEventListener("focus", open);
  element.addEventListener("mouseleave", () => { if (!pinned) setTimeout(() => { if (!pinned && !card.matches(":hover")) dismiss(); }, 120); });
  element.addEventListener("blur", () => { if (!pinned && !card.contains(document.activeElement)) card.hidden = true; });
  element.addEventListener("click", () => { pinned = false; open(); pinned = true; });
}
card.addEventListener("mouseleave", () => { if (!pinned) dismiss(); });
card.addEventListener("click", () => { pinned = true; });
addEventListener("keydown", (event) => { if (event.key === "Escape") dismiss(); });
addEventListener("click", (event) => { if (pinned && !card.contains(event.target) && !event.target.closest(".held")) dismiss(); });

// -- source and emitted code side by side --------------------------------------------------------------------------

for (const select of document.querySelectorAll("select.entry")) {
  const section = select.closest(".kernel");
  const kernel = runs[section.closest("[data-run]").dataset.run].kernels[+section.id.split("-k")[1]];
  const [left, right] = [section.querySelector(".lines"), section.querySelector(".emitted")];
  const row = (text, at, number) => {
    const node = make("div", at ? { "data-at": at } : {});
    if (number !== undefined) node.append(make("span", { class: "n" }, String(number)));
    node.append(text);
    return node;
  };
  for (const source of kernel.source) {
    if (kernel.source.length > 1) left.append(row(source.file, ""));
    left.append(...source.rows.map(([line, text]) => row(text, `${source.number}:${line}`, line)));
  }
  const fill = () => {
    const [form, entry] = select.value.split(":").map(Number);
    right.replaceChildren(...kernel.code[form].entries[entry].lines.map(([text, at]) => row(text, at ?? "")));
    const there = new Set([...right.children].map((node) => node.dataset.at));
    for (const node of left.children) node.style.opacity = there.has(node.dataset.at) || !node.dataset.at ? 1 : 0.55;
  };
  const light = (at, from) => {
    for (const pane of [left, right]) {
      const lit = [...pane.children].filter((node) => {
        node.classList.toggle("lit", !!at && node.dataset.at === at);
        return !!at && node.dataset.at === at;
      });
      if (lit.length && pane !== from) pane.scrollTop = lit[0].offsetTop - pane.offsetTop - pane.clientHeight / 3;
    }
  };
  for (const pane of [left, right]) {
    pane.addEventListener("click", (event) => light(event.target.closest("[data-at]")?.dataset.at, pane));
  }
  select.addEventListener("change", fill);
  fill();
}

// -- timeline --------------------------------------------------------------------------------------------

const TALL = 18, NAMES = 240, LETTERS = 39;
const KINDS = [["op", "ops"], ["wait", "waits"], ["async", "asynchronous work"], ["sync", "barriers and groups"]];
function timeline(section, run, number) {
  const events = run.timeline.traceEvents ?? [];
  const names = new Map(), lanes = new Map(), bars = [], ticks = [], flows = [];
  const lane = (key, text) => {
    if (!lanes.has(key)) lanes.set(key, { order: lanes.size, text });
    return lanes.get(key);
  };
  for (const e of events) if (e.ph === "M") names.set(`${e.name}:${e.pid}:${e.tid}`, e.args.name);
  const task = (e) => `${names.get(`thread_name:${e.pid}:${e.tid}`) ?? e.tid}, ${names.get(`process_name:${e.pid}:0`) ?? e.pid}`;
  const tasks = new Set(events.filter((e) => e.ph !== "M").map((e) => `${e.pid}:${e.tid}`));
  const open = new Map(), until = new Map(), started = new Map();
  for (const e of events) {
    if (e.ph === "M") continue;
    const own = `${e.pid}:${e.tid}`;
    lane(own, task(e));
    if (e.ph === "X") bars.push({ key: own, from: e.ts, to: e.ts + Math.max(e.dur, 0.2), kind: e.cat, name: e.name, args: e.args });
    else if (e.ph === "b") open.set(e.id, e);
    else if (e.ph === "e" && open.has(e.id)) {
      const begun = open.get(e.id);
      open.delete(e.id);
      // What is under way at once stands below each other, in up to eight lanes.
      let deep = 0, key;
      do key = `${own}:${begun.args.queue}:${deep}`; while ((until.get(key) ?? -1) > begun.ts && ++deep < 8);
      until.set(key, e.ts);
      lane(key, deep ? "" : begun.args.queue);
      bars.push({ key, from: begun.ts, to: Math.max(e.ts, begun.ts + 0.5), kind: "async", name: begun.name, args: { ...begun.args, ...e.args } });
    } else if (e.ph === "i") ticks.push({ key: own, from: e.ts, to: e.ts, kind: "sync", name: e.name, args: e.args });
    else if (e.ph === "s") started.set(e.id, { key: own, at: e.ts });
    else if (e.ph === "f" && started.has(e.id)) flows.push([started.get(e.id), { key: own, at: e.ts }]);
  }
  // Copies stand below the task that began them.
  const ordered = [...lanes.keys()].sort((a, b) => {
    const [x, y] = [a.split(":"), b.split(":")];
    return x[0] - y[0] || x[1] - y[1] || x.length - y.length;
  });
  ordered.forEach((key, order) => { lanes.get(key).order = order; });
  const end = Math.max(1, ...[...bars, ...ticks].map((bar) => bar.to).slice(0, 100000));
  const search = make("input", { type: "search", placeholder: "search ops, waits, copies", "aria-label": "search the timeline" });
  const count = make("output");
  const zoomIn = make("button", { type: "button" }, "zoom in"), zoomOut = make("button", { type: "button" }, "zoom out"), all = make("button", { type: "button" }, "all");
  const scroll = make("input", { type: "range", min: 0, max: 1000, value: 0, "aria-label": "scroll the timeline" });
  const view = make("div", { class: "view" });
  const dropped = run.timeline.otherData?.dropped_events;
  const keys = KINDS.map(([kind, text]) => make("span", { class: "key" }, make("svg", { width: 12, height: 12 }, make("rect", { class: kind, width: 12, height: 12 })), text));
  section.append(make("div", { class: "bar" }, search, count, zoomIn, zoomOut, all, ...keys), view, scroll);
  if (!bars.length) { view.append(make("p", {}, "Nothing happened.")); return; }
  if (dropped) section.append(make("p", {}, `${dropped} later events are left out; gluon run --trace keeps more.`));
  let from = 0, span = end, found = [];
  section.state = () => ({ from, span, end, found: found.length });
  const draw = () => {
    span = Math.min(end, Math.max(4, span));
    from = Math.max(0, Math.min(end - span, from));
    scroll.value = end > span ? (1000 * from) / (end - span) : 0;
    const wide = Math.max(320, view.clientWidth), unit = (wide - NAMES) / span;
    const x = (at) => NAMES + (at - from) * unit;
    const svg = make("svg", { width: wide, height: ordered.length * TALL + 20 });
    ordered.forEach((key, order) => {
      if (order % 2) svg.append(make("rect", { class: "row", x: 0, y: order * TALL, width: wide, height: TALL }));
    });
    const seen = (bar) => bar.to >= from && bar.from <= from + span;
    const wanted = new Set(found);
    let last = new Map();
    for (const bar of bars) {
      if (!seen(bar)) continue;
      const left = Math.max(NAMES, x(bar.from)), right = Math.min(wide, x(bar.to));
      // Bars of less than a pixel that would stand on each other are one.
      if (right - left < 1 && last.get(bar.key) === Math.round(left) && !wanted.has(bar)) continue;
      last.set(bar.key, Math.round(left));
      const y = lanes.get(bar.key).order * TALL + 2;
      const node = make("rect", { class: bar.kind + (wanted.has(bar) ? " found" : ""), x: left, y, width: Math.max(1, right - left - 0.5), height: TALL - 4 });
      node.append(make("title", {}, say(bar)));
      node.addEventListener("click", () => go(bar));
      svg.append(node);
      if (right - left > 60) {
        const text = make("text", { x: left + 4, y: y + 11, "pointer-events": "none" });
        text.textContent = bar.name.slice(0, Math.floor((right - left - 8) / 6));
        svg.append(text);
      }
    }
    for (const tick of ticks) {
      if (!seen(tick)) continue;
      const node = make("rect", { class: "sync" + (wanted.has(tick) ? " found" : ""), x: x(tick.from) - 1, y: lanes.get(tick.key).order * TALL, width: 3, height: TALL });
      node.append(make("title", {}, say(tick)));
      node.addEventListener("click", () => go(tick));
      svg.append(node);
    }
    for (const [a, b] of flows) {
      if (b.at < from || a.at > from + span) continue;
      const [y1, y2] = [a, b].map((one) => lanes.get(one.key).order * TALL + TALL / 2);
      svg.append(make("path", { class: "flow", d: `M${Math.max(NAMES, x(a.at))} ${y1}L${x(b.at)} ${y2}` }));
    }
    svg.append(make("rect", { x: 0, y: 0, width: NAMES - 4, height: ordered.length * TALL, fill: "#fff", opacity: 0.92 }));
    ordered.forEach((key, order) => {
      const text = make("text", { x: key.split(":").length > 2 ? 18 : 4, y: order * TALL + 13 }), full = lanes.get(key).text;
      text.textContent = full.length > LETTERS ? full.slice(0, LETTERS - 1) + "…" : full;
      text.append(make("title", {}, full));
      svg.append(text);
    });
    const axis = make("text", { x: NAMES, y: ordered.length * TALL + 14 });
    axis.textContent = `steps ${Math.round(from)} to ${Math.round(from + span)} of ${Math.round(end)}`;
    svg.append(axis);
    view.replaceChildren(svg);
  };
  const say = (bar) => [bar.name, `steps ${bar.from} to ${Math.round(bar.to)}`, ...Object.entries(bar.args ?? {}).map(([k, v]) => `${k}: ${Array.isArray(v) ? v.slice(0, 12).join(", ") : v}`)].join("\n");
  const go = (bar) => {
    const line = bar.args?.line;
    const row = [...section.closest(".run").querySelectorAll(".profile tr[data-at]")].find((one) => one.dataset.at.split(":")[1] === String(line));
    if (row && !moved) { location.hash = row.id; row.scrollIntoView({ block: "center" }); }
  };
  const zoom = (factor, about = from + span / 2) => {
    const part = (about - from) / span;
    span = Math.min(end, Math.max(4, span * factor));
    from = about - part * span;
    draw();
  };
  zoomIn.addEventListener("click", () => zoom(0.5));
  zoomOut.addEventListener("click", () => zoom(2));
  all.addEventListener("click", () => { from = 0; span = end; draw(); });
  scroll.addEventListener("input", () => { from = (scroll.value / 1000) * (end - span); draw(); });
  view.addEventListener("wheel", (event) => {
    const unit = span / (view.clientWidth - NAMES);
    if (event.ctrlKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, from + (event.offsetX - NAMES) * unit);
    else if (span < end && (event.deltaX || event.shiftKey || view.scrollHeight <= view.clientHeight)) { from += (event.deltaX || event.deltaY) * unit; draw(); }
    else return;
    event.preventDefault();
  }, { passive: false });
  let grip = null, moved = false;
  view.addEventListener("pointerdown", (event) => { grip = [event.clientX, from]; moved = false; });
  addEventListener("pointermove", (event) => {
    if (!grip || Math.abs(event.clientX - grip[0]) < 4) return;
    moved = true;
    from = grip[1] - ((event.clientX - grip[0]) * span) / (view.clientWidth - NAMES);
    draw();
  });
  addEventListener("pointerup", () => { grip = null; });
  let next = 0;
  search.addEventListener("input", () => {
    const wanted = search.value.trim().toLowerCase();
    found = wanted ? [...bars, ...ticks].filter((bar) => say(bar).toLowerCase().includes(wanted)).sort((a, b) => a.from - b.from) : [];
    next = 0;
    count.textContent = wanted ? `${found.length} found` : "";
    draw();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !found.length) return;
    const bar = found[next++ % found.length];
    span = Math.min(end, Math.max(40, (bar.to - bar.from) * 4));
    from = (bar.from + bar.to) / 2 - span / 2;
    draw();
  });
  addEventListener("resize", draw);
  draw();
}
document.querySelectorAll("section.timeline").forEach((section, number) => timeline(section, runs[number], number));
document.documentElement.dataset.ready = "1";
