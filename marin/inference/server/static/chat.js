// The chat page: a conversation that its tab keeps when it is loaded again, answers streamed from /v1/chat/completions, markdown drawn as DOM nodes.
// A model's text is never parsed as HTML: every node is made here, and text enters the page as text.

const byId = (id) => document.getElementById(id);
const list = byId("messages"), form = byId("form"), box = byId("text"), problem = byId("problem"), status = byId("status");
let conversation = []; // another array for each chat: an answer that is still being written belongs to the one it was asked in
let model = null, running = null;
const COMPLETE = "The answer is complete.";
// What a person can do about a refusal, by its code.
const HELP = {
  context_length_exceeded: "Write less, lower the longest answer in the settings, or begin a new chat.",
  model_not_found: "Retry to ask that one.",
};

// ---- markdown ---------------------------------------------------------------------------------------------------

const make = (tag, ...children) => {
  const node = document.createElement(tag);
  node.append(...children);
  return node;
};

// A star between two signs of a word or a number, or with a space inside of it, is a product: 2*3*4, 2 *3 * 4.
const INLINE = /`([^`]+)`|\*\*\*([^*\s](?:[^*]*[^*\s])?)\*\*\*|\*\*([^*]+(?:\*[^*]+)*)\*\*|(?<!\w)\*([^*\s](?:[^*]*[^*\s])?)\*(?!\w)|\[([^\]]+)\]\(([^)\s]+)\)/;

function inline(text) {
  const nodes = [];
  let rest = text;
  for (let found = INLINE.exec(rest); found; found = INLINE.exec(rest)) {
    nodes.push(rest.slice(0, found.index));
    const [whole, code, both, strong, emphasis, label, address] = found;
    if (code !== undefined) nodes.push(make("code", code));
    else if (both !== undefined) nodes.push(make("strong", make("em", ...inline(both))));
    else if (strong !== undefined) nodes.push(make("strong", ...inline(strong)));
    else if (emphasis !== undefined) nodes.push(make("em", ...inline(emphasis)));
    else nodes.push(link(label, address));
    rest = rest.slice(found.index + whole.length);
  }
  nodes.push(rest);
  return nodes.filter((node) => node !== "");
}

function link(label, address) {
  let url;
  try { url = new URL(address); } catch { return `[${label}](${address})`; }
  if (url.protocol !== "https:" && url.protocol !== "http:") return `[${label}](${address})`;
  const node = make("a", label);
  node.href = url.href;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  return node;
}

function lines(texts) {
  return texts.flatMap((text, index) => (index ? [make("br"), ...inline(text)] : inline(text)));
}

// What stands between a row's bars, but for one at either end; a bar behind a backslash is text.
const cells = (row) => row.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

// The alignment of each column where the second of two rows makes a table of the first; null where it does not.
function columns(head, below) {
  if (!head.includes("|") || !below?.includes("|")) return null;
  const marks = cells(below);
  if (marks.length !== cells(head).length || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
  return marks.map((mark) => (mark.endsWith(":") ? (mark.startsWith(":") ? "center" : "right") : ""));
}

function table(head, aligned, rows) {
  const line = (tag, row) => {
    const said = cells(row);
    return make("tr", ...aligned.map((align, column) => {
      const cell = make(tag, ...inline(said[column] ?? ""));
      cell.style.textAlign = align;
      return cell;
    }));
  };
  const box = make("div", make("table", make("thead", line("th", head)), make("tbody", ...rows.map((row) => line("td", row)))));
  box.className = "table";
  box.tabIndex = 0; // it scrolls where it is wider than the page
  box.role = "group";
  box.ariaLabel = "Table";
  return box;
}

// A block of code begins with three or more of these, and ends with a line of as many and nothing else.
const FENCE = /^\s*(`{3,})[^`]*$/;
const ITEM = /^(\s*)([-*+]|\d+[.)])\s+(.*)$/;

// The lists that rows make: an item that stands further in than the one above begins a list inside of that item.
function lists(rows) {
  const found = [], open = []; // the lists that a row may go on with, the outermost first
  for (const row of rows) {
    const [, space, mark, text] = ITEM.exec(row) ?? [];
    if (mark === undefined) {
      if (row.trim()) open.at(-1).node.lastElementChild.append(make("br"), ...inline(row.trim()));
      continue;
    }
    const tag = /\d/.test(mark) ? "ol" : "ul", indent = space.length;
    while (open.length > 1 && indent < open.at(-1).indent) open.pop();
    const isInside = open.length > 0 && indent >= open.at(-1).indent + 2;
    if (isInside || open.at(-1)?.node.localName !== tag) {
      if (!isInside) open.pop();
      const node = make(tag);
      if (tag === "ol") node.start = parseInt(mark, 10);
      if (open.length) open.at(-1).node.lastElementChild.append(node);
      else found.push(node);
      open.push({ indent, node });
    }
    open.at(-1).node.append(make("li", ...inline(text)));
  }
  return found;
}

function markdown(text) {
  const blocks = [], rows = text.split("\n");
  const kind = (at) => {
    const row = rows[at];
    return FENCE.test(row) ? "code" : /^#{1,6}\s/.test(row) ? "heading" : /^\s*([-*_])(?:\s*\1){2,}\s*$/.test(row) ? "rule" : ITEM.test(row) ? "list"
      : /^>\s?/.test(row) ? "quote" : columns(row, rows[at + 1]) ? "table"
      : row.trim() ? "text" : "blank";
  };
  for (let at = 0; at < rows.length;) {
    const what = kind(at), first = at;
    if (what === "blank") { at += 1; continue; }
    if (what === "code") {
      const [, ticks] = FENCE.exec(rows[at]);
      const ends = (row) => row.trim().startsWith(ticks) && /^`+$/.test(row.trim());
      at += 1;
      while (at < rows.length && !ends(rows[at])) at += 1;
      const block = make("pre", make("code", rows.slice(first + 1, at).join("\n")));
      block.tabIndex = 0;
      blocks.push(block);
      at += 1;
      continue;
    }
    if (what === "heading") {
      const level = Math.min(4, rows[at].match(/^#+/)[0].length + 1);
      blocks.push(make(`h${level}`, ...inline(rows[at].replace(/^#+\s+/, ""))));
      at += 1;
      continue;
    }
    if (what === "rule") {
      blocks.push(make("hr"));
      at += 1;
      continue;
    }
    if (what === "table") {
      at += 2;
      while (at < rows.length && ["text", "table"].includes(kind(at))) at += 1;
      blocks.push(table(rows[first], columns(rows[first], rows[first + 1]), rows.slice(first + 2, at)));
      continue;
    }
    if (what === "list") { // with an item's further lines, and with a blank one between two items
      const goesOn = () => kind(at) === "list" || /^\s+\S/.test(rows[at]) && kind(at) === "text"
        || kind(at) === "blank" && at + 1 < rows.length && kind(at + 1) === "list";
      while (at < rows.length && goesOn()) at += 1;
      blocks.push(...lists(rows.slice(first, at)));
      continue;
    }
    while (at < rows.length && kind(at) === what) at += 1;
    const group = rows.slice(first, at);
    if (what === "quote") {
      blocks.push(make("blockquote", ...lines(group.map((row) => row.replace(/^>\s?/, "")))));
    } else {
      blocks.push(make("p", ...lines(group)));
    }
  }
  return blocks;
}

// ---- the conversation -------------------------------------------------------------------------------------------

function show(message) {
  const body = make("div"), who = make("p", message.role === "user" ? "You" : "Model");
  body.className = "body";
  who.className = "who";
  const item = make("li", who, body);
  item.className = `message ${message.role}`;
  list.append(item);
  draw(item, message);
  return item;
}

// Changes the list; who has read to its end sees its end afterwards too.
function keepEnd(change) {
  const near = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
  change();
  if (near) list.scrollTop = list.scrollHeight;
}

function draw(item, message) {
  const body = item.querySelector(".body");
  keepEnd(() => {
    if (message.role === "user") body.textContent = message.content;
    else body.replaceChildren(...markdown(message.content));
  });
}

function offerRetry() {
  for (const old of list.querySelectorAll(".actions")) old.remove();
  const last = list.lastElementChild;
  if (!last || running) return;
  const button = make("button", "Retry");
  button.type = "button";
  button.className = "quiet";
  button.addEventListener("click", retry);
  const actions = make("div", button);
  actions.className = "actions";
  keepEnd(() => last.append(actions));
}

// The model would have gone on; what a person can do about it depends on which limit it was.
function cutOff() {
  const note = make("p", "Cut off here: the answer has reached its longest, or the model's context is full.");
  note.className = "cut";
  return note;
}

function retry() {
  if (running) return;
  if (conversation.at(-1)?.role === "assistant") answer({ message: conversation.pop(), item: list.lastElementChild });
  else answer();
}

// What the field `id` says, within its limits, which it then shows; `otherwise` where it is empty.
function number(id, least, most, otherwise) {
  const said = Number.parseFloat(byId(id).value), value = Math.min(most, Math.max(least, said));
  if (!Number.isFinite(said)) return otherwise;
  if (value !== said) byId(id).value = value;
  return value;
}

// Asks for the next answer; one that it is to replace is put back where nothing comes in its place.
async function answer(replaced = null) {
  problem.textContent = "";
  replaced?.item.remove();
  const reply = { role: "assistant", content: "", token_ids: [] }; // of what a call of the calculator was made, only tokens say
  const chat = conversation, longest = number("max-tokens", 1, 100000, null);
  const stopper = new AbortController();
  running = stopper;
  setRunning(true);
  let item = null, frame = 0, isCut = false;
  const drawSoon = () => { frame ||= requestAnimationFrame(() => { frame = 0; if (item) draw(item, reply); }); };
  try {
    if (model === null) await introduce(stopper.signal);
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      signal: stopper.signal,
      body: JSON.stringify({
        model, messages: chat, stream: true, return_token_ids: true,
        temperature: number("temperature", 0, 2, 0.6),
        top_k: Math.round(number("top-k", 1, 1000, 50)),
        ...(longest === null ? {} : { max_tokens: Math.round(longest) }),
      }),
    });
    if (!response.ok) {
      const said = await response.json().catch(() => null); // a proxy's own page is no JSON
      const message = said?.error?.message ?? `The server answered with ${response.status}. Retry in a moment.`;
      const help = HELP[said?.error?.code];
      if (said?.error?.code === "model_not_found") { // the server was started again with another one, whose tokens are others
        model = null;
        for (const message of [...chat, replaced?.message]) delete message?.token_ids;
      }
      const error = new Error(help ? `${message}. ${help}` : message);
      throw Object.assign(error, { isRefusal: response.status === 400 });
    }
    item = show(reply);
    item.classList.add("writing");
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      const text = event.choices?.[0]?.delta?.content;
      reply.token_ids.push(...(event.choices?.[0]?.token_ids ?? []));
      if (text) { reply.content += text; drawSoon(); }
      isCut ||= event.choices?.[0]?.finish_reason === "length";
    }
    status.textContent = COMPLETE;
  } catch (error) {
    const isAbort = error.name === "AbortError";
    status.textContent = isAbort ? "Stopped." : "";
    if (!isAbort && chat === conversation) {
      problem.textContent = error instanceof TypeError ? "The server cannot be reached. Retry when it runs." : sentence(error.message);
      if (error.isRefusal && !replaced) takeBack();
    }
  }
  cancelAnimationFrame(frame);
  if (item) {
    item.classList.remove("writing");
    if (reply.content) { chat.push(reply); draw(item, reply); } else item.remove();
    if (reply.content && isCut) { keepEnd(() => item.append(cutOff())); status.textContent = "The answer is cut off."; }
    if (!reply.content && status.textContent === COMPLETE) problem.textContent = "The model had nothing to say. Retry, or write more.";
  }
  if (!reply.content && replaced && chat === conversation) {
    chat.push(replaced.message);
    keepEnd(() => list.append(replaced.item));
  }
  if (running === stopper) running = null;
  setRunning(false);
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1); // what the server says begins as its log's lines do

// A message that the server will never take goes back to where it can be changed.
function takeBack() {
  if (conversation.at(-1)?.role !== "user") return;
  const { content } = conversation.pop();
  list.lastElementChild.remove();
  box.value ||= content;
  grow();
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection ended before the answer did. Retry.");
    buffer += value;
    const parts = buffer.split("\n\n");
    buffer = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

// ---- what a person does -----------------------------------------------------------------------------------------

function setRunning(is) {
  byId("send").hidden = is;
  byId("stop").hidden = !is;
  if (is) status.textContent = "The model is writing.";
  else keep(); // what an answer is to replace is kept until there is one
  offerRetry();
  const at = document.activeElement; // what is hidden or taken away loses the focus
  if (at === document.body || at.hidden) box.focus({ preventScroll: true });
}

function grow() {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function send() {
  const text = box.value.trim();
  if (!text || running) return;
  const last = conversation.at(-1);
  if (last?.role === "user") { // it has no answer, and two turns of a person in a row are no conversation
    last.content += `\n\n${text}`;
    draw(list.lastElementChild, last);
  } else {
    conversation.push({ role: "user", content: text });
    show(conversation.at(-1));
  }
  list.scrollTop = list.scrollHeight;
  box.value = "";
  grow();
  keep();
  answer();
}

const stop = () => running?.abort();
form.addEventListener("submit", (event) => { event.preventDefault(); send(); });
byId("stop").addEventListener("click", stop);
byId("new").addEventListener("click", () => {
  stop();
  conversation = [];
  list.replaceChildren();
  problem.textContent = "";
  keep();
  box.focus();
});
box.addEventListener("input", grow);
box.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });

// Which model answers: asked at first, and again before a message where the server was not there yet.
async function introduce(signal) {
  const answered = await fetch("/v1/models", { signal });
  const described = (await answered.json()).data[0], longest = byId("max-tokens");
  model = described.id;
  longest.placeholder = Math.min(longest.placeholder, described.max_model_len ?? Infinity);
  byId("model").textContent = model;
  document.title = `Chat with ${model}`;
}

// Under the model's name, as tokens of an answer are those of its own tokenizer. Another tab has a conversation of its own.
function keep() {
  try {
    if (model !== null) sessionStorage.setItem(model, JSON.stringify(conversation));
  } catch { } // a browser that stores nothing shows a new chat when it is loaded again
}

function takeUp() {
  try {
    conversation = JSON.parse(sessionStorage.getItem(model)) ?? [];
  } catch { } // as above
  conversation.forEach(show);
  offerRetry();
  list.scrollTop = list.scrollHeight;
}

try {
  await introduce();
  takeUp();
} catch {
  problem.textContent = "The server cannot be reached.";
}
box.focus();
