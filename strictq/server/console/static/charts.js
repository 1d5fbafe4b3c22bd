// Charts in SVG: time series with axes, areas and values under the pointer; small lines for tiles; the workers' timeline.
import { age, clock, cut, el, num, plain, svg, tail } from "./ui.js";

// Round values for an axis from 0 to at least `most`.
export function ticks(most, wanted) {
  const raw = Math.max(most, 1e-9) / wanted, base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * base).find((s) => s >= raw);
  const found = [];
  for (let n = 0; ; n++) { found.push(n * step); if (n * step >= most) return found; }
}
const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600];

// series: { name, color, of(point), area }
export function timeChart(label, series, format = num, least = 4) {
  const box = el("div", { class: "chart" });
  let points = [], at = null;
  const draw = () => {
    const w = box.clientWidth, h = box.clientHeight;
    if (!w || !h) return;
    const left = 44, right = 6, top = 8, bottom = 22;
    const end = points.length ? points[points.length - 1].t : Date.now() / 1000;
    const begin = Math.min(points.length ? points[0].t : end, end - 30);
    const values = points.flatMap((p) => series.map((s) => s.of(p) ?? 0));
    const ys = ticks(Math.max(least, ...values), 4), top_ = ys[ys.length - 1];
    const x = (t) => left + (t - begin) / (end - begin) * (w - left - right), y = (v) => top + (1 - v / top_) * (h - top - bottom);
    const root = svg("svg", { viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": `${label}: ${series.map((s) => `${s.name} ${format(points.length ? s.of(points[points.length - 1]) : null)}`).join(", ")}` });
    for (const v of ys) root.append(svg("line", { class: "grid", x1: left, x2: w - right, y1: y(v), y2: y(v) }), svg("text", { class: "axis", x: left - 7, y: y(v) + 4, "text-anchor": "end" }, format(v)));
    const step = TIMES.find((s) => s >= (end - begin) / Math.max(w / 110, 2)) || 86400;
    const offset = new Date().getTimezoneOffset() * 60;
    for (let t = Math.ceil((begin - offset) / step) * step + offset; t <= end; t += step) if (x(t) > left + 20 && x(t) < w - 24) root.append(svg("text", { class: "axis", x: x(t), y: h - 5, "text-anchor": "middle" }, clock(t)));
    for (const s of series) {
      const runs = [[]];
      for (const p of points) { const v = s.of(p); if (v == null) { if (runs[runs.length - 1].length) runs.push([]); } else runs[runs.length - 1].push([x(p.t), y(v)]); }
      for (const run of runs) {
        if (run.length < 2) continue;
        const d = "M" + run.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L");
        if (s.area) root.append(svg("path", { class: `area c-${s.color}`, d: `${d}L${run[run.length - 1][0].toFixed(1)} ${y(0)}L${run[0][0].toFixed(1)} ${y(0)}Z` }));
        root.append(svg("path", { class: `line c-${s.color}`, d }));
      }
    }
    if (at != null && points.length) {
      const t = begin + (at - left) / (w - left - right) * (end - begin);
      const p = points.reduce((a, b) => Math.abs(b.t - t) < Math.abs(a.t - t) ? b : a);
      const g = svg("g", { class: "hover" }), px = x(p.t), lines = [clock(p.t), ...series.map((s) => `${s.name} ${format(s.of(p))}`)];
      const width = 14 + 6.6 * Math.max(...lines.map((l) => l.length)), left_ = px + width + 12 > w ? px - width - 8 : px + 8;
      g.append(svg("line", { x1: px, x2: px, y1: top, y2: h - bottom }));
      for (const s of series) if (s.of(p) != null) g.append(svg("circle", { class: `c-${s.color}`, cx: px, cy: y(s.of(p)), r: 4 }));
      g.append(svg("rect", { x: left_, y: top, width, height: 8 + 16 * lines.length, rx: 6 }));
      lines.forEach((l, i) => g.append(svg("text", { x: left_ + 8, y: top + 18 + 16 * i }, l)));
      root.append(g);
    }
    box.replaceChildren(root);
  };
  box.addEventListener("pointermove", (e) => { at = e.clientX - box.getBoundingClientRect().left; draw(); });
  box.addEventListener("pointerleave", () => { at = null; draw(); });
  new ResizeObserver(draw).observe(box);
  return { box, set(given) { points = given; draw(); } };
}

export function spark(points, of, color) {
  const w = 100, h = 34, values = points.slice(-60).map(of).map((v) => v ?? 0);
  if (values.length < 3) return null;
  const most = Math.max(...values) || 1, d = "M" + values.map((v, i) => `${(i / (values.length - 1) * w).toFixed(1)} ${(h - 1.5 - v / most * (h - 8)).toFixed(1)}`).join("L");
  return svg("svg", { viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { class: `area c-${color}`, d: `${d}L${w} ${h}L0 ${h}Z` }), svg("path", { class: `line c-${color}`, d, "vector-effect": "non-scaling-stroke" }));
}

const BAD = new Set(["retried", "rejected", "poison", "timeout", "lost"]), WINDOWS = [2, 4, 8, 15, 30, 60, 120, 300, 900, 3600];

// found: the answer of api/spans. Two bars a message: prepare above, process below.
export function timeline(box, found) {
  const w = box.clientWidth, all = [];
  for (const worker of found.workers) for (const [stage, key, seq, start, end, outcome] of worker.spans) all.push({ stage, key, seq, start, end, outcome, consumer: worker.consumer });
  if (!w || !all.length) return 0;
  const to = Math.max(...all.map((s) => s.end ?? found.now)), lengths = all.filter((s) => s.stage === "process").map((s) => (s.end ?? to) - s.start).sort((a, b) => a - b);
  const typical = lengths[Math.floor(lengths.length / 2)] || 0.1;
  const span = WINDOWS.find((s) => s >= typical * (w < 600 ? 10 : 26)) || 7200, from = to - span;
  const recent = all.filter((s) => (s.end ?? to) > from), count = new Map();
  for (const s of recent) count.set(s.key, (count.get(s.key) || 0) + ((s.end ?? to) - Math.max(s.start, from)));
  const keys = [...count].sort((a, b) => b[1] - a[1]).slice(0, 9).map(([key]) => key).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const left = w < 600 ? 76 : 118, row = 34, h = keys.length * row + 22, x = (t) => left + (t - from) / span * (w - left - 6);
  const root = svg("svg", { viewBox: `0 0 ${w} ${h}`, height: h, role: "img", "aria-label": `Handlers of the last ${age(span)}, by key: ${keys.map((k) => plain(cut(k, 20))).join(", ")}` });
  keys.forEach((key, i) => {
    const y = i * row;
    root.append(svg("line", { class: "row", x1: 0, x2: w, y1: y + row - 0.5, y2: y + row - 0.5 }), svg("text", { class: "key", x: 2, y: y + row / 2 + 4 }, tail(plain(key), w < 600 ? 10 : 15)));
    for (const s of recent) {
      if (s.key !== key) continue;
      const a = Math.max(left, x(s.start)), b = x(s.end ?? to), kind = BAD.has(s.outcome) ? "bad" : s.stage, top = y + (s.stage === "prepare" ? 3 : 17), width = Math.max(b - a - 1, 2);
      if (b <= left) continue;
      const took = s.end == null ? `running for ${age(to - s.start)}` : age(s.end - s.start);
      root.append(svg("rect", { class: `s-${kind}${s.end == null ? " s-open" : ""}`, x: a.toFixed(1), y: top, width: width.toFixed(1), height: 13, rx: 3 }, svg("title", {}, `${s.stage} ${plain(key)} seq ${s.seq}: ${took}${s.outcome ? `, ${s.outcome}` : ""} (${plain(s.consumer)})`)));
      if (width > 7 * String(s.seq).length + 5) root.append(svg("text", { class: `n t-${kind}`, x: (a + width / 2).toFixed(1), y: top + 10.2 }, String(s.seq)));
    }
  });
  for (let i = 0; i <= 4; i++) root.append(svg("text", { class: "axis", x: left + i / 4 * (w - left - 6), y: h - 5, "text-anchor": i === 4 ? "end" : i ? "middle" : "start" }, i === 4 ? "now" : `−${age(span * (4 - i) / 4)}`));
  box.replaceChildren(root);
  return keys.length;
}
