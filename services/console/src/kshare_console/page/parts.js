// Parts that several pages show: tables, cards, errors, ages that go on, links to what has a page.

import { advice } from "./api.js";
import { h, named, sentence, visible } from "./dom.js";
import { now } from "./live.js";
import { clockTime, duration, isKnown, time, UNKNOWN } from "./units.js";

/** "#/groups/a%2Fb": the place of a page, of parts from outside. */
export function place(...parts) {
    return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function stripPlace(run) {
    const offset = isKnown(run.first_offset) ? `?offset=${run.first_offset}` : "";
    return `${place("groups", run.group_id, run.topic, run.partition)}${offset}`;
}

/** The hash of what a problem is about, or null. */
export function placeOf(where) {
    if (!where) return null;
    if (where.page === "overview") return `${place()}?role=${encodeURIComponent(where.role)}`;
    return place(where.page);
}

export function link(target, ...children) {
    return h("a", { href: target }, ...children);
}

export function partitionName(topic, partition) {
    return named(`${topic}-${partition}`);
}

/** How long ago that is; it goes on by itself (`tick`). */
export function since(ms) {
    if (!isKnown(ms)) return UNKNOWN;
    return h("time", { "data-since": ms, title: time(ms) }, duration(now() - ms));
}

/** How long until then; "over" when it has passed. */
export function until(ms) {
    if (!isKnown(ms)) return UNKNOWN;
    return h("time", { "data-until": ms, title: time(ms) }, left(ms));
}

function left(ms) {
    return ms > now() ? duration(ms - now()) : "over";
}

/** Moves all ages that are shown; called each second. */
export function tick() {
    for (const element of document.querySelectorAll("[data-since]")) {
        element.textContent = duration(now() - Number(element.dataset.since));
    }
    for (const element of document.querySelectorAll("[data-until]")) {
        element.textContent = left(Number(element.dataset.until));
    }
}

/**
 * A table; on a phone each row is a card. `columns`: {title, cell(row), number?}; `keyOf(row)` names a row, so that it
 * stays the same element when the table changes.
 */
export function table(caption, columns, rows, keyOf, attributesOf = () => ({})) {
    const head = columns.map(({ title, number }) => h("th", { scope: "col", class: number ? "number" : null }, title));
    const body = rows.map((row) =>
        h(
            "tr",
            { "data-key": keyOf(row), ...attributesOf(row) },
            columns.map(({ title, cell, number }) => cellOf(cell(row), title, number)),
        ),
    );
    return h(
        "div",
        { class: "wide" },
        h(
            "table",
            {},
            h("caption", { class: "unseen" }, caption),
            h("thead", {}, h("tr", {}, head)),
            h("tbody", {}, body),
        ),
    );
}

/** A cell; one without anything in it is left out where rows are cards. */
function cellOf(content, title, number) {
    const kinds = [number ? "number" : null, content === "–" || content === "" ? "none" : null].filter(Boolean);
    return h("td", { class: kinds.join(" ") || null, "data-label": title }, h("span", {}, content));
}

/** Names with their values, such as the details of a run. */
export function facts(pairs) {
    return h(
        "dl",
        { class: "facts" },
        pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
    );
}

/** One large figure with its name. */
export function figure(name, value, note = null, kind = null) {
    return h(
        "div",
        { class: kind ? `figure ${kind}` : "figure", "data-figure": name },
        h("span", { class: "figure-name" }, name),
        h("span", { class: "figure-value" }, value),
        note ? h("span", { class: "figure-note" }, note) : null,
    );
}

/** A state in words with a mark, so that it needs no colour. */
export function state(words, kind) {
    const mark = { good: "●", busy: "◐", bad: "▲", none: "○" }[kind] ?? "○";
    return h(
        "span",
        { class: `state ${kind}` },
        h("span", { class: "mark", "aria-hidden": "true" }, mark),
        visible(words),
    );
}

export function nothing(words, next) {
    return h("div", { class: "empty" }, h("p", { class: "empty-words" }, words), next ? h("p", {}, next) : null);
}

export function loading() {
    return h("p", { class: "loading", role: "status" }, "Loading …");
}

/** A failure instead of figures: what happened, and what to do. */
export function failed(failure) {
    return h(
        "div",
        { class: "failure", role: "alert" },
        h("p", {}, h("strong", {}, sentence(failure.message))),
        h("p", {}, advice(failure)),
        h("p", {}, link("#/", "Go to the overview")),
    );
}

export function section(title, ...children) {
    return h("section", { "data-key": `section ${title}` }, h("h2", {}, title), ...children);
}

/** The way from the overview to this page. */
export function trail(...steps) {
    return h(
        "nav",
        { class: "trail", "aria-label": "Where this page is" },
        steps.map(([words, target]) => h("span", {}, target ? link(target, words) : words)),
    );
}

export function staleWords(since_ms) {
    return `stale since ${clockTime(since_ms)}`;
}
