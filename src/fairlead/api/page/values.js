// Values: whatever comes, what is shown is a sane number or a short text.

const LONGEST = 300; // characters of one text
const MOST = 50; // texts of one list

// -- from JSON -----------------------------------------------------------------------------------

// The objects of an array.
export function list(value) {
  return Array.isArray(value) ? value.filter((each) => each && typeof each === "object") : [];
}

export function texts(value) {
  return Array.isArray(value) ? value.slice(0, MOST).map(text) : [];
}

// Characters that are not seen, or turn the direction of what follows, would let one name look like
// another.
export function text(value) {
  const whole = String(value ?? "");
  const cut = whole.slice(0, LONGEST);
  const seen = cut.replace(/[\p{Cc}\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/gu, "\ufffd");
  return cut.length < whole.length ? `${seen}…` : seen;
}

// The sum of one figure of all rows.
export function total(rows, figure) {
  return rows.reduce((sum, row) => sum + figure(row), 0);
}

export function amount(value) {
  return typeof value === "number" && Number.isFinite(value) ? Math.max(0, value) : null;
}

export function count(value) {
  return Math.floor(amount(value) ?? 0);
}

export function part(value) {
  return amount(value) === null ? null : Math.min(1, amount(value));
}

// Unix seconds of a moment in RFC 3339.
export function moment(value) {
  const at = typeof value === "string" ? Date.parse(value) : NaN;
  return Number.isNaN(at) ? null : at / 1000;
}

// Clocks differ: what lies ahead of ours has no age, never a negative one.
export function age(value, now) {
  return moment(value) === null ? null : Math.max(0, now - moment(value));
}

export function ahead(value, now) {
  return moment(value) === null ? null : Math.max(0, moment(value) - now);
}

// -- for people

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function shown(value) {
  return value < 1e6 ? WHOLE.format(value) : SHORT.format(value);
}

export function perSecond(value) {
  if (value >= 1e5) return SHORT.format(value);
  if (value >= 100) return WHOLE.format(value);
  if (value >= 10) return value.toFixed(1);
  if (value > 0 && value < 0.1) return "<0.1";
  return String(Math.round(value * 10) / 10);
}

export function percent(value) {
  return value > 0 && value < 0.001 ? "<0.1%" : `${(value * 100).toFixed(1)}%`;
}

export function lasting(value) {
  if (value === null) return "–";
  const whole = (unit) => shown(Math.floor(value / unit));
  const rest = (unit, below) => Math.floor((value % unit) / below);
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 60) return `${whole(1)} s`;
  if (value < 3600) return `${whole(60)} min ${rest(60, 1)} s`;
  if (value < 86400) return `${whole(3600)} h ${rest(3600, 60)} min`;
  return `${whole(86400)} d ${rest(86400, 3600)} h`;
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

// "1 queue", "2 queues", "200 queues and more"
export function many(value, one, more = false) {
  return `${shown(value)} ${value === 1 ? one : `${one}s`}${more ? " and more" : ""}`;
}
