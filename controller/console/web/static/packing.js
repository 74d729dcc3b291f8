"use strict";
// The map of nodes: each node a box whose area is its allocatable CPU, with its pods inside.

const GAP = 3, TITLE = 24, LARGEST = 150, SMALLEST = 5, DRAWN_PODS = 15;

/** Return the boxes of the nodes, in groups, for this width, about `height` pixels high. */
function packed(groups, width, height) {
  let low = 0.5, high = LARGEST, best = null;
  const largest = Math.max(1, ...groups.flatMap((g) => g.nodes.map((n) => Math.sqrt(n.cpu[1]))));
  high = LARGEST / largest;
  for (let turn = 0; turn < 12; turn += 1) {
    const scale = turn === 0 ? high : (low + high) / 2;
    const tried = shelved(groups, width, scale);
    if (tried.height <= height) { best = tried; if (turn === 0) break; low = scale; } else high = scale;
  }
  return best || shelved(groups, width, low);
}

function shelved(groups, width, scale) {
  const boxes = [], titles = [];
  let y = 0;
  for (const group of groups) {
    titles.push({ text: group.title, y });
    y += TITLE;
    let x = 0, row = 0;
    for (const node of group.nodes) {
      const side = Math.max(SMALLEST, Math.round(scale * Math.sqrt(node.cpu[1] || 1)));
      if (x && x + side > width) { x = 0; y += row + GAP; row = 0; }
      boxes.push({ node, x, y, side });
      x += side + GAP;
      row = Math.max(row, side);
    }
    y += row + 10;
  }
  return { boxes, titles, height: y };
}

/** Divide a rectangle by shares, in rows as square as possible (a squarified treemap). */
function divided(shares, x, y, w, h) {
  const rects = [], total = shares.reduce((sum, share) => sum + share, 0);
  let from = 0, left = total;
  while (from < shares.length && w > 0.5 && h > 0.5) {
    const across = w >= h, length = across ? h : w, area = (w * h) / left;
    let to = from, sum = 0, worst = Infinity;
    while (to < shares.length) {
      const next = sum + shares[to], thick = (next * area) / length;
      let ratio = 0;
      for (let i = from; i <= to; i += 1) {
        const size = (shares[i] * area) / thick;
        ratio = Math.max(ratio, size / thick, thick / size);
      }
      if (ratio > worst) break;
      worst = ratio; sum = next; to += 1;
    }
    const thick = (sum * area) / length;
    let along = 0;
    for (let i = from; i < to; i += 1) {
      const size = (shares[i] * area) / thick;
      rects.push(across ? [x, y + along, thick, size] : [x + along, y, size, thick]);
      along += size;
    }
    if (across) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    left -= sum; from = to;
  }
  return rects;
}

/** The share of a node that a pod takes: of CPU or of memory, whichever is larger. */
function shareOf(node, pod) {
  return Math.max(node.cpu[1] ? pod[1] / node.cpu[1] : 0, node.memory[1] ? pod[2] / node.memory[1] : 0);
}

function usedOf(node) {
  return Math.min(1, Math.max(node.cpu[1] ? node.cpu[0] / node.cpu[1] : 0,
    node.memory[1] ? node.memory[0] / node.memory[1] : 0));
}

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  return { "on-demand": of("on-demand"), reserved: of("on-demand"), spot: of("spot"), other: of("other"),
    inner: of("inner"), line: of("line"), going: of("going"), text: of("text"), soft: of("soft"),
    focus: of("focus"), card: of("card") };
}

/** A canvas with the nodes; `chosen` is called with a node that the user opens. */
class PackingMap {
  constructor(canvas, { tip, say, chosen }) {
    Object.assign(this, { canvas, tip, say, chosen, groups: [], going: new Set(), at: -1, layout: null });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("mousemove", (event) => this.hover(event));
    canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
    canvas.addEventListener("click", (event) => {
      const found = this.find(event);
      if (found >= 0) { this.at = found; this.draw(); chosen(this.layout.boxes[found].node); }
    });
    canvas.addEventListener("focus", () => { if (this.at < 0) this.move(0); else this.draw(); });
    canvas.addEventListener("blur", () => this.draw());
    new ResizeObserver(() => this.show()).observe(canvas.parentElement);
  }

  /** Show these groups of nodes; `going` are the names of the nodes that would be disrupted. */
  show(groups = this.groups, going = this.going) {
    const name = this.at >= 0 && this.layout ? this.layout.boxes[this.at].node.name : "";
    this.groups = groups; this.going = going;
    const width = this.canvas.parentElement.clientWidth;
    if (!width) return;
    const count = groups.reduce((sum, group) => sum + group.nodes.length, 0);
    const height = Math.min(Math.max(280, window.innerHeight * 0.55), 200 + count * 14) + groups.length * TITLE;
    this.layout = packed(groups, width, height);
    this.at = this.layout.boxes.findIndex((box) => box.node.name === name);
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(Math.max(40, this.layout.height) * ratio);
    this.canvas.style.height = `${Math.max(40, this.layout.height)}px`;
    this.draw();
  }

  draw() {
    if (!this.layout) return;
    const began = performance.now(), c = colours(), pen = this.canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    pen.font = `600 13px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    for (const title of this.layout.titles) {
      pen.fillStyle = c.soft;
      pen.fillText(title.text, 0, title.y + TITLE / 2);
    }
    for (const box of this.layout.boxes) this.box(pen, box, c);
    const chosen = this.layout.boxes[this.at];
    if (chosen && (document.activeElement === this.canvas || this.at >= 0)) {
      pen.strokeStyle = c.focus; pen.lineWidth = 3;
      pen.strokeRect(chosen.x - 1.5, chosen.y - 1.5, chosen.side + 3, chosen.side + 3);
    }
    this.canvas.dataset.milliseconds = (performance.now() - began).toFixed(1);
    this.canvas.dataset.nodes = this.layout.boxes.length;
  }

  box(pen, { node, x, y, side }, c) {
    const colour = (node.managed && c[node.capacityType]) || c.other, rim = side < 12 ? 1 : 2;
    const round = node.capacityType === "spot" ? Math.min(side / 5, 12) : Math.min(2, side / 6);
    pen.save();
    pen.beginPath();
    pen.roundRect(x, y, side, side, node.capacityType === "spot" ? [round, round, 2, 2] : round);
    pen.fillStyle = c.inner;
    pen.fill();
    pen.save();
    pen.clip();
    pen.fillStyle = colour;
    if (side < DRAWN_PODS) {
      const used = usedOf(node) * side;
      pen.globalAlpha = 0.85;
      pen.fillRect(x, y + side - used, side, used);
    } else {
      const shares = node.pods.map((pod) => shareOf(node, pod)).filter((share) => share > 0);
      const sum = shares.reduce((total, share) => total + share, 0);
      const free = Math.max(0, 1 - sum);
      const inner = side - 2 * rim;
      // The pods fill the box from below; the free capacity is above them.
      const high = inner * (1 - free);
      const rects = divided(shares, x + rim, y + side - rim - high, inner, high);
      const line = side > 60 ? 1 : 0.5;
      rects.forEach(([px, py, pw, ph], index) => {
        pen.globalAlpha = index % 2 ? 0.72 : 0.85;
        pen.fillRect(px, py, Math.max(0.4, pw - line), Math.max(0.4, ph - line));
      });
    }
    pen.restore();
    pen.globalAlpha = 1;
    pen.strokeStyle = this.going.has(node.name) ? c.going : colour;
    pen.lineWidth = this.going.has(node.name) ? Math.max(2, rim + 1) : Math.max(1, rim - 0.5);
    if (node.state !== "ready") pen.setLineDash([3, 3]);
    pen.stroke();
    pen.restore();
  }

  find(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const x = event.clientX - bounds.left, y = event.clientY - bounds.top;
    return this.layout ? this.layout.boxes.findIndex((box) =>
      x >= box.x && x <= box.x + box.side && y >= box.y && y <= box.y + box.side) : -1;
  }

  hover(event) {
    const found = this.find(event);
    this.tip.hidden = found < 0;
    this.canvas.style.cursor = found < 0 ? "" : "pointer";
    if (found < 0) return;
    const box = this.layout.boxes[found], width = this.canvas.clientWidth;
    this.tip.textContent = describedNode(box.node, this.going.has(box.node.name), "\n");
    this.tip.style.left = `${Math.max(0, Math.min(box.x + box.side + 8, width - 340))}px`;
    this.tip.style.top = `${box.y + 8}px`;
  }

  key(event) {
    const { boxes } = this.layout || { boxes: [] };
    if (!boxes.length) return;
    const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key in moves) this.move(this.at + moves[event.key]);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") this.move(this.beside(event.key === "ArrowDown"));
    else if ((event.key === "Enter" || event.key === " ") && this.at >= 0) this.chosen(boxes[this.at].node);
    else return;
    event.preventDefault();
  }

  /** Return the box that is nearest in the row below or above. */
  beside(below) {
    const { boxes } = this.layout, from = boxes[Math.max(this.at, 0)];
    let best = this.at, least = Infinity;
    boxes.forEach((box, index) => {
      const dy = below ? box.y - from.y : from.y - box.y;
      const distance = dy * 1000 + Math.abs(box.x - from.x);
      if (dy > 0 && distance < least) { least = distance; best = index; }
    });
    return best;
  }

  move(to) {
    const { boxes } = this.layout || { boxes: [] };
    if (!boxes.length) return;
    this.at = Math.max(0, Math.min(boxes.length - 1, to));
    const { node } = boxes[this.at];
    this.say(describedNode(node, this.going.has(node.name), ", "));
    this.draw();
  }
}

function percent(pair) { return pair[1] ? Math.round((100 * pair[0]) / pair[1]) : 0; }

/** Describe a node in one text, the same for the tip and for screen readers. */
function describedNode(node, going, separator) {
  return [
    node.name,
    [node.type, node.capacityType, node.managed ? "" : "not managed", node.zone].filter(Boolean).join(" · "),
    `${node.price ? `${node.price.toFixed(4)} $/h` : "price unknown"}`,
    `${node.pods.length} pods, CPU ${percent(node.cpu)} %, memory ${percent(node.memory)} %`,
    node.state === "ready" ? "" : node.state,
    going ? "would be disrupted now" : "",
  ].filter(Boolean).join(separator);
}
