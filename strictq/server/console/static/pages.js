// The pages. Each has show(main, ...path), and may have sampled() and tick().
import { spark, timeChart, timeline } from "./charts.js";
import { $, act, age, api, ask, bar, bytesOf, card, chip, cut, el, empty, facts, keyText, many, moment, num, perform, plain, segments, setting, shown, since, size, state, table, toast, whole } from "./ui.js";

const part = encodeURIComponent;
export const href = (...path) => "#" + [state.queue, ...path].map(part).join("/");
const keyHref = (row) => href("key", row.key_type, row.key);
const keyLink = (row, n = 60) => row.key_type == null ? el("span", { class: "key" }, "(keyless)") : el("a", { class: "key", href: keyHref(row) }, shown(cut(keyText(row), n)));
const title = (text, ...right) => el("div", { class: "title" }, el("h1", {}, text), el("div", { class: "right" }, ...right));
const button = (text, onclick, kind = "") => el("button", { type: "button", class: kind, onclick }, text);
const mine = (row) => ({ key: row.key, key_type: row.key_type });
const percent = (x) => x == null ? "–" : `${Math.round(x * 100)} %`;
const took = (found) => `read in ${age(found.seconds)}`;

// ---- bodies

const UTF8 = new TextDecoder("utf-8", { fatal: true });
function textOf(bytes, isWhole) {
  try { return UTF8.decode(bytes); } catch { /* cut within a character, or no text */ }
  for (let n = 1; n < 4 && !isWhole; n++) try { return UTF8.decode(bytes.subarray(0, bytes.length - n)); } catch { /* shorter still */ }
  return null;
}
const LINE_MAX = 80;
// Write short JSON in a line and indent other JSON, without changing its numbers and texts, as parsing and writing would.
export function indented(text) {
  let out = "", depth = 0;
  const tokens = [...text.matchAll(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g)].map(([token]) => token);
  const line = tokens.slice(0, LINE_MAX).map((token) => token === ":" || token === "," ? `${token} ` : token).join("");
  if (tokens.length <= LINE_MAX && line.length <= LINE_MAX) return line;
  for (const token of tokens) {
    if (token === "}" || token === "]") { depth--; out = /[{[]\s*$/.test(out) ? out.trimEnd() : `${out}\n${"  ".repeat(depth)}`; }
    out += token === ":" ? ": " : token;
    if (token === "{" || token === "[") out += `\n${"  ".repeat(++depth)}`;
    else if (token === ",") out += `\n${"  ".repeat(depth)}`;
  }
  return out;
}
function hex(bytes) {
  const rows = [];
  for (let at = 0; at < bytes.length && at < 16384; at += 16) {
    const some = [...bytes.subarray(at, at + 16)];
    rows.push(`${at.toString(16).padStart(6, "0")}  ${some.map((b) => b.toString(16).padStart(2, "0")).join(" ").padEnd(47)}  ${some.map((b) => b > 31 && b < 127 ? String.fromCharCode(b) : "·").join("")}`);
  }
  return rows.join("\n");
}
const TEXT_MAX = 200000;
function bodyView(body, more) {
  if (body?.data == null) return el("span", { class: "note" }, "not kept");
  const box = el("div", { class: "body" });
  const draw = (given) => {
    const bytes = bytesOf(given.data), isWhole = bytes.length === given.size, text = textOf(bytes, isWhole), pre = el("pre", { tabindex: 0, "aria-label": "Body" });
    let json = null;
    if (isWhole && text != null && /^\s*[[{]/.test(text)) try { JSON.parse(text); json = indented(text); } catch { /* it is text */ }
    const modes = [json != null && ["json", "JSON"], text != null && ["text", "Text"], ["hex", "Hex"]].filter(Boolean);
    const put = (mode) => { const said = mode === "hex" ? hex(bytes) : mode === "json" ? json : text; pre.replaceChildren(...shown(said.slice(0, TEXT_MAX), true), said.length > TEXT_MAX ? "…" : ""); };
    put(modes[0][0]);
    const tools = el("div", { class: "tools" }, segments("Show the body as", modes, modes[0][0], put, true), el("span", { class: "note" }, isWhole ? size(given.size) : `${size(bytes.length)} of ${size(given.size)}`));
    if (!isWhole && more) tools.append(button("Show more", async () => { try { const all = await more(); more = null; draw(all); } catch (e) { toast(e.message); } }, "small"));
    box.replaceChildren(...(given.size ? [tools, pre] : [el("span", { class: "note" }, "empty")]));
  };
  draw(body);
  return box;
}
const headersView = (headers) => headers && Object.keys(headers).length ? el("details", {}, el("summary", {}, many(Object.keys(headers).length, "header")), el("pre", {}, shown(Object.entries(headers).map(([k, v]) => `${k}: ${v}`).join("\n"), true))) : null;
const tries = (errors) => el("ol", { class: "tries" }, [...errors].reverse().map((e) => el("li", {}, el("div", {}, `Attempt ${e.attempt}, `, moment(e.at)), el("div", { class: "err" }, shown(e.error)), e.traceback ? el("details", {}, el("summary", {}, "Traceback"), el("pre", {}, shown(e.traceback, true))) : null)));

// ---- overview

function banners(s) {
  const said = [];
  if (s.paused) said.push(["", "The queue is paused: receives return nothing."]);
  if (s.paused_types?.length) said.push(["", `Paused handler types: ${s.paused_types.join(", ")}`]);
  for (const b of s.breakers || []) said.push(["bad", `${b.consumer}: the circuit breaker${b.group ? ` of ${b.group}` : ""} opened ${since(b.since)}: ${b.error}`]);
  for (const x of s.shards || []) if (x.quarantined) said.push(["bad", `Shard ${x.shard} is quarantined: ${x.quarantined}`]);
  if (s.replication && (s.replication.stopped || s.replication.lapsed)) said.push(["bad", `Replication: ${s.replication.last_error || "it lapsed"}`]);
  return said.map(([kind, text]) => el("div", { class: `banner ${kind}` }, shown(text)));
}
function tiles(s, points) {
  const p = points[points.length - 1], r = s.replication;
  const tile = (name, value, unit, kind, line) => el("div", { class: `tile ${kind || ""}` }, el("dt", {}, name), el("dd", {}, value, unit ? el("small", {}, ` ${unit}`) : null), line);
  return [
    tile("Oldest", ...parts(age(p.oldest)), "", spark(points, (x) => x.oldest, "oldest")),
    tile("Unresolved", num(p.depth), "", "", spark(points, (x) => x.depth, "all")),
    tile("In", num(p.sends_rate), "/s", "", spark(points, (x) => x.sends_rate, "in")),
    tile("Out", num(p.acks_rate), "/s", "", spark(points, (x) => x.acks_rate, "out")),
    tile("In flight", num(p.in_flight)), tile("Delayed", num(p.delayed)),
    tile("Held", num(p.held), "", p.held ? "warn" : ""), tile("Dead letters", num(p.dead), "", p.dead ? "bad" : ""),
    tile("Retries", num(p.retries_rate == null ? null : p.retries_rate * 60), "/min"),
    tile("Workers busy", s.busy_ratio == null ? "–" : Math.round(s.busy_ratio * 100), s.busy_ratio == null ? "none" : "%"),
    tile("Replica lag", ...(r ? parts(age(r.lag_seconds)) : ["–", "none"])), tile("Lanes", num(p.lanes)),
  ];
}
const parts = (text) => { const [n, unit] = text.split(" "); return [n, unit || ""]; };
function lanesTable(label, rows, top) {
  return table(label, ["*Key", "#Messages", "", "Oldest", "State"], rows.map((r) => [keyLink(r, 34), whole(r.depth), bar(r.depth, top, many(r.depth, "message")), el("time", {}, age(r.oldest_age_seconds)), el("div", {}, chip(r.state), r.reason ? el("span", { class: "note" }, " ", ...shown(cut(r.reason, 120))) : null)]), "No lane has messages.");
}
function workersTable(consumers, leases) {
  const running = consumers.filter((c) => c.kind !== "stream"), known = new Set(running.map((c) => c.name)), plainly = new Map();
  for (const l of leases) if (!known.has(l.consumer)) { const p = plainly.get(l.consumer) || { n: 0, since: l.since }; p.n += l.messages; p.since = Math.min(p.since, l.since); plainly.set(l.consumer, p); }
  const rows = running.map((c) => [shown(cut(c.name, 40)), chip(c.slow ? "slow" : "live", c.kind), c.kind === "worker" ? `${c.running} of ${c.concurrency}` : "–", whole(c.in_flight), c.kind === "worker" ? bar(c.busy_ratio || 0, 1, `busy ${percent(c.busy_ratio)}`, "busy") : "", moment(c.since)]);
  for (const [name, p] of plainly) rows.push([shown(cut(name, 40)), chip("receive"), "–", whole(p.n), "", moment(p.since)]);
  return table("Consumers", ["*Consumer", "Kind", "#Running", "#In flight", "Busy", "Since"], rows, "No consumer runs.");
}
export const overview = {
  label: "Overview",
  show(main) {
    this.busy = false; this.n = 0;
    this.rates = timeChart("Messages per second", [{ name: "in", color: "in", of: (p) => p.sends_rate }, { name: "out", color: "out", of: (p) => p.acks_rate }]);
    this.depth = timeChart("Unresolved messages", [{ name: "all", color: "all", of: (p) => p.depth, area: true }, { name: "in flight", color: "flight", of: (p) => p.in_flight }, { name: "delayed or held", color: "wait", of: (p) => p.delayed + p.held }]);
    const k = (kind, text) => el("span", { class: `k ${kind}` }, text);
    this.banners = el("div", { class: "banners" }); this.tiles = el("dl", { class: "tiles" }); this.spans = el("div", { class: "spans" }, empty("No worker has reported yet.")); this.longest = el("div", {}); this.oldest = el("div", {}); this.who = el("div", {});
    main.replaceChildren(el("h1", { class: "sr" }, "Overview"), this.banners, this.tiles,
      el("div", { class: "two" }, card(["Messages per second", k("in", "in"), k("out", "out")], this.rates.box), card(["Unresolved messages", k("all", "all"), k("flight", "in flight"), k("wait", "delayed or held")], this.depth.box)),
      card(["What the workers do", k("prep", "prepare"), k("proc", "process"), k("fail", "failed"), el("small", {}, "one row per key: message n + 1 is prepared while n is processed")], this.spans),
      el("div", { class: "two" }, card("Longest lanes", this.longest), card("Oldest lanes", this.oldest)), card("Consumers", this.who));
    if (state.stats) this.sampled();
    this.tick();
  },
  sampled() {
    this.banners.replaceChildren(...banners(state.stats));
    if (state.points.length) this.tiles.replaceChildren(...tiles(state.stats, state.points));
    this.rates.set(state.points); this.depth.set(state.points);
  },
  async tick() {
    if (this.busy) return;
    this.busy = true;
    try {
      const found = await api("spans");
      if (!timeline(this.spans, found)) this.spans.replaceChildren(empty("No worker runs a handler now."));
      if (this.n++ % 3 === 0) {
        const [who, longest, oldest] = await Promise.all([api("consumers", { timer: 1 }), api("lanes", { limit: 8, timer: 1 }), api("lanes", { limit: 8, by: "age", timer: 1 })]);
        this.who.replaceChildren(workersTable(who.consumers, who.leases || []), who.leases ? "" : el("p", { class: "note" }, "Loops that only call receive are read only when you ask: ", el("a", { href: href("consumers", 1) }, "read their leases")));
        const most = Math.max(1, ...(longest.rows || []).map((r) => r.depth));
        for (const [box, found, label] of [[this.longest, longest, "Longest lanes"], [this.oldest, oldest, "Oldest lanes"]]) box.replaceChildren(found.rows ? lanesTable(label, found.rows, most) : el("p", { class: "empty" }, `${whole(found.lanes)} lanes are read only when you ask: `, el("a", { href: href("lanes", "depth", "", 1) }, "read them")));
      }
    } catch (e) { toast(e.message); } finally { this.busy = false; }
  },
};

// ---- lanes and keys

export const lanes = {
  label: "Lanes",
  async show(main, by = "depth", prefix = "", asked) {
    const input = el("input", { type: "search", name: "key", placeholder: "Find a key, or keys that begin with…", "aria-label": "Key or beginning of keys", autocomplete: "off", value: prefix, spellcheck: "false" });
    const box = el("div", {}), form = el("form", { class: "tools", onsubmit: async (e) => {
      e.preventDefault();
      const text = input.value;
      if (!text) { location.hash = href("lanes", by); return; }
      try {
        const { found } = await api("find", { text });
        if (found.length === 1) location.hash = keyHref(found[0]);
        else location.hash = href("lanes", by, text);
      } catch (e2) { toast(e2.message); }
    } }, input, el("button", { class: "primary" }, "Find"), segments("Order", [["depth", "Longest"], ["age", "Oldest"]], by, (chosen) => { location.hash = href("lanes", chosen, prefix); }));
    const note = el("span", { class: "note" });
    main.replaceChildren(title("Lanes", note, button("Refresh", () => load(1, 1))), form, card(null, box));
    const load = async (asked, fresh) => {
      note.textContent = "Reading…";
      const found = await api("lanes", { by, prefix, fresh, timer: asked || prefix ? null : 1 });
      if (!found.rows) { note.textContent = ""; box.replaceChildren(el("p", { class: "empty" }, `${whole(found.lanes)} lanes are read only when you ask: `, button("Read them", () => load(1)))); return; }
      const most = Math.max(1, ...found.rows.map((r) => r.depth));
      note.textContent = `${prefix ? `${many(found.rows.length, "key")} that ${found.rows.length === 1 ? "begins" : "begin"} with ${plain(prefix)}` : `${many(found.rows.length, "lane")} with messages, ${whole(found.lanes)} known`}, ${took(found)}`;
      box.replaceChildren(lanesTable("Lanes", found.rows, most));
    };
    await load(asked);
  },
};

export const key = {
  async show(main, key_type, name) {
    const row = { key: name, key_type }, found = await api("key", mine(row)), e = found.explain, again = () => this.show(main, key_type, name);
    const call = (action, given) => perform(action, { ...mine(row), ...given }, again), named = () => el("b", {}, shown(cut(keyText(row), 60)));
    const buttons = [button("Refresh", again)];
    if (state.actions) {
      if (e.state === "held") buttons.push(button("Release", async () => { if (await ask("Release this key?", ["Deliver ", named(), " again. The attempts of its messages restart at 0."], "Release")) call("release"); }));
      else buttons.push(button("Hold", async () => { const given = await ask("Hold this key?", ["Stop delivering ", named(), " until it is released. A lease that is live may finish."], "Hold", { fields: [["reason", "Reason", "text", ""]] }); if (given) call("hold", given); }));
      buttons.push(button("Purge", async () => { const given = await ask("Purge this key?", [`Delete ${many(e.depth, "unresolved message")} of `, named(), ". Messages in flight stay. This cannot be undone."], "Purge", { danger: true, fields: [["dead", `Delete ${many(e.dead, "dead letter")}, too`, "check", false]] }); if (given) call("purge", given); }, "danger"));
    }
    const bodyOf = (m, dead) => bodyView(m.body, () => api("body", { ...mine(row), seq: m.seq, dead: dead ? 1 : null }));
    const rejecting = (m) => button("Reject", async () => { const given = await ask(`Dead-letter seq ${whole(m.seq)}?`, ["Later messages of ", named(), " are delivered without it. It can be redriven."], "Reject", { danger: true, fields: [["reason", "Reason", "text", ""], m.state === "in_flight" && ["force", "End the lease that holds it", "check", false]].filter(Boolean) }); if (given) call("reject", { seq: m.seq, ...given }); }, "small danger");
    const head = found.messages[0]?.status, p = e.progress, out = [];
    out.push(el("div", { class: "title" }, el("h1", { class: "mono" }, shown(keyText(row))), key_type !== "str" ? chip(key_type) : null, el("div", { class: "right" }, buttons)),
      el("p", { class: "say" }, chip(e.state), el("span", {}, shown(e.text))),
      card(null, facts([["Unresolved", whole(e.depth)], ["Dead letters", whole(e.dead)], ["Next seq", whole(e.head_seq)], ["Attempts of it", whole(e.attempts)], e.by && [e.state === "held" ? "Reason" : "Holder", el("span", {}, shown(e.by))], e.since && ["Since", moment(e.since)], e.until && ["Until", moment(e.until)], e.token && ["Token", String(e.token)], ["Shard", String(e.shard)]]),
        p ? el("div", {}, el("p", { class: "note" }, `${percent(p.fraction)} `, ...shown(p.text), ", reported ", moment(p.at)), bar(p.fraction, 1, `Progress ${percent(p.fraction)}`, "busy")) : null));
    if (head && (head.errors.length || head.last_output || head.last_error)) out.push(card(["Attempts of the next message", el("small", {}, `seq ${whole(found.messages[0].seq)}, the last five failures, newest first`)], head.errors.length ? tries(head.errors) : head.last_error ? el("p", { class: "err" }, shown(head.last_error)) : null, head.last_output ? el("details", { open: true }, el("summary", {}, "Output"), el("pre", {}, shown(head.last_output, true))) : null));
    out.push(card(["Next messages", found.messages.length < e.depth ? el("small", {}, `the first ${found.messages.length} of ${many(e.depth, "unresolved message")}`) : null].filter(Boolean), table("Next messages", ["#Seq", "State", "#Attempts", "Sent", "*Body", ...(state.actions ? ["!"] : [])], found.messages.map((m) => [whole(m.seq), chip(m.state), whole(m.attempts), el("span", {}, moment(m.enqueued_at), m.due_at ? [", due ", moment(m.due_at)] : null, m.expires_at ? [", expires ", moment(m.expires_at)] : null), el("div", {}, bodyOf(m), headersView(m.headers), m.status?.errors.length && m !== found.messages[0] ? el("details", {}, el("summary", {}, many(m.status.errors.length, "failed attempt")), tries(m.status.errors)) : null), ...(state.actions ? [rejecting(m)] : [])]), "The lane is empty.")));
    if (e.dead) out.push(deadTable(found.dead, `Dead letters of this key`, again, false, state.actions && e.dead > 1 ? button(`Redrive ${whole(e.dead)}`, async () => { if (await ask("Redrive this key?", [`Return ${many(e.dead, "dead letter")} of `, named(), " to the front of its lane, at their original positions."], `Redrive ${whole(e.dead)}`)) call("redrive", {}); }, "small") : null));
    const past = el("div", {}, found.history ? button("Read the history", async () => { past.replaceChildren(empty("Reading…")); try { const h = await api("history", mine(row)); past.replaceChildren(historyTable(h), el("p", { class: "note" }, `The newest ${h.records.length}, ${took(h)}${h.whole ? "" : "; the history is longer than what was read"}`)); } catch (x) { toast(x.message); } }) : empty("This queue keeps no history: its setting history is off."));
    out.push(card("History", past));
    main.replaceChildren(...out);
  },
};
function historyTable(h) {
  return table("History", ["#Seq", "Outcome", "#Attempts", "Sent", "Done", "Process", "*Details"], h.records.map((r) => [whole(r.seq), chip(r.outcome), whole(r.attempts), moment(r.enqueued_at), moment(r.done_at), age(r.process_seconds), el("div", {}, r.body.data == null ? el("span", { class: "note" }, size(r.size)) : bodyView(r.body), r.output ? el("details", {}, el("summary", {}, "Output"), el("pre", {}, shown(r.output, true))) : null, r.errors.length ? el("details", {}, el("summary", {}, many(r.errors.length, "failed attempt")), tries(r.errors)) : null)]), "No message has finished.");
}

// ---- dead letters

function deadTable(rows, label, again, keys, ...tools) {
  const redriving = (m) => m.key_type == null ? null : button("Redrive", async () => { if (await ask(`Redrive seq ${whole(m.seq)}?`, ["Return it to the front of the lane of ", el("b", {}, shown(cut(keyText(m), 60))), ", at its original position, with 0 attempts."], "Redrive")) perform("redrive", { ...mine(m), seq: m.seq }, again); }, "small");
  return card([label, el("span", { class: "right" }, ...tools)], table(label, [...(keys ? ["*Key"] : []), "#Seq", "*Why", "#Attempts", "Died", "*Body", ...(state.actions ? ["!"] : [])], rows.map((m) => [...(keys ? [keyLink(m)] : []), whole(m.seq), el("div", {}, chip(m.kind), " ", el("span", { class: "err" }, shown(cut(m.reason || "", 300))), m.errors.length ? el("details", {}, el("summary", {}, many(m.errors.length, "failed attempt")), tries(m.errors)) : null, m.output ? el("details", {}, el("summary", {}, "Output"), el("pre", {}, shown(m.output, true))) : null), whole(m.attempts), moment(m.died_at), el("div", {}, bodyView(m.body, m.key_type == null ? null : () => api("body", { ...mine(m), seq: m.seq, dead: 1 })), headersView(m.headers)), ...(state.actions ? [redriving(m)] : [])]), "There are no dead letters."));
}
export const dead = {
  label: "Dead letters",
  badge: () => state.stats?.dead,
  async show(main, kind, pattern = "", offset = "0") {
    const at = Number(offset) || 0, found = await api("dead", kind ? { kind, pattern, offset: at } : { offset: at });
    const again = async () => { await api("dead", { fresh: 1 }).catch(() => {}); await this.show(main, kind, pattern, offset); };
    const redriveGroup = (g) => async () => {
      const n = g.n - g.keyless;
      if (await ask("Redrive this group?", [`Return ${many(n, "dead letter")} of ${many(g.keys, "key")} to the front of their lanes: `, el("b", {}, shown(cut(g.pattern || g.kind, 120)))], `Redrive ${whole(n)}`)) perform("redrive", { kind: g.kind, pattern: g.pattern, expect: g.n }, again);
    };
    const all = state.actions && found.all ? [button(`Redrive all ${whole(found.all)}`, async () => { if (await ask("Redrive all dead letters?", `Return ${many(found.all, "dead letter")} of the whole queue to the front of their lanes.`, `Redrive ${whole(found.all)}`, { danger: true })) perform("redrive", { all: true, expect: found.all }, again); }, "danger")] : [];
    const groups = found.groups.map((g) => [whole(g.n), bar(g.n, found.groups[0].n, many(g.n, "dead letter"), "bad"), el("div", {}, chip(g.kind), " ", el("span", { class: "err" }, shown(g.pattern || "no reason was given"))), el("span", {}, g.some_keys.slice(0, 3).flatMap((k, i) => [i ? ", " : "", keyLink(k, 20)]), g.keys > 3 ? ` and ${whole(g.keys - 3)} more` : ""), moment(g.last), el("span", { class: "tools" }, el("a", { href: href("dead", g.kind, g.pattern) }, "Show"), state.actions && g.n > g.keyless ? button(`Redrive ${whole(g.n - g.keyless)}`, redriveGroup(g), "small") : null)]);
    const turn = (text, to) => el("a", { href: href("dead", kind ?? "", pattern, String(to)) }, text);
    const label = kind ? `Dead letters of one reason` : "Newest dead letters";
    main.replaceChildren(title("Dead letters", el("span", { class: "note" }, `${found.complete ? "" : "at least "}${many(found.all, "dead letter")}, ${took(found)}`), ...all, button("Refresh", again)),
      card(["By reason", el("small", {}, "numbers in reasons are replaced by #")], table("Groups", ["#Messages", "", "*Why", "*Keys", "Last", "!"], groups, "There are no dead letters.")),
      deadTable(found.letters, label, again, true, kind ? el("a", { href: href("dead") }, "Show all") : null),
      found.matching > found.letters.length ? el("p", { class: "tools note" }, `${whole(at + 1)} to ${whole(at + found.letters.length)} of ${whole(found.matching)}`, at > 0 ? turn("Newer", Math.max(at - 25, 0)) : null, at + 25 < found.matching ? turn("Older", at + 25) : null) : "");
  },
};

// ---- the rest

export const consumers = {
  label: "Consumers",
  async show(main, asked, fresh) {
    this.asked = asked;
    const found = await api("consumers", { fresh, timer: asked ? null : 1 }), live = found.consumers.filter((c) => c.kind !== "stream");
    main.replaceChildren(title("Consumers", button("Refresh", () => this.show(main, 1, 1))), ...banners({ breakers: state.stats?.breakers }),
      card(["Workers and loops", el("small", {}, "those that only call receive are listed by their leases")], table("Workers and loops", ["*Consumer", "Kind", "Process", "Shards", "#Running", "#In flight", "Busy", "Since"], live.map((c) => [shown(cut(c.name, 50)), chip(c.slow ? "slow" : "live", c.slow ? `${c.kind}, slow` : c.kind), plain(`${c.host}:${c.pid}`), c.affinity === "none" ? "all" : (c.shards || []).join(", ") || "–", c.kind === "worker" ? `${c.running} of ${c.concurrency}` : "–", whole(c.in_flight), c.kind === "worker" ? bar(c.busy_ratio || 0, 1, `busy ${percent(c.busy_ratio)}`, "busy") : "", moment(c.since)]), "No worker or loop runs.")),
      card(["Leases", el("small", {}, "who holds which key, the oldest first")], !found.leases ? el("p", { class: "empty" }, "The leases of so many lanes are read only when you ask: ", button("Read them", () => this.show(main, 1))) : table("Leases", ["*Key", "Consumer", "#Messages", "#From seq", "Since", "Until"], found.leases.map((l) => [keyLink(l, 40), shown(cut(l.consumer, 40)), whole(l.messages), whole(l.first_seq), moment(l.since), l.until == null ? "acked" : moment(l.until)]), "No consumer holds a key.")));
  },
  tick(main) { if (this.n = (this.n || 0) + 1, this.n % 3 === 0 && quiet(main)) this.show(main, this.asked).catch(() => {}); },
};
// Whether nothing in the page has the focus or is opened, so that drawing it anew disturbs nobody.
const quiet = (main) => !main.contains(document.activeElement) && !$("dialog") && !$("details[open]", main) && !String(getSelection());

// The limits of a tenant: field, heading, label in the dialog.
const LIMITS = [["weight", "#Weight", "Weight"], ["max_depth", "#Max depth", "Unresolved messages at most"], ["send_rate", "#Sends/s", "Sends per second"], ["receive_rate", "#Deliveries/s", "Deliveries per second"], ["burst", "#Burst", "Burst"], ["concurrency", "#Keys at once", "Keys leased at once"], ["target_age_seconds", "Target age", "Target age, seconds"]];
const limitsOf = (t) => LIMITS.map(([name]) => t[name] == null ? "–" : name === "target_age_seconds" ? age(t[name]) : num(t[name]));
export const tenants = {
  label: "Tenants",
  async show(main) {
    const found = await api("tenants"), again = () => this.show(main);
    if (!found.tenants) { main.replaceChildren(title("Tenants"), card(null, empty("This queue has no tenants: its setting tenant_separator is not set."))); return; }
    const edit = (name, t) => async () => {
      const given = await ask(name ? `Limits of ${plain(cut(name, 40))}` : "New limit", name ? "Every process applies them at once. An empty field means no limit." : "A name, the beginning of names and an asterisk such as free-*, or * for all.", "Set the limits", { fields: [...(name ? [] : [["tenant", "Tenant", "text", ""]]), ...LIMITS.map(([name, , label]) => [name, label, "number", t[name] ?? (name === "weight" ? 1 : "")]), ["paused", "Paused: deliver none of its messages", "check", t.paused]] });
      if (!given) return;
      const numbers = Object.fromEntries(LIMITS.map(([name]) => [name, given[name] === "" ? null : Number(given[name])]));
      perform("limit", { ...numbers, tenant: name || given.tenant, weight: numbers.weight ?? 1, paused: given.paused }, again);
    };
    const most = Math.max(1, ...found.tenants.map((t) => t.depth)), wait = (t) => t.paused ? chip("paused") : t.throttled_seconds ? chip("throttled", `in ${age(t.throttled_seconds)}`) : "now";
    main.replaceChildren(title("Tenants", el("span", { class: "note" }, `${many(found.all, "tenant")}, ${took(found)}`), state.actions ? button("New limit", edit("", {})) : null, button("Refresh", again)),
      card(null, table("Tenants", ["*Tenant", "#Messages", "", "#Keys", "#In flight", "Oldest", ...LIMITS.map(([, heading]) => heading), "Next", ...(state.actions ? ["!"] : [])], found.tenants.map((t) => [t.tenant === "" ? "(others)" : el("span", { class: "key" }, shown(cut(t.tenant, 60))), whole(t.depth), bar(t.depth, most, many(t.depth, "message")), whole(t.keys), whole(t.in_flight), age(t.oldest_age_seconds), ...limitsOf(t), wait(t), ...(state.actions ? [t.tenant === "" ? null : button("Limits", edit(t.tenant, t), "small")] : [])]), "No tenant has messages or limits.")),
      card("Stored limits", table("Stored limits", ["*Tenant", ...LIMITS.map(([, heading]) => heading), "State", ...(state.actions ? ["!"] : [])], found.limits.map((t) => [el("span", { class: "key" }, shown(t.tenant)), ...limitsOf(t), t.paused ? chip("paused") : "–", ...(state.actions ? [el("span", { class: "tools" }, button("Change", edit(t.tenant, t), "small"), button("Remove", async () => { if (await ask("Remove these limits?", ["The limits of ", el("b", {}, shown(t.tenant)), " no longer apply."], "Remove", { danger: true })) perform("limit", { tenant: t.tenant, remove: true }, again); }, "small danger"))] : [])]), "No limits are stored.")));
  },
};

export const shards = {
  label: "Shards",
  async show(main) {
    const [who, set, own] = await Promise.all([api("consumers", { timer: 1 }), api("settings"), api("ranges")]), s = state.stats, owner = {}, again = () => this.show(main);
    const of = Object.fromEntries(own.shards.map((one) => [one.shard, one]));
    for (const c of who.consumers) for (const n of c.shards || []) owner[n] = c.name;
    const split = (x) => button("Split", async () => { const given = await ask(`Split shard ${x.shard}?`, `It has ${many(x.depth, "message")} of ${many(x.lanes, "lane")}. Some of its keys move to new shards, while the queue runs.`, "Split", { fields: [["parts", "Parts", "number", 2]] }); if (given) perform("split", { shard: x.shard, parts: Number(given.parts) }, again); }, "small");
    const isolate = async () => { const given = await ask("Isolate a key?", "The key gets a shard of its own, while the queue runs.", "Isolate", { fields: [["key", "Key (text)", "text", ""]] }); if (given) perform("isolate", { key: given.key, key_type: "str" }, again); };
    const advice = el("div", {}, button("Look", async () => { try { const found = await api("advice"); advice.replaceChildren(found.advice.length ? el("ul", {}, found.advice.map((a) => el("li", {}, `${a.what === "split" ? `Split shard ${a.shard}` : "Isolate "}`, a.what === "split" ? null : keyLink(a), `: ${a.why}`))) : empty("No move would help now."), el("p", { class: "note" }, took(found))); } catch (e) { toast(e.message); } }));
    this.moving = own.moving; this.again = again; this.box = el("div", {}, this.move(own.moving));
    const rows = (s?.shards || []).map((x) => [String(x.shard), x.quarantined ? chip("bad", "quarantined") : chip("live", "available"), whole(x.depth), whole(x.lanes), whole(x.dead), age(x.oldest_age_seconds), size(x.disk_bytes), size(x.wal_bytes), owner[x.shard] ? shown(cut(owner[x.shard], 30)) : "–", percent(of[x.shard]?.write_share), el("span", { class: "key" }, (of[x.shard]?.ranges || []).map(([lo, hi]) => el("div", {}, `${lo} to ${hi}`)), of[x.shard]?.retired ? "none" : null), ...(state.actions ? [of[x.shard]?.retired ? null : split(x)] : [])]);
    const paused = s?.paused, pausing = state.actions ? [button(paused ? "Resume the queue" : "Pause the queue", async () => { if (await ask(paused ? "Resume the queue?" : "Pause the queue?", paused ? "Receives return messages again, in every process." : "Receives return nothing, in every process, until it is resumed. Sends and acks go on.", paused ? "Resume" : "Pause")) perform(paused ? "resume" : "pause", {}, () => setTimeout(again, 300)); }), button("Purge the queue", async () => { const given = await ask("Purge the whole queue?", `Delete ${many(s?.depth ?? 0, "unresolved message")}. Messages in flight stay. This cannot be undone.`, "Purge", { danger: true, fields: [["dead", `Delete ${many(s?.dead ?? 0, "dead letter")}, too`, "check", false]] }); if (given) perform("purge", { all: true, ...given }, again); }, "danger")] : [];
    main.replaceChildren(title("Shards and settings", ...pausing, state.actions ? button("Isolate a key", isolate) : null, button("Refresh", again)), this.box, ...banners({ paused, paused_types: s?.paused_types, shards: s?.shards }),
      card(null, facts([["Path", el("span", {}, shown(set.path))], ["Durability", set.durability], ["Shards", whole(set.shards)], ["On disk", size(s?.disk_bytes)], ["Sent in all", whole(s?.sends)], ["Acked in all", whole(s?.acks)]])),
      card("Shards", table("Shards", ["#Shard", "State", "#Messages", "#Lanes", "#Dead", "Oldest", "#On disk", "#WAL", "Consumer", "#Sends", "Hashes", ...(state.actions ? ["!"] : [])], rows)),
      card(["What to split or isolate", el("small", {}, "the look reads every key with messages")], advice),
      card(["Settings", el("small", {}, "strictq config changes them")], facts(Object.entries(set.settings).map(([name, value]) => [name, el("span", {}, shown(setting(name, value)))]))));
  },
  move(m) {
    if (!m) return null;
    const cancel = () => button("Cancel the move", async () => { if (await ask("Cancel the move?", "What has moved comes back.", "Cancel the move", { danger: true })) perform("cancel_move", {}, this.again); }, "danger");
    return card("A range moves", facts([["From", `shard ${m.source}`], ["To", `shard ${m.target}`], ["Hashes", `${m.lo} to ${m.hi}`], m.left != null && ["Left", `about ${many(m.left, "message")}`]]), m.left == null ? null : bar(m.moved, Math.max(m.moved + m.left, 1), `${whole(m.moved)} moved`, "busy"), state.actions ? el("p", { class: "tools" }, cancel()) : null);
  },
  async tick() {
    if (!this.moving || this.busy) return;
    this.busy = true;
    try {
      const { moving } = await api("ranges"), ended = !moving;
      this.moving = moving;
      if (this.box.isConnected) ended ? await this.again() : this.box.replaceChildren(this.move(moving));
    } catch (e) { toast(e.message); } finally { this.busy = false; }
  },
};

export const replication = {
  label: "Replication",
  show(main) {
    const r = state.stats?.replication;
    if (!r) { main.replaceChildren(title("Replication"), card(null, empty("This queue was never replicated."))); this.chart = null; return; }
    this.chart = timeChart("Lag of the replica", [{ name: "lag", color: "flight", of: (p) => p.lag, area: true }], age, 1);
    this.facts = el("div", {});
    main.replaceChildren(title("Replication"), this.facts, card("Lag", this.chart.box));
    this.sampled();
  },
  sampled() {
    const r = state.stats?.replication;
    if (!r || !this.chart) return;
    this.facts.replaceChildren(...banners({ replication: r }), card(null, facts([["Target", el("span", {}, shown(r.target || "–"))], ["Mode", chip(r.mode)], ["Ships now", r.shipping ? "yes" : "no"], ["Lag", age(r.lag_seconds)], ["Not at the target", size(r.lag_bytes)], ["Newest state there", moment(r.confirmed_at)], ["Segment", whole(r.segment)], ["Term", whole(r.term)], r.proof && ["Last proof", r.proof.at ? moment(r.proof.at) : "never"], r.last_error && ["Last error", el("span", { class: "err" }, shown(r.last_error))]])));
    this.chart.set(state.points);
  },
};

export const spark_ = {
  label: "Spark",
  async show(main) {
    const rows = (await api("consumers", { timer: 1 })).consumers.filter((c) => c.kind === "stream");
    main.replaceChildren(title("Spark queries", button("Refresh", () => this.show(main))), card(null, table("Spark queries", ["*Stream", "Query", "#Lag", "Oldest", "#Batch", "#Unacked", "#Messages/s", "Reported", "*Error"], rows.map((c) => { const q = c.query; return [shown(cut(c.name, 50)), q ? el("span", {}, chip(q.state), " ", ...shown(cut(q.name || q.id, 40))) : chip(c.active ? "active" : "stopped"), whole(c.lag), age(c.age_seconds), whole(q?.batch ?? c.last), whole(c.open), q ? num(q.messages_per_second) : "–", q ? moment(q.at) : "–", q?.error ? el("span", { class: "err" }, shown(cut(q.error, 300))) : "–"]; }), "No query reads this queue.")));
  },
};

export const sqs = {
  label: "SQS",
  async show(main) {
    const { queues } = await api("sqs");
    main.replaceChildren(title("SQS queues", button("Refresh", () => this.show(main))), card(null, table("SQS queues", ["*Queue", "Kind", "#Unresolved", "#In flight", "#Delayed", "Created", "*Attributes"], queues.map((q) => [q.queue == null ? el("span", {}, shown(q.name)) : el("a", { href: "#" + part(q.queue) + "/overview" }, shown(q.name)), chip(q.name.endsWith(".fifo") ? "fifo" : "standard"), whole(q.depth), whole(q.in_flight), whole(q.delayed), moment(q.created), el("details", {}, el("summary", {}, many(Object.keys(q.attributes).length + Object.keys(q.tags).length, "attribute")), el("pre", {}, shown([...Object.entries(q.attributes), ...Object.entries(q.tags).map(([k, v]) => [`tag ${k}`, v])].map(([k, v]) => `${k}: ${v}`).join("\n"), true)))]), "No SQS queue was created.")));
  },
};

export const actions = {
  label: "Actions",
  async show(main) {
    const found = await api("actions");
    main.replaceChildren(title("Actions", button("Refresh", () => this.show(main))), card(["What was done here", el("small", {}, "since the server started; the server's log has it, too")], table("Actions", ["When", "From", "Queue", "Action", "*With", "*What it changed"], found.done.map((a) => [moment(a.at), a.who, shown(a.queue), chip(a.action), el("span", { class: "key" }, shown(cut(a.given, 200))), shown(a.said)]), found.allowed ? "Nothing was done yet." : "Actions are off. Start the server with --allow-actions.")));
  },
};

export const PAGES = { overview, lanes, key, dead, consumers, tenants, shards, replication, spark: spark_, sqs, actions };
