"use strict";
// The page: reads /api/cluster after each event of /api/events, and asks /api/questions.

const byId = (id) => document.getElementById(id);
const PAGE = 100;
let content = null, token = "", sorting = { key: "price", down: true }, first = 0, opened = "";

/** Return an element; text is never read as markup. */
function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child != null && child !== ""));
  return made;
}

function svg(tag, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

const dollars = (amount, digits = 2) => `$${Number(amount).toFixed(digits)}`;
const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
const clock = (time) => (time ? new Date(time).toLocaleString("en-GB", { dateStyle: "short", timeStyle: "short" }) : "");

function age(created, now) {
  if (!created) return "";
  const minutes = Math.max(0, Math.floor((Date.parse(now) - Date.parse(created)) / 60000));
  if (minutes < 2) return `${Math.max(0, Math.floor((Date.parse(now) - Date.parse(created)) / 1000))}s`;
  if (minutes < 120) return `${minutes}m`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)}h` : `${Math.floor(minutes / 1440)}d`;
}

// ---- the connection

function headers() { return token ? { Authorization: `Bearer ${token}` } : {}; }

async function refresh() {
  const answer = await fetch("api/cluster", { headers: headers() });
  if (answer.status === 401) throw new Error("token");
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  content = await answer.json();
  show();
}

/** Follow the server's events until the connection ends. EventSource cannot send a token. */
async function follow() {
  const answer = await fetch("api/events", { headers: headers() });
  if (answer.status === 401) throw new Error("token");
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("connection closed");
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    if (blocks.some((block) => block.startsWith("data:"))) await refresh();
  }
}

async function connect() {
  for (;;) {
    try {
      await follow();
    } catch (error) {
      if (error.message === "token") return login();
      byId("status").dataset.live = "false";
      byId("status").textContent = "Connection lost; trying again";
    }
    await new Promise((resolve) => { setTimeout(resolve, 2000); });
  }
}

function login() {
  byId("login-error").textContent = token ? "The token is wrong." : "";
  byId("main").hidden = true;
  byId("login").hidden = false;
  byId("token").focus();
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value;
  byId("login").hidden = true;
  connect();
});

// ---- drawing

const map = new PackingMap(byId("map"), {
  tip: byId("tip"),
  say: (text) => { byId("said").textContent = text; },
  chosen: (node) => { open(node.name); byId("detail").focus(); },
});

/** Draw a part again if its content has changed; keep unfolded and focused elements. */
function part(id, madeOf, draw) {
  const key = JSON.stringify(madeOf), target = byId(id);
  if (target.madeOf === key) return;
  target.madeOf = key;
  const unfolded = new Set([...target.querySelectorAll("details[open]")].map(titleOf));
  const focused = target.contains(document.activeElement) ? document.activeElement : null;
  draw();
  for (const one of target.querySelectorAll("details")) one.open = unfolded.has(titleOf(one));
  if (focused && !focused.isConnected) {
    const same = [...target.querySelectorAll("button, summary")].find((one) => one.textContent === focused.textContent);
    if (same) same.focus();
  }
}

const titleOf = (details) => details.dataset.title || details.firstChild.textContent;

function show() {
  const { page, plan, history, source, progress, error } = content;
  byId("source").textContent = source;
  document.title = source ? `${source} · Joiner` : "Joiner";
  byId("error").hidden = !error;
  byId("error").textContent = error ? `The cluster cannot be read: ${error}` : "";
  byId("main").hidden = false;
  byId("status").dataset.live = String(!error);
  byId("status").textContent = page ? `As of ${clock(page.time)}` : `Reading the cluster … ${progress}`;
  if (!page) return;
  const minute = page.time.slice(0, 16), commands = plan && plan.commands, blocked = plan && plan.blocked;
  totals(page, plan);
  part("nodes", [page.nodes, minute, commands, blocked, opened], () => { nodes(); if (opened) open(opened); });
  part("money", [history, byId("money").clientWidth], money);
  part("pools", page.pools, () => pools(page.pools));
  part("decisions", [page.decisions, commands], () => decisions(page, plan));
  part("pending", page.pending, () => pendingPods(page.pending));
  subjects();
  document.body.dataset.version = content.version;
}

function totals(page, plan) {
  // A bound above the cost belongs to the cluster before its last changes.
  const bound = plan && plan.lowerBound <= page.cost ? plan.lowerBound : null;
  const { nodes: outside } = page.fixed, isOutside = outside === page.nodes.length;
  const isPriced = !page.nodes.length || page.unpriced < page.nodes.length;
  const facts = [
    ["Cost", isPriced ? dollars(page.cost) : "…", isPriced ? "/h" : "prices are not read yet"],
    ["Lower bound", bound == null ? "…" : dollars(bound), bound == null ? "" : outside ? `/h, ${counted(outside, "node")} outside NodePools fixed` : "/h"],
    ["Gap", outside && isOutside ? "–" : bound ? `${Math.round(100 * (page.cost / bound - 1))} %` : bound === 0 ? "none" : "…", outside && isOutside ? "joiner advise shows what Joiner would save" : bound ? `$${Math.round((page.cost - bound) * 730).toLocaleString("en")}/mo at most` : ""],
    ["Nodes", page.nodes.length.toLocaleString("en"), unready(page.nodes)],
    ["Pods", page.pods.toLocaleString("en"), ""],
    ["Pending", page.pendingPods.length.toLocaleString("en"), ""],
    ...(page.unpriced ? [["Without price", page.unpriced.toLocaleString("en"), page.unpriced === 1 ? "node" : "nodes"]] : []),
  ].map(([name, value, unit]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("span", {}, value), " ", el("small", {}, unit))));
  const meters = [["CPU requested", page.cpu], ["Memory requested", page.memory]].map(([name, pair]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, `${percent(pair)} %`,
      el("meter", { min: 0, max: pair[1] || 1, value: pair[0], "aria-hidden": "true" }))));
  byId("totals").replaceChildren(...facts, ...meters);
}

const STATES = ["launching", "registered", "terminating"];

/** Return how many nodes are in each state but ready; empty if all are ready. */
function unready(nodes) {
  return STATES.map((state) => [nodes.filter((node) => node.state === state).length, state])
    .filter(([count]) => count).map(([count, state]) => `${count.toLocaleString("en")} ${state}`).join(", ");
}

function going() {
  return new Set((content.plan ? content.plan.commands : []).flatMap((command) => command.nodes));
}

function filtered() {
  const wanted = byId("filter").value.trim().toLowerCase();
  if (!wanted) return content.page.nodes;
  return content.page.nodes.filter((node) =>
    [node.name, node.type, node.zone, node.capacityType, node.pool].some((text) => text.toLowerCase().includes(wanted)) ||
    node.pods.some((pod) => pod[0].toLowerCase().includes(wanted)));
}

function nodes() {
  if (!content || !content.page) return;
  const shown = filtered(), key = byId("group").value, groups = new Map();
  for (const node of shown) {
    const name = node[key] || "not managed";
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(node);
  }
  const sorted = [...groups].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, members]) => ({
    title: `${name} — ${counted(members.length, "node")}, ${dollars(members.reduce((sum, node) => sum + node.price, 0))}/h`,
    nodes: [...members].sort((a, b) => b.cpu[1] - a.cpu[1] || (a.capacityType < b.capacityType ? -1 : 1)),
  }));
  byId("map").setAttribute("aria-label", `${counted(shown.length, "node")} in ${counted(sorted.length, "group")}`);
  map.show(sorted, going());
  table(shown);
}

const COLUMNS = [
  ["name", "Node"], ["pool", "NodePool"], ["type", "Instance type"], ["zone", "Zone"],
  ["capacityType", "Capacity type"], ["age", "Age"], ["price", "$/h", true], ["cpu", "CPU", true],
  ["memory", "Memory", true], ["pods", "Pods", true], ["next", "What happens next"],
];

function columnOf(node, key) {
  const leaving = going();
  switch (key) {
    case "cpu": case "memory": return node[key][1] ? node[key][0] / node[key][1] : 0;
    case "pods": return node.pods.length;
    case "age": return Date.parse(content.page.time) - Date.parse(node.created);
    case "next": return leaving.has(node.name) ? "" : nextOf(node);
    default: return node[key];
  }
}

/** Return the next state of a node, or why it stays. */
function nextOf(node) {
  const { plan } = content;
  if (node.state !== "ready") return node.deletion ? `${node.state}: ${node.deletion}` : node.state;
  if (!node.managed) return "stays: not managed, it has no NodePool";
  if (!plan) return "…";
  const command = plan.commands.find((one) => one.nodes.includes(node.name));
  if (command) return `disrupted now (${command.reason}), saves ${command.saving.toFixed(4)} $/h${command.nodes.length > 1 ? ` with ${counted(command.nodes.length - 1, "other node")}` : ""}`;
  return plan.blocked[node.name] || "stays";
}

function table(shown) {
  const { key, down } = sorting;
  byId("table").tHead.replaceChildren(el("tr", {}, COLUMNS.map(([name, title, number]) =>
    el("th", { scope: "col", class: number ? "number" : null, "aria-sort": key === name ? (down ? "descending" : "ascending") : "none" },
      el("button", { type: "button", onclick: () => { sorting = { key: name, down: key === name ? !down : Boolean(number) }; first = 0; nodes(); } }, title)))));
  const values = new Map(shown.map((node) => [node, columnOf(node, key)]));
  const rows = [...shown].sort((a, b) => {
    const x = values.get(a), y = values.get(b);
    return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
  });
  first = Math.min(first, Math.max(0, rows.length - 1));
  byId("table").tBodies[0].replaceChildren(...rows.slice(first, first + PAGE).map((node) => el("tr", {},
    el("th", { scope: "row" }, el("button", { class: "name", type: "button", onclick: () => { open(node.name); byId("detail").focus(); } }, node.name)),
    el("td", {}, node.pool), el("td", {}, node.type), el("td", {}, node.zone), el("td", {}, node.capacityType),
    el("td", {}, age(node.created, content.page.time)), el("td", { class: "number" }, node.price.toFixed(4)),
    el("td", { class: "number" }, `${percent(node.cpu)} %`), el("td", { class: "number" }, `${percent(node.memory)} %`),
    el("td", { class: "number" }, String(node.pods.length)), el("td", {}, nextOf(node)))));
  byId("range").textContent = rows.length ? `${first + 1} to ${Math.min(first + PAGE, rows.length)} of ${rows.length}` : byId("filter").value ? "No node matches the filter" : "There are no nodes";
  byId("previous").disabled = first === 0;
  byId("next").disabled = first + PAGE >= rows.length;
}

function close() {
  opened = "";
  byId("detail").hidden = true;
  byId("map").focus();
}

function open(name) {
  const node = content.page.nodes.find((each) => each.name === name), panel = byId("detail");
  opened = node ? name : "";
  panel.hidden = !node;
  if (!node) return;
  const facts = [
    ["NodePool", node.pool || "not managed"], ["type", node.type], ["zone", node.zone], ["capacity", node.capacityType],
    ["age", age(node.created, content.page.time)], ["expires", clock(node.expires)], ["cost", `${node.price.toFixed(4)} $/h`],
    ["CPU", `${node.cpu[0].toFixed(1)} of ${node.cpu[1].toFixed(1)} cores`], ["memory", `${node.memory[0].toFixed(1)} of ${node.memory[1].toFixed(1)} GiB`],
  ];
  panel.replaceChildren(
    el("h3", { id: "detail-title" }, node.name),
    el("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, value)))),
    el("p", { class: "next" }, `Next: ${nextOf(node)}`),
    el("details", {}, el("summary", {}, counted(node.pods.length, "pod")), el("ul", { class: "columns" },
      node.pods.map((pod) => el("li", {}, `${pod[0]} (${pod[1]} CPU, ${pod[2]} GiB${pod[3] ? ", DaemonSet" : ""})`)))),
    el("div", { class: "row" },
      el("button", { type: "button", class: "main", onclick: () => { choose("drainNode", node.name); ask(); } }, "What if it is drained?"),
      el("button", { type: "button", onclick: close }, "Close")));
}

function money() {
  // As wide as it is shown, so that the texts keep their size.
  const points = content.history, W = Math.max(280, byId("money").clientWidth), H = 190, left = 46, bottom = 24, top = 10;
  const bounds = points.filter((point) => point[2] != null);
  if (!points.length) return;
  const times = points.map((point) => Date.parse(point[0]));
  const start = times[0], end = Math.max(times[times.length - 1], start + 1);
  const highest = Math.max(...points.map((point) => point[1]), ...bounds.map((point) => point[2]), 0.01) * 1.05;
  const power = 10 ** Math.floor(Math.log10(highest / 4));
  const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((part) => part * 4 >= highest), most = step * 4;
  const digits = step % 1 ? Math.max(2, 1 - Math.floor(Math.log10(step))) : 0;
  const x = (time) => left + ((Date.parse(time) - start) / (end - start)) * (W - left - 10);
  const y = (amount) => top + (1 - amount / most) * (H - top - bottom);
  const drawn = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
  const last = points[points.length - 1], lastBound = bounds.length ? bounds[bounds.length - 1][2] : null;
  drawn.setAttribute("aria-label", `Cost from ${clock(points[0][0])} to ${clock(last[0])}: from ${dollars(points[0][1])} to ${dollars(last[1])} per hour${lastBound == null ? "" : `; lower bound now ${dollars(lastBound)}`}`);
  for (let line = 0; line <= 4; line += 1) {
    const amount = line * step;
    drawn.append(svg("line", { class: "grid", x1: left, x2: W - 10, y1: y(amount), y2: y(amount) }),
      svg("text", { x: left - 7, y: y(amount) + 4, "text-anchor": "end" }, dollars(amount, digits)));
  }
  const stepped = (list, column) => list.map((point, index) =>
    `${index ? `H${x(point[0]).toFixed(1)}V` : `M${x(point[0]).toFixed(1)},`}${y(point[column]).toFixed(1)}`).join("") + (list.length === 1 || points.length === 1 ? `H${W - 10}` : "");
  if (bounds.length > 1) {
    const upper = stepped(bounds, 1), lower = [...bounds].reverse();
    const under = lower.map((point, index) => `${index ? `V${y(point[2]).toFixed(1)}` : ""}${index ? "" : `L${x(point[0]).toFixed(1)},${y(point[2]).toFixed(1)}`}${lower[index + 1] ? `H${x(point[0]).toFixed(1)}V${y(lower[index + 1][2]).toFixed(1)}H${x(lower[index + 1][0]).toFixed(1)}` : ""}`).join("");
    drawn.append(svg("path", { class: "gap", d: `${upper}${under}Z` }));
  }
  drawn.append(svg("path", { class: "cost", d: stepped(points, 1) }));
  if (bounds.length) drawn.append(svg("path", { class: "bound", d: stepped(bounds, 2) }));
  if (points.length > 1) {
    drawn.append(svg("text", { x: left, y: H - 6 }, clock(points[0][0])), svg("text", { x: W - 10, y: H - 6, "text-anchor": "end" }, clock(last[0])));
    drawn.append(svg("circle", { class: "dot", cx: x(last[0]), cy: y(last[1]), r: 4 }));
  }
  byId("money").replaceChildren(drawn, el("details", {}, el("summary", { class: "hint" }, "As a table"), el("div", { class: "scroll" },
    el("table", {}, el("thead", {}, el("tr", {}, ["Time", "Cost, $/h", "Lower bound, $/h"].map((head) => el("th", { scope: "col" }, head)))),
      el("tbody", {}, points.slice(-50).reverse().map((point) => el("tr", {}, el("td", {}, clock(point[0])),
        el("td", {}, point[1].toFixed(4)), el("td", {}, point[2] == null ? "…" : point[2].toFixed(4)))))))));
}

function pools(list) {
  const heads = [["NodePool"], ["Ready"], ["Nodes", true], ["$/h", true], ["CPU", true], ["Memory", true], ["Limits"], ["Disruption budgets"]];
  byId("pools").tHead.replaceChildren(el("tr", {}, heads.map(([head, number]) => el("th", { scope: "col", class: number ? "number" : null }, head))));
  byId("pools").tBodies[0].replaceChildren(...list.map((pool) => el("tr", {},
    el("th", { scope: "row" }, pool.name), el("td", {}, pool.notReady ? `No: ${pool.notReady}` : "Yes"), el("td", { class: "number" }, String(pool.nodes)), el("td", { class: "number" }, pool.cost.toFixed(2)),
    el("td", { class: "number" }, `${percent(pool.cpu)} %`), el("td", { class: "number" }, `${percent(pool.memory)} %`),
    el("td", {}, Object.entries(pool.limits).map(([name, value]) => `${name} ${value}`).join(", ") || "none"), el("td", {}, pool.budgets.join("; ")))));
}

const some = (names) => (names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", "));

function entry(one, when, state) {
  const made = one.newNodes.map((node) => (typeof node === "string" ? node : node.instanceType));
  return el("li", { class: when ? null : "next" },
    when ? el("time", { datetime: when }, clock(when)) : el("time", {}, "now"), el("span", { class: "badge" }, one.reason), state ? el("span", { class: "badge" }, state) : null,
    el("p", { class: "what" }, `${some(one.nodes)}${made.length ? ` → ${some(made)}` : ""}`),
    el("p", {}, el("span", { class: one.saving >= 0 ? "less" : "more" }, `${one.saving >= 0 ? "saves" : "adds"} ${dollars(Math.abs(one.saving), 4)}/h`),
      ` · ${counted(one.evictions, "eviction")}`),
    one.why ? el("p", { class: "hint" }, one.why) : null);
}

function decisions(page, plan) {
  const entries = [
    ...(plan ? plan.commands.map((command) => entry(command, "", "proposed")) : []),
    ...page.decisions.map((one) => entry(one, one.time, one.state)),
  ];
  byId("decisions").replaceChildren(...(entries.length ? entries : [el("li", {}, plan ? "Nothing to disrupt now, and no decision is recorded." : "Deciding …")]));
}

function fateOf(group) {
  if (group.causes.length) return group.place ? `: the last attempt failed; unless that lasts, will run ${group.place}` : " cannot be scheduled";
  return group.place ? ` will run ${group.place}` : ": not evaluated yet";
}

function pendingGroups(groups) {
  return groups.map((group) => el("div", {},
    el("strong", {}, counted(group.count, "pod"), fateOf(group)),
    group.causes.length ? el("ul", {}, group.causes.map((cause) => el("li", {}, cause))) : null,
    el("details", { "data-title": `Names ${group.place} ${group.causes}` }, el("summary", { class: "hint" }, "Names"), el("ul", { class: "columns" }, group.pods.map((pod) => el("li", {}, pod)),
      group.count > group.pods.length ? el("li", {}, `and ${group.count - group.pods.length} more`) : null))));
}

function pendingPods(groups) {
  byId("pending").replaceChildren(...(groups.length ? pendingGroups(groups) : [el("p", {}, "No pod is pending.")]));
}

// ---- questions

function subjects() {
  const kind = byId("kind").value, { page } = content;
  const names = { drainNode: page.nodes.map((node) => node.name), deleteNodePool: page.pools.map((pool) => pool.name), evictionPrice: ["0", "0.01", "0.05", "0.1"] }[kind];
  byId("subjects").replaceChildren(...names.slice(0, 500).map((name) => el("option", { value: name })));
  byId("subject").placeholder = { drainNode: "name of a node", deleteNodePool: "name of a NodePool", evictionPrice: `$ per pod, now ${page.evictionPrice}` }[kind];
}

function choose(kind, subject) {
  byId("kind").value = kind;
  byId("subject").value = subject;
  subjects();
}

async function ask() {
  const kind = byId("kind").value, subject = byId("subject").value.trim(), target = byId("answer");
  if (kind === "evictionPrice" && !(subject && Number(subject) >= 0)) {
    target.replaceChildren(el("p", { class: "error" }, `“${subject}” is no price in $ per eviction, such as 0.01`));
    target.setAttribute("aria-busy", "false");
    return;
  }
  const question = { drainNode: { node: subject }, deleteNodePool: { nodePool: subject }, evictionPrice: { price: Number(subject) } }[kind];
  await askInto(target, { kind, ...question }, replied);
  target.scrollIntoView({ block: "nearest" });
}

/** Smaller differences are shown as none; in $/h. */
const CENT = 0.005;

function replied(found) {
  const change = found.costAfter - found.costBefore, isOutage = Boolean(found.unschedulable && found.unschedulable.length);
  const parts = [
    el("p", { class: "summary" }, found.summary),
    el("dl", { class: "effect" }, [["now", `${dollars(found.costBefore)}/h`], ["then", `${dollars(found.costAfter)}/h`],
      ["difference", Math.abs(change) < CENT ? "none" : `${change > 0 ? "+" : "−"}${dollars(Math.abs(change))}/h`, isOutage || change > 0 ? "more" : "less"],
      ...(isOutage ? [["stay pending", counted(found.unschedulable.reduce((sum, group) => sum + group.count, 0), "pod"), "more"]] : []), ["evictions", String(found.evictions)]]
      .map(([name, value, kind]) => el("div", {}, el("dt", {}, name), el("dd", { class: kind }, value)))),
  ];
  if (found.newNodes && found.newNodes.length) {
    parts.push(el("h3", {}, "New nodes"), el("ul", {}, found.newNodes.map((node) =>
      el("li", {}, `${node.instanceTypes[0]} of NodePool ${node.nodePool}, ${node.price.toFixed(4)} $/h, ${counted(node.pods.length, "pod")}`))));
  }
  if (found.unschedulable && found.unschedulable.length) parts.push(el("h3", {}, "Pods that would stay pending"), ...pendingGroups(found.unschedulable));
  if (found.blocked && found.blocked.length) {
    parts.push(el("h3", {}, "Blocked evictions"), el("ul", {}, found.blocked.slice(0, 20).map((one) => el("li", {}, `${one.pod}: ${one.holds} (${one.change})`)),
      found.blocked.length > 20 ? el("li", {}, `and ${found.blocked.length - 20} more`) : null));
  }
  if (found.commands && found.commands.length) parts.push(el("h3", {}, "Disruptions at this price"), el("ol", { class: "timeline" }, found.commands.slice(0, 20).map((one) => entry(one, "", ""))));
  return parts;
}

/** Ask, and show the answer or the error in an element. */
async function askInto(target, question, drawn) {
  target.setAttribute("aria-busy", "true");
  target.replaceChildren(el("p", { class: "hint" }, "Evaluating …"));
  try {
    const reply = await fetch("api/questions", { method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body: JSON.stringify(question) });
    const found = await reply.json();
    target.replaceChildren(...(reply.ok ? drawn(found) : [el("p", { class: "error" }, found.error)]));
  } catch (error) {
    target.replaceChildren(el("p", { class: "error" }, `No answer: ${error.message}`));
  }
  target.setAttribute("aria-busy", "false");
}

function tableOf(heads, rows) {
  const cell = (text, index) => el("td", { class: heads[index].startsWith("$") ? "number" : null }, text);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": heads.join(", ") }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col", class: head.startsWith("$") ? "number" : null }, head)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
}

function advised(found) {
  const money = (cost) => [cost.toFixed(3), Math.round(cost * 730).toLocaleString("en")];
  const today = found.costs[0][1];
  return [
    el("p", { class: "summary" }, found.summary),
    tableOf(["", "$/h", "$/month", "against today"], found.costs.map(([name, cost], index) =>
      [name, ...money(cost), index && today ? `${Math.round(100 * (cost / today - 1))} %` : ""])),
    ...(found.obstacles.length ? [el("h3", {}, "Obstacles"), tableOf(["$/h", "$/month", "what prevents it", "what to change"],
      found.obstacles.map((one) => [...money(one.saving), one.what + (one.afterOthers ? " (once the other changes are made)" : ""), one.change]))] : []),
    ...found.notes.filter((note) => !note.endsWith(":")).map((note) => el("p", { class: "hint" }, note)),
    ...(found.nodePoolDiff ? [el("details", {}, el("summary", {}, "The change of the NodePools"), el("pre", {}, found.nodePoolDiff))] : []),
  ];
}

// ---- controls

byId("advise").addEventListener("click", () => askInto(byId("advice"), { kind: "advise" }, advised));
window.addEventListener("resize", () => { if (content && content.page) show(); });

byId("whatif").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
byId("kind").addEventListener("change", () => { byId("subject").value = ""; if (content && content.page) subjects(); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && opened) close(); });
byId("group").addEventListener("change", nodes);
byId("filter").addEventListener("input", () => { first = 0; nodes(); });
byId("previous").addEventListener("click", () => { first = Math.max(0, first - PAGE); nodes(); });
byId("next").addEventListener("click", () => { first += PAGE; nodes(); });
for (const [button, isMap] of [["as-map", true], ["as-table", false]]) {
  byId(button).addEventListener("click", () => {
    byId("map-view").hidden = !isMap;
    byId("table-view").hidden = isMap;
    byId("as-map").setAttribute("aria-pressed", String(isMap));
    byId("as-table").setAttribute("aria-pressed", String(!isMap));
    nodes();
  });
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  map.draw();
}
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
theme(localStorage.getItem("theme") || (prefersDark.matches ? "dark" : "light"));
prefersDark.addEventListener("change", () => { if (!localStorage.getItem("theme")) theme(prefersDark.matches ? "dark" : "light"); });
byId("theme").addEventListener("click", () => {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", next);
  theme(next);
});

connect();
