// Keeps the page fresh: when the agent says that something changed, the same
// page is fetched again, and what differs is put in place. Texts are never
// made into markup here: the agent has escaped them, and parsing runs no
// scripts.
const every = 15000; // ms: what other hosts changed has no message
const live = document.getElementById("live");
let busy = false, again = false;

function age(from) {
  const s = Math.max(0, Math.floor((Date.now() - from) / 1000));
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 48 * 3600) return `${Math.floor(s / 3600)}h${two((s / 60) % 60)}m`;
  return `${Math.floor(s / 86400)}d${two((s / 3600) % 24)}h`;
}

// text changes a text only where it differs, so that nothing is laid out, and
// nothing read out, for nothing.
function text(e, to) {
  if (e.textContent !== to) e.textContent = to;
}

function tick(root) {
  for (const t of root.querySelectorAll("time[datetime]:not([data-clock])")) text(t, age(Date.parse(t.dateTime)));
}

// filter hides the rows that do not have what the reader types.
function filter(root) {
  const want = document.getElementById("filter")?.value.trim().toLowerCase() ?? "";
  let shown = 0, all = 0;
  for (const row of root.querySelectorAll("table[data-filter] tbody tr")) {
    all++;
    row.hidden = want !== "" && !row.textContent.toLowerCase().includes(want);
    if (!row.hidden) shown++;
  }
  // What is searched for must not stay below a fold.
  if (want !== "") {
    for (const d of root.querySelectorAll("details")) if (d.querySelector("table[data-filter] tbody tr:not([hidden])")) d.open = true;
  }
  const count = root.querySelector("#filter-count");
  if (count) text(count, want === "" ? "" : `${shown} of ${all} rows`);
}

function say(word, kind) {
  live.hidden = false;
  live.className = `pill ${kind}`;
  text(live, word);
}

const key = (n) => n.id || n.dataset?.key || "";

// patch makes have into what want is. What is the same already is not
// touched: rows keep their layout, and the reader the focus, the selection
// and the place.
function patch(have, want) {
  if (have.isEqualNode(want)) return;
  if (have.nodeType !== Node.ELEMENT_NODE) {
    have.nodeValue = want.nodeValue;
    return;
  }
  for (const a of want.attributes) if (have.getAttribute(a.name) !== a.value) have.setAttribute(a.name, a.value);
  for (const a of [...have.attributes]) if (!want.hasAttribute(a.name)) have.removeAttribute(a.name);
  const wanted = new Set([...want.children].map(key));
  const known = new Map();
  for (const e of [...have.children]) {
    if (key(e) === "") continue;
    if (wanted.has(key(e))) known.set(key(e), e);
    else e.remove();
  }
  let at = have.firstChild;
  for (const next of [...want.childNodes]) {
    const id = key(next);
    const same = id === "" ? at && key(at) === "" && at.nodeName === next.nodeName : known.has(id);
    if (!same) {
      have.insertBefore(document.adoptNode(next), at);
      continue;
    }
    const found = id === "" ? at : known.get(id);
    while (at && at !== found && key(at) === "") at = drop(at);
    if (at !== found && at?.nextSibling === found) at = drop(at); // its turn comes later
    if (at === found) at = at.nextSibling;
    else have.insertBefore(found, at);
    patch(found, next);
  }
  while (at) at = drop(at);
}

// drop takes a node out and returns the one behind it.
function drop(n) {
  const next = n.nextSibling;
  n.remove();
  return next;
}

// place brings what was fetched to where the reader is, and patches.
function place(next) {
  const content = document.getElementById("content");
  for (const d of content.querySelectorAll("details[id]")) {
    const fresh = next.querySelector(`#${CSS.escape(d.id)}`);
    if (fresh) fresh.open = d.open;
  }
  filter(next);
  tick(next);
  tick(content);
  patch(content, next);
}

async function refresh() {
  if (busy || document.hidden) {
    again = true;
    return;
  }
  busy = true;
  again = false;
  try {
    const answer = await fetch(location.pathname + location.search, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const doc = new DOMParser().parseFromString(await answer.text(), "text/html");
    const next = doc.getElementById("content");
    if (!next) throw new Error("no content");
    place(next);
    for (const id of ["state", "health"]) patch(document.getElementById(id), doc.getElementById(id));
    patch(document.querySelector("[data-clock]"), doc.querySelector("[data-clock]"));
    document.documentElement.dataset.refreshes = Number(document.documentElement.dataset.refreshes || 0) + 1;
  } catch {
    say("agent does not answer", "bad");
  }
  busy = false;
  if (again && !document.hidden) refresh();
}

// The stream says at once when the page is older than the agent's state.
let stream, retry;
function connect() {
  stream?.close();
  clearTimeout(retry);
  stream = new EventSource(`/live?at=${encodeURIComponent(document.body.dataset.at)}`);
  stream.onopen = () => say("live", "ok");
  stream.onmessage = (e) => {
    document.body.dataset.at = e.lastEventId;
    refresh();
  };
  stream.onerror = () => {
    say("reconnecting", "warn");
    // A refusal ends the stream for good; try again later.
    if (stream.readyState === EventSource.CLOSED) retry = setTimeout(connect, 5000);
  };
}

// scrollIntoView would also move the first stop of the Tab key.
const here = document.querySelector("nav [aria-current]");
if (here) here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.offsetLeft - 40;
// A command is copied, or at least selected: only some pages may write the clipboard.
document.addEventListener("click", (e) => {
  const command = e.target.closest?.("code.copy");
  if (!command) return;
  getSelection().selectAllChildren(command);
  navigator.clipboard?.writeText(command.textContent).then(() => say("copied", "ok"), () => {});
});
document.addEventListener("input", (e) => {
  if (e.target.id === "filter") filter(document);
});
// Nobody looks: nothing is asked.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    stream.close();
    clearTimeout(retry);
    return;
  }
  connect();
  refresh();
});
document.addEventListener("keydown", (e) => {
  if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA)$/.test(e.target.tagName)) return;
  const input = document.getElementById("filter");
  if (!input) return;
  e.preventDefault();
  input.focus();
});
setInterval(() => {
  if (!document.hidden) tick(document);
}, 1000);
setInterval(() => {
  if (!document.hidden) refresh();
}, every);
connect();
