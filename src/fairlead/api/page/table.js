// The document: elements, and tables that change only where their content does.

import { shown } from "./values.js";

const MOST_ROWS = 100; // of a table
const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

// Children that are strings become text, never markup.
export function make(name, attributes = {}, ...children) {
  return dressed(document.createElement(name), attributes, children);
}

export function draw(name, attributes = {}, ...children) {
  return dressed(document.createElementNS(SVG, name), attributes, children);
}

function dressed(node, attributes, children) {
  set(node, attributes);
  node.append(...children);
  return node;
}

// Set attributes that differ; null takes one away.
export function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
  }
}

export function write(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

export function tag(value, level) {
  return make("span", { class: "tag", "data-level": level }, value);
}

// A number of a cell: marked where it is not 0 and that is worth a look, faint where it is 0.
export function figure(value, level = null) {
  return value ? { parts: [shown(value)], level } : nothing("0");
}

export function nothing(said = "–") {
  return { parts: [said], faint: true };
}

// Columns are {label, class, cell}. `cell` makes the content of a row's cell: a text, parts (texts
// and elements), {parts, level, faint}, or undefined if it has seen to the element itself. Rows
// and cells stay the same elements while their key does, so that a reader's place in them stays.
export class Table {
  constructor(place, caption, empty, columns) {
    this.place = place;
    this.columns = columns;
    this.rows = new Map();
    this.body = make("tbody", { role: "rowgroup" });
    const heads = columns.map((column) =>
      make("th", { scope: "col", role: "columnheader", class: column.class ?? null }, column.label),
    );
    // The roles are those that the elements have anyway; they keep them when a narrow window shows
    // the table as blocks.
    this.table = make(
      "table",
      { role: "table" },
      make("caption", {}, caption),
      make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)),
      this.body,
    );
    this.empty = make("p", { class: "empty" }, empty);
    this.more = make("p", { class: "more" }, "More are in the API.");
    this.place.replaceChildren(make("p", { class: "empty" }, "Not read yet."));
  }

  show(items, more) {
    const cut = items.slice(0, MOST_ROWS);
    const gone = new Set(this.rows.keys());
    cut.forEach((item, index) => {
      const row = this.row(item.key);
      gone.delete(item.key);
      this.columns.forEach((column, place) =>
        fill(row.cells[place], column.cell(item, row.cells[place])),
      );
      const there = this.body.children[index] ?? null;
      if (there !== row) this.body.insertBefore(row, there);
    });
    for (const key of gone) {
      this.rows.get(key).remove();
      this.rows.delete(key);
    }
    this.more.hidden = !more && cut.length === items.length;
    const wanted = items.length ? [this.table, this.more] : [this.empty];
    if (this.place.firstChild !== wanted[0]) this.place.replaceChildren(...wanted);
  }

  row(key) {
    let row = this.rows.get(key);
    if (!row) {
      const cells = this.columns.map((column, place) =>
        place
          ? make("td", { role: "cell", class: column.class ?? null, "data-label": column.label })
          : make("th", { scope: "row", role: "rowheader", class: "name" }),
      );
      row = make("tr", { role: "row" }, ...cells);
      this.rows.set(key, row);
    }
    return row;
  }
}

function fill(cell, value) {
  if (value === undefined) return;
  const content =
    typeof value === "string"
      ? { parts: [value] }
      : Array.isArray(value)
        ? { parts: value }
        : value;
  const holder = make("div", {}, ...content.parts);
  if (!sameChildren(holder, cell)) cell.replaceChildren(...holder.childNodes);
  cell.classList.toggle("void", cell.textContent === "");
  cell.classList.toggle("faint", content.faint === true);
  set(cell, { "data-level": content.level ?? null });
}

function sameChildren(a, b) {
  const [these, those] = [a.childNodes, b.childNodes];
  return (
    these.length === those.length &&
    [...these].every((node, index) => node.isEqualNode(those[index]))
  );
}
