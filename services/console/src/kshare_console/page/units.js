// Figures as people read them: 12,345 · 1.2 GB · 4 m 25 s · 0.4/s. What is not known is "unknown", never 0.

export const UNKNOWN = "unknown";

const INTEGER = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SMALL = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const BYTES = ["B", "kB", "MB", "GB", "TB", "PB"];

export function count(value) {
    return isKnown(value) ? INTEGER.format(value) : UNKNOWN;
}

/** "1 record", "12,345 records". */
export function counted(value, one, many = `${one}s`) {
    return isKnown(value) ? `${count(value)} ${value === 1 ? one : many}` : `${UNKNOWN} ${many}`;
}

export function rate(value) {
    if (!isKnown(value)) return UNKNOWN;
    return `${value !== 0 && Math.abs(value) < 100 ? SMALL.format(value) : INTEGER.format(value)}/s`;
}

export function bytes(value) {
    if (!isKnown(value)) return UNKNOWN;
    let unit = 0;
    let scaled = value;
    while (scaled >= 1000 && unit < BYTES.length - 1) {
        scaled /= 1000;
        unit += 1;
    }
    return `${unit === 0 ? INTEGER.format(scaled) : scaled >= 100 ? INTEGER.format(scaled) : SMALL.format(scaled)} ${BYTES[unit]}`;
}

/** Two units at most: 850 ms, 12 s, 4 m 25 s, 2 h 5 m, 3 d 4 h. */
export function duration(ms) {
    if (!isKnown(ms)) return UNKNOWN;
    if (ms < 0) return "0 s";
    if (ms < 1000) return `${Math.round(ms)} ms`;
    const seconds = Math.floor(ms / 1000);
    const parts = [
        [Math.floor(seconds / 86400), "d"],
        [Math.floor(seconds / 3600) % 24, "h"],
        [Math.floor(seconds / 60) % 60, "m"],
        [seconds % 60, "s"],
    ];
    const first = parts.findIndex(([amount]) => amount > 0);
    return parts
        .slice(first, first + 2)
        .filter(([amount], at) => at === 0 || amount > 0)
        .map(([amount, unit]) => `${amount} ${unit}`)
        .join(" ");
}

/** 2026-11-26 04:19:34, in the time zone of the browser. */
export function time(ms) {
    if (!isKnown(ms)) return UNKNOWN;
    const at = new Date(ms);
    const two = (value) => String(value).padStart(2, "0");
    const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
    return `${day} ${clockTime(ms)}`;
}

export function clockTime(ms) {
    const at = new Date(ms);
    return [at.getHours(), at.getMinutes(), at.getSeconds()].map((value) => String(value).padStart(2, "0")).join(":");
}

/** "7" or "7 to 12". */
export function offsets(first, last) {
    return first === last ? count(first) : `${count(first)} to ${count(last)}`;
}

export function isKnown(value) {
    return typeof value === "number" && Number.isFinite(value);
}
