// Drawings: the line of a rate, and the bar of a share against the fair one.

import { draw, set } from "./table.js";
import { total } from "./values.js";

const SAMPLES = 90; // of a rate; with one every two seconds, three minutes

// The latest samples of one figure, the newest at the right edge.
export class Sparkline {
  constructor() {
    this.values = [];
    this.area = draw("path", { class: "area" });
    this.line = draw("path", { class: "line" });
    const place = { viewBox: "0 0 100 40", preserveAspectRatio: "none", "aria-hidden": "true" };
    this.art = draw("svg", place, this.area, this.line);
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > SAMPLES) this.values.shift();
    const top = Math.max(1, ...this.values);
    const first = SAMPLES - this.values.length;
    const x = (index) => (((first + index) / (SAMPLES - 1)) * 100).toFixed(2);
    const points = this.values.map(
      (each, index) => `${x(index)} ${(38 - (34 * each) / top).toFixed(2)}`,
    );
    const path = points.length > 1 ? `M${points.join("L")}` : "";
    set(this.line, { d: path });
    set(this.area, { d: path && `${path}L100 40L${x(0)} 40Z` });
  }

  // The mean of the last three: a figure that changes less than its line.
  get calm() {
    const last = this.values.slice(-3);
    return last.length ? total(last, Number) / last.length : null;
  }
}

// What a tenant got, a mark where its fair share ends, and in between what it is short of.
export class Bar {
  constructor() {
    const track = draw("rect", { class: "track", y: 4, height: 10, rx: 2, width: "100%" });
    this.short = draw("rect", { class: "short", y: 4, height: 10, rx: 2 });
    this.got = draw("rect", { class: "got", y: 4, height: 10, rx: 2 });
    this.fair = draw("rect", { class: "fair", height: 18 });
    this.art = draw(
      "svg",
      { class: "bar", "aria-hidden": "true" },
      track,
      this.short,
      this.got,
      this.fair,
    );
  }

  // All parts of one whole, which fills the bar.
  show(share, fair, short, whole) {
    const width = (value) => `${(Math.min(1, value / whole) * 100).toFixed(2)}%`;
    set(this.got, { width: width(share ?? 0) });
    set(this.short, { width: width(short > 0 ? fair : 0) });
    // At the right end the mark stays within the bar.
    const end = fair !== null && fair / whole > 0.99 ? "translate(-2)" : null;
    set(this.fair, { x: width(fair ?? 0), width: fair === null ? 0 : 2, transform: end });
  }
}
