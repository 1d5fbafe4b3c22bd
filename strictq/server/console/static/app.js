// The frame: which page is shown, the stream of samples, and the theme.
import { href, PAGES } from "./pages.js";
import { $, age, api, el, empty, num, plain, setNow, state } from "./ui.js";

const main = $("#main");
let page = null, route = [], source = null, drawn = 0, scrolled = "";

const where = () => location.hash.slice(1).split("/").map((part) => { try { return decodeURIComponent(part); } catch { return part; } });

function nav() {
  const has = state.has, shown = { tenants: !!has.tenants, replication: !!state.stats?.replication, spark: !!has.streams, sqs: !!has.sqs || !state.queue, actions: state.actions };
  const links = Object.entries(PAGES).filter(([name, p]) => p.label && (shown[name] !== false || route[1] === name)).map(([name, p]) => {
    const n = p.badge?.(), here = route[1] === name || (name === "lanes" && route[1] === "key");
    return el("a", { href: href(name), "aria-current": here ? "page" : null }, p.label, n ? [" ", el("b", {}, num(n))] : null);
  });
  const box = $("#nav"), same = box.textContent === links.map((l) => l.textContent).join("") && box.children.length === links.length;
  if (!same) box.replaceChildren(...links);
  else [...box.children].forEach((a, i) => { a.href = links[i].href; links[i].hasAttribute("aria-current") ? a.setAttribute("aria-current", "page") : a.removeAttribute("aria-current"); });
  const current = $("#nav [aria-current]");
  if (current && (!same || current.textContent !== scrolled)) { scrolled = current.textContent; box.scrollLeft = current.offsetLeft - (box.clientWidth - current.offsetWidth) / 2; }
}

async function go() {
  const before = route;
  route = where();
  if (location.hash === "#main") { route = before; main.focus(); return; }
  if (!state.queues.some((q) => q.name === route[0])) route = [state.queues[0]?.name ?? "", ...(PAGES[route[1]] ? route.slice(1) : ["overview"])];
  if (!PAGES[route[1]]) route = [route[0], "overview"];
  if (route[0] !== state.queue || !source) { state.queue = route[0]; state.points = []; state.stats = null; connect(); }
  $("#queue").value = state.queue;
  page = PAGES[route[1]];
  document.title = `${page.label || route[3] || "Key"} · ${state.queue} · strictq`;
  nav();
  const mine = ++drawn;
  if (!state.queue && page !== PAGES.sqs) return; // that of SQS has queues that were never used
  if (before[1] !== route[1] || before[0] !== route[0]) main.replaceChildren(empty("Reading…"));
  try { await page.show(main, ...route.slice(2)); } catch (e) { if (mine === drawn) main.replaceChildren(el("div", { class: "banner bad" }, e.message)); }
  if (before.length && mine === drawn && before[1] !== route[1]) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
}

function live(on, text) { const e = $("#live"); e.classList.toggle("on", on); if (e.textContent !== text) e.textContent = text; }

function trouble(text) { const e = $("#trouble"), said = plain(text || ""); if (e.textContent !== said) e.textContent = said; }

function connect() {
  source?.close();
  trouble("");
  if (!state.queue) { live(false, "no queue"); main.replaceChildren(empty("There is no queue in the directories of this server.")); return; }
  const queue = state.queue;
  source = new EventSource(`events?queue=${encodeURIComponent(queue)}`);
  source.onmessage = (m) => {
    if (queue !== state.queue) return;
    const found = JSON.parse(m.data), first = !state.stats;
    setNow(found.now);
    trouble(found.error && `The queue cannot be read: ${found.error}. What the page shows may be old.`);
    if (found.error) { live(false, "cannot be read"); return; }
    const last = state.points.length ? state.points[state.points.length - 1].t : 0;
    state.points.push(...found.points.filter((p) => p.t > last));
    if (state.points.length > 600) state.points.splice(0, state.points.length - 600);
    state.stats = found.stats; state.has = found.has;
    live(true, "live");
    $("#foot").replaceChildren(el("span", {}, `A sample takes ${age(found.cost)} of processor time`), el("span", {}, `${state.actions ? "Actions are allowed and logged" : "Read-only: start the server with --allow-actions to change queues"}`));
    nav();
    if (first && page?.label && page !== PAGES.overview) page.show?.(main, ...route.slice(2))?.catch?.(() => {});
    page?.sampled?.();
    page?.tick?.(main);
  };
  source.onerror = () => { live(false, "not connected"); trouble("The connection to the server is lost. The page tries to connect again, and shows what it had read before."); };
}

async function queues() {
  const found = await api("queues");
  state.queues = found.queues; state.actions = found.actions;
  const mode = $("#mode");
  mode.textContent = state.actions ? "actions on" : "read-only"; mode.classList.toggle("actions", state.actions);
  const pick = $("#queue");
  if ([...pick.options].map((o) => o.value).join("\n") !== found.queues.map((q) => q.name).join("\n")) { pick.replaceChildren(...found.queues.map((q) => el("option", { value: q.name }, q.name))); pick.value = state.queue; }
}

$("#queue").addEventListener("change", (e) => { location.hash = "#" + encodeURIComponent(e.target.value) + "/" + (route[1] === "key" ? "lanes" : route[1]); });
$("#skip").addEventListener("click", (e) => { e.preventDefault(); main.focus(); });
const root = document.documentElement, stored = (() => { try { return localStorage.getItem("strictq-theme"); } catch { return null; } })();
if (stored) root.dataset.theme = stored;
$("#theme").addEventListener("click", () => {
  const now = root.dataset.theme || (matchMedia("(prefers-color-scheme:dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  try { localStorage.setItem("strictq-theme", root.dataset.theme); } catch { /* the choice lasts for this page */ }
});
addEventListener("hashchange", go);
addEventListener("resize", () => { scrolled = ""; nav(); });
addEventListener("pagehide", () => source?.close());
await queues();
await go();
setInterval(() => queues().then(() => { if (!state.queue && state.queues.length) go(); }).catch(() => {}), 5000);
