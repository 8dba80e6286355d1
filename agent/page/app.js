// Keeps the page fresh: when the agent says that something changed, the same
// page is fetched again and its content put in place. Texts are never made
// into markup here: the agent has escaped them, and parsing runs no scripts.
const every = 15000; // ms: what other hosts changed has no message
const live = document.getElementById("live");
let busy = false, again = false;

function age(from) {
  const s = Math.max(0, Math.floor((Date.now() - from) / 1000));
  if (s < 1) return "now";
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${s % 60} s`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}

function tick() {
  for (const t of document.querySelectorAll("time[datetime]:not([data-clock])")) {
    const text = age(Date.parse(t.dateTime));
    if (t.textContent !== text) t.textContent = text;
  }
}

function filter() {
  const input = document.getElementById("filter");
  if (!input) return;
  const want = input.value.trim().toLowerCase();
  let shown = 0, all = 0;
  for (const row of document.querySelectorAll("table[data-filter] tbody tr")) {
    all++;
    row.hidden = want !== "" && !row.textContent.toLowerCase().includes(want);
    if (!row.hidden) shown++;
  }
  const count = document.getElementById("filter-count");
  const text = want === "" ? "" : `${shown} of ${all} rows`;
  if (count.textContent !== text) count.textContent = text;
}

function say(text, kind) {
  live.hidden = false;
  live.className = `pill ${kind}`;
  if (live.textContent !== text) live.textContent = text;
}

// place keeps what the reader is doing: open details, scroll positions, the
// filter with its cursor, and the focus.
function place(next) {
  const content = document.getElementById("content");
  const open = new Set([...content.querySelectorAll("details[open]")].map((d) => d.id));
  const scrolls = [...content.querySelectorAll(".scroll")].map((e) => [e.getAttribute("aria-label"), e.scrollLeft]);
  const focusable = "a[href], input, summary, [tabindex]";
  const index = [...content.querySelectorAll(focusable)].indexOf(document.activeElement);
  const input = content.querySelector("#filter");
  content.replaceWith(next);
  const fresh = next.querySelector("#filter");
  if (input && fresh) fresh.replaceWith(input);
  for (const d of next.querySelectorAll("details")) d.open = open.has(d.id);
  for (const e of next.querySelectorAll(".scroll")) {
    const was = scrolls.find(([label]) => label === e.getAttribute("aria-label"));
    if (was) e.scrollLeft = was[1];
  }
  if (index >= 0) [...next.querySelectorAll(focusable)][index]?.focus({ preventScroll: true });
  filter();
}

async function refresh() {
  if (busy || document.hidden) {
    again = true;
    return;
  }
  busy = true;
  again = false;
  try {
    const answer = await fetch(location.pathname, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const doc = new DOMParser().parseFromString(await answer.text(), "text/html");
    const next = doc.getElementById("content");
    if (!next) throw new Error("no content");
    place(document.adoptNode(next));
    const pill = doc.querySelector("#where .pill:not(#live)");
    if (pill) document.querySelector("#where .pill:not(#live)").replaceWith(document.adoptNode(pill));
    const clock = doc.querySelector("[data-clock]");
    if (clock) document.querySelector("[data-clock]").replaceWith(document.adoptNode(clock));
    document.documentElement.dataset.refreshes = Number(document.documentElement.dataset.refreshes || 0) + 1;
  } catch {
    say("agent does not answer", "bad");
  }
  busy = false;
  if (again && !document.hidden) refresh();
}

let stream;
function connect() {
  stream = new EventSource("/live");
  stream.onopen = () => {
    say("live", "ok");
    refresh();
  };
  stream.onmessage = refresh;
  stream.onerror = () => {
    say("reconnecting", "warn");
    // A refusal ends the stream for good; try again later.
    if (stream.readyState === EventSource.CLOSED) setTimeout(connect, 5000);
  };
}

document.addEventListener("input", (e) => {
  if (e.target.id === "filter") filter();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
document.addEventListener("keydown", (e) => {
  if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA)$/.test(e.target.tagName)) return;
  const input = document.getElementById("filter");
  if (!input) return;
  e.preventDefault();
  input.focus();
});
setInterval(tick, 1000);
setInterval(() => {
  if (!document.hidden) refresh();
}, every);
connect();
