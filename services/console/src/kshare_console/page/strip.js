// How runs of a share-partition are drawn: a bar to scale, and a block for each run.
//
// A state has a mark, a pattern and a colour; the mark and the pattern suffice. The bar shows where the runs are and how
// long they are; blocks are never too small to be read or hit.

import { h, svg } from "./dom.js";
import { count, counted, offsets } from "./units.js";

export const STATES = {
    Available: { mark: "○", words: "waits for a worker" },
    Acquired: { mark: "◆", words: "a worker holds it" },
    Acknowledged: { mark: "✓", words: "done, until the records before it are too" },
    Archiving: { mark: "▽", words: "is being given up: its dead letter is not stored yet" },
    Archived: { mark: "✕", words: "given up: rejected, or delivered too often" },
};
const NAMES = Object.keys(STATES);
/** Which state a piece of the bar shows where it stands for several runs: the one that most wants to be seen. */
const PRECEDENCE = ["Acquired", "Archiving", "Available", "Archived", "Acknowledged"];

const WIDTH = 1000;
const HEIGHT = 30;
const PIECES = 250;

export function length(run) {
    return run.last_offset - run.first_offset + 1;
}

export function legend() {
    return h(
        "ul",
        { class: "legend", "aria-label": "Legend" },
        NAMES.map((name) =>
            h(
                "li",
                {},
                h("span", { class: `swatch ${name}`, "aria-hidden": "true" }, STATES[name].mark),
                h("span", {}, h("b", {}, name), `: ${STATES[name].words}`),
            ),
        ),
        h(
            "li",
            {},
            h("span", { class: "swatch NotFetched", "aria-hidden": "true" }, ""),
            h("span", {}, h("b", {}, "Not fetched"), ": behind the end offset, not delivered yet"),
        ),
    );
}

/** The whole strip to scale; `choose(offset)` is called with the offset that was pointed at. */
export function bar(strip, runs, chosen, choose) {
    const begin = strip.start_offset;
    const end = Math.max(strip.log_end_offset ?? strip.end_offset, strip.end_offset, begin + 1);
    const x = (offset) => ((offset - begin) / (end - begin)) * WIDTH;
    const label = `From offset ${count(begin)} to ${count(end)}: ${counted(runs.length, "run")}, then ${counted(Math.max(0, end - strip.end_offset), "record")} not fetched.`;
    const onclick = (event) => {
        const box = event.currentTarget.getBoundingClientRect();
        choose(Math.floor(begin + ((event.clientX - box.left) / box.width) * (end - begin)));
    };
    return svg(
        "svg",
        {
            class: "bar",
            viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
            preserveAspectRatio: "none",
            role: "img",
            "aria-label": label,
            onclick,
        },
        svg("defs", {}, NAMES.map(pattern)),
        svg("rect", { class: "NotFetched", x: 0, y: 0, width: WIDTH, height: HEIGHT }),
        merged(runs, x).map(({ state, from, to }) =>
            svg("rect", {
                class: `piece ${state}`,
                x: from.toFixed(2),
                y: 0,
                width: Math.max(to - from, 1).toFixed(2),
                height: HEIGHT,
                fill: `url(#pattern-${state})`,
            }),
        ),
        chosen
            ? svg("rect", {
                  class: "chosen",
                  x: x(chosen.first_offset).toFixed(2),
                  y: 1,
                  width: Math.max(x(chosen.last_offset + 1) - x(chosen.first_offset), 3).toFixed(2),
                  height: HEIGHT - 2,
              })
            : null,
    );
}

function pattern(name) {
    const size = { id: `pattern-${name}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" };
    const strokes = {
        Available: [],
        Acquired: [svg("path", { class: "ink", d: "M-2 2L2 -2M0 8L8 0M6 10L10 6" })],
        Acknowledged: [svg("path", { class: "ink", d: "M0 4H8" })],
        Archiving: [svg("path", { class: "ink", d: "M4 0V8" })],
        Archived: [svg("path", { class: "ink", d: "M0 8L8 0M0 0L8 8" })],
    }[name];
    return svg("pattern", size, svg("rect", { class: `paper ${name}`, width: 8, height: 8 }), strokes);
}

/** The runs as at most PIECES pieces: neighbours that are too small to be seen apart become one. */
function merged(runs, x) {
    const least = WIDTH / PIECES;
    const pieces = [];
    for (const run of runs) {
        const from = x(run.first_offset);
        const to = x(run.last_offset + 1);
        const last = pieces[pieces.length - 1];
        if (
            last &&
            (last.to - last.from < least || (to - from < least && last.state === run.state)) &&
            from - last.to < least
        ) {
            last.to = to;
            if (PRECEDENCE.indexOf(run.state) < PRECEDENCE.indexOf(last.state)) last.state = run.state;
        } else {
            pieces.push({ state: run.state, from, to });
        }
    }
    return pieces;
}

/** A block for each run, in a list of which the arrow keys choose; `choose(run)`. */
export function blocks(runs, chosen, choose) {
    const at = runs.indexOf(chosen);
    const go = (event, to) => {
        event.preventDefault();
        const next = runs[Math.max(0, Math.min(runs.length - 1, to))];
        choose(next);
        document.querySelector(`[data-run="${next.first_offset}"]`)?.focus();
    };
    const onkeydown = (event) => {
        const from = at === -1 ? 0 : at;
        if (event.key === "ArrowRight" || event.key === "ArrowDown") go(event, from + 1);
        else if (event.key === "ArrowLeft" || event.key === "ArrowUp") go(event, from - 1);
        else if (event.key === "Home") go(event, 0);
        else if (event.key === "End") go(event, runs.length - 1);
        else if (event.key === "Enter" || event.key === " ")
            go(
                event,
                runs.findIndex(({ first_offset }) => String(first_offset) === document.activeElement?.dataset.run),
            );
    };
    const tabbed = at === -1 ? 0 : at;
    return h(
        "div",
        { class: "blocks", role: "listbox", "aria-label": "Runs, from the start offset on", onkeydown },
        runs.map((run, index) => block(run, run === chosen, index === tabbed, choose)),
    );
}

function block(run, isChosen, isTabbed, choose) {
    const holder =
        run.state === "Acquired" ? `, held by ${run.client_id ?? run.member_id ?? "a member that left"}` : "";
    const label = `${run.state}, ${offsets(run.first_offset, run.last_offset)}, delivered ${counted(run.delivery_count, "time")}${holder}`;
    const size = Math.min(6, Math.floor(Math.log2(length(run))));
    return h(
        "div",
        {
            class: `block ${run.state} size-${size}`,
            role: "option",
            "aria-selected": String(isChosen),
            "aria-label": label,
            title: label,
            tabindex: isTabbed ? "0" : "-1",
            "data-key": run.first_offset,
            "data-run": run.first_offset,
            onclick: () => choose(run),
        },
        h("span", { class: "mark" }, STATES[run.state]?.mark ?? "?"),
        h("span", { class: "block-offset" }, count(run.first_offset)),
        h("span", { class: "block-count" }, run.delivery_count > 0 ? `×${run.delivery_count}` : ""),
    );
}
