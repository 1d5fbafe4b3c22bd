// Small helpers: elements, texts, requests, dialogs. Text reaches the page as text nodes only.
export const $ = (selector, of = document) => of.querySelector(selector);

export function el(tag, props = {}, ...kids) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value == null || value === false) continue;
    if (name === "class") e.className = value;
    else if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...kids.flat().filter((kid) => kid != null && kid !== false));
  return e;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, props = {}, ...kids) {
  const e = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) if (value != null) e.setAttribute(name, value);
  e.append(...kids.filter((kid) => kid != null));
  return e;
}

// ---- texts

// Characters that control a terminal or the direction of text, or that cannot be seen, are shown as escapes.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\u034f\u115f\u1160\u3164\uffa0]/gu;
const escaped = (c) => { const n = c.codePointAt(0); return n > 0xffff ? `\\u{${n.toString(16)}}` : `\\u${n.toString(16).padStart(4, "0")}`; };
export const plain = (text) => String(text).replace(HIDDEN, escaped);
// The same as nodes, with escapes marked; `lines`: line breaks and tabs are kept.
export function shown(text, lines = false) {
  const nodes = []; let at = 0;
  for (const m of String(text).matchAll(HIDDEN)) {
    if (lines && (m[0] === "\n" || m[0] === "\t")) continue;
    if (m.index > at) nodes.push(text.slice(at, m.index));
    nodes.push(el("span", { class: "esc" }, escaped(m[0])));
    at = m.index + m[0].length;
  }
  if (at < text.length) nodes.push(text.slice(at));
  return nodes;
}
export const cut = (text, n) => { const all = [...String(text)]; return all.length > n ? all.slice(0, n - 1).join("") + "…" : String(text); };
// The end of a text: what differs between keys is often there.
export const tail = (text, n) => { const all = [...String(text)]; return all.length > n ? "…" + all.slice(1 - n).join("") : String(text); };
export const many = (n, what) => `${whole(n)} ${what}${n === 1 ? "" : "s"}`;
export const whole = (n) => n == null ? "–" : Number(n).toLocaleString("en-US");
export function num(n) {
  if (n == null) return "–";
  const a = Math.abs(n);
  if (a >= 1e9) return (n / 1e9).toFixed(1) + "G";
  if (a >= 1e6) return (n / 1e6).toFixed(1) + "M";
  if (a >= 1e4) return (n / 1e3).toFixed(a >= 1e5 ? 0 : 1) + "k";
  return a > 0 && a < 10 && n % 1 ? n.toFixed(1) : String(Math.round(n));
}
export function age(s) {
  if (s == null) return "–";
  s = Math.max(Number(s), 0);
  if (s < 1) return (s * 1000).toFixed(0) + " ms";
  if (s < 100) return s.toFixed(1) + " s";
  if (s < 6000) return (s / 60).toFixed(0) + " min";
  if (s < 172800) return (s / 3600).toFixed(1) + " h";
  return (s / 86400).toFixed(1) + " d";
}
export function size(bytes) {
  if (bytes == null) return "–";
  for (const unit of ["B", "KB", "MB", "GB"]) { if (bytes < 1000) return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`; bytes /= 1000; }
  return `${bytes.toFixed(1)} TB`;
}
// A setting, with its unit in words where its name has one.
export function setting(name, value) {
  if (value === null || Array.isArray(value) && !value.length) return "none";
  if (typeof value !== "number") return Array.isArray(value) ? value.join(", ") : String(value);
  const said = whole(value);
  if (name.endsWith("_seconds") && value >= 100) return `${said} (${age(value)})`;
  return name.endsWith("_bytes") ? `${said} (${size(value)})` : said;
}
export const clock = (t) => new Date(t * 1000).toTimeString().slice(0, 8);
export function moment(t) {
  if (t == null) return "–";
  const d = new Date(t * 1000), p = (n) => String(n).padStart(2, "0");
  const day = `${d.getFullYear()}-${p(d.getMonth() + 1)}-${p(d.getDate())}`;
  return el("time", { datetime: d.toISOString(), title: `${day} ${clock(t)}` }, since(t));
}
let skew = 0; // seconds by which the server's clock is ahead
export const setNow = (now) => { skew = now - Date.now() / 1000; };
export const now = () => Date.now() / 1000 + skew;
export const since = (t) => { const s = now() - t; return s >= 0 ? `${age(s)} ago` : `in ${age(-s)}`; };

// ---- pieces of pages

export const bytesOf = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
export function keyText(row) {
  if (row.key_type == null) return "(keyless)";
  if (row.key_type === "bytes") return "0x" + [...bytesOf(row.key)].map((b) => b.toString(16).padStart(2, "0")).join("");
  return String(row.key);
}
export const chip = (state, text) => el("span", { class: `chip ${/^\w+$/.test(state) ? state : ""}` }, text ?? String(state).replace("_", " "));
export function bar(value, most, label, kind = "") {
  const fill = el("i"), part = most > 0 ? Math.min(value / most, 1) : 0;
  fill.style.width = `${part * 100}%`;
  return el("div", { class: `bar ${kind}`, role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": most || 1, "aria-valuenow": Math.min(value, most || 1) }, fill);
}
export const card = (title, ...kids) => el("section", { class: "card" }, title ? el("h2", {}, title) : null, ...kids);
export const empty = (text) => el("p", { class: "empty" }, text);
export const facts = (pairs) => el("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => el("div", { class: name === "Path" || name === "Target" ? "whole" : null }, el("dt", {}, name), el("dd", {}, value))));
// heads: name, "#name" (a number), "!" (buttons), "*name" (takes a line of its own on a phone)
export function table(label, heads, rows, none = "Nothing here.") {
  if (!rows.length) return empty(none);
  const kind = (h) => h[0] === "#" ? "n" : h[0] === "!" ? "act" : h[0] === "*" ? "wide" : h === "" ? "share" : "";
  const name = (h) => h.replace(/^[#!*]/, "");
  return el("div", { class: "scroll", tabindex: heads.length > 6 ? 0 : null, role: heads.length > 6 ? "region" : null, "aria-label": heads.length > 6 ? label : null },
    el("table", { class: heads.length > 5 ? "cards" : "" }, el("caption", { class: "sr" }, label),
      el("thead", {}, el("tr", {}, heads.map((h) => el("th", { class: kind(h), scope: "col" }, name(h) || el("span", { class: "sr" }, h[0] === "!" ? "Actions" : "Share"))))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: kind(heads[i]), "data-h": name(heads[i]) }, cell)))))));
}
export function segments(label, options, chosen, choose, small = false) {
  const box = el("span", { class: `seg${small ? " small" : ""}`, role: "group", "aria-label": label });
  for (const [value, text] of options) box.append(el("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => { for (const b of box.children) b.setAttribute("aria-pressed", String(b.textContent === text)); choose(value); } }, text));
  return box;
}

// ---- requests

export const state = { queue: "", queues: [], actions: false, stats: null, has: {}, points: [] };

export async function api(view, args = {}) {
  const query = new URLSearchParams({ queue: state.queue });
  for (const [name, value] of Object.entries(args)) if (value != null && value !== "") query.set(name, value);
  return answer(await fetch(`api/${view}?${query}`));
}
async function answer(r) {
  if (r.status === 403 && r.headers.get("content-type")?.startsWith("text/plain")) { location.reload(); }
  const found = await r.json().catch(() => ({ error: `the server answered ${r.status}` }));
  if (!r.ok) throw Error([found.error, found.hint].filter(Boolean).join(". ") || String(r.status));
  return found;
}
export async function act(action, given) {
  const token = $("meta[name=strictq-page]").content;
  const r = await fetch("api/act", { method: "POST", headers: { "content-type": "application/json", "x-strictq-page": token }, body: JSON.stringify({ queue: state.queue, action, ...given }) });
  return (await answer(r)).said;
}

let hiding = 0;
export function toast(text) {
  const box = $("#toast");
  box.textContent = plain(text);
  clearTimeout(hiding);
  hiding = setTimeout(() => { box.textContent = ""; }, 8000);
}

// Ask before an action. fields: [name, label, kind, value]; returns their values, or null.
export function ask(title, text, verb, { fields = [], danger = false } = {}) {
  return new Promise((done) => {
    const inputs = fields.map(([name, label, kind, value]) => {
      const input = el("input", { name, type: kind === "check" ? "checkbox" : kind === "number" ? "number" : "text", value: kind === "check" ? null : value, checked: kind === "check" && value, step: kind === "number" ? "any" : null, autocomplete: "off", maxlength: kind === "text" ? 500 : null });
      return kind === "check" ? el("label", { class: "check" }, input, label) : el("label", {}, label, input);
    });
    const form = el("form", { method: "dialog" }, el("h2", { id: "ask" }, title), el("p", {}, text), inputs,
      el("div", { class: "tools" }, el("button", { type: "button", onclick: () => box.close("no") }, "Cancel"), el("button", { class: `primary ${danger ? "danger" : ""}`, value: "yes" }, verb)));
    const box = el("dialog", { "aria-labelledby": "ask" }, form);
    box.addEventListener("close", () => {
      const found = Object.fromEntries([...form.querySelectorAll("input")].map((i) => [i.name, i.type === "checkbox" ? i.checked : i.value]));
      box.remove();
      done(box.returnValue === "yes" ? found : null);
    });
    document.body.append(box);
    box.showModal();
  });
}
export async function perform(action, given, after) {
  try { toast(await act(action, given)); } catch (e) { toast(e.message); }
  await after?.();
}
