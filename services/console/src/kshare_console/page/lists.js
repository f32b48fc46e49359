// A page with a list that may be long: one part of it at a time, with a search that the service does.

import { query } from "./api.js";
import { h } from "./dom.js";
import { poll } from "./live.js";
import { failed, loading, nothing, table } from "./parts.js";
import { count, counted } from "./units.js";

const PART = 100;
const TYPING_MS = 250;

/**
 * Keeps the list at `url` up to date until the page is left. `changed(build, answer)` is called with each change: it
 * puts `build()`, a new element, into the page. `empty` is what to say where there is nothing: [words, what to do], or
 * a function that returns this for the answer.
 */
export function list(context, { url, name, columns, keyOf, empty, changed, attributesOf, hasSearch = true }) {
    let search = context.parameters.get("search") ?? "";
    let before = []; // the keys of the parts before this one
    let after = null;
    let typing = null;
    let answer = null;
    let failure = null;

    const address = () => url + query({ search, after, limit: PART });
    const ask = poll(
        address,
        (fresh) => {
            answer = fresh;
            failure = null;
            draw();
        },
        (problem) => {
            failure = problem;
            draw();
        },
        context.signal,
    );

    function turn(to) {
        if (to === "next") {
            before.push(after);
            after = answer.next;
        } else {
            after = before.pop() ?? null;
        }
        ask();
        window.scrollTo(0, 0);
    }

    function typed(event) {
        search = event.target.value.trim();
        before = [];
        after = null;
        clearTimeout(typing);
        typing = setTimeout(ask, TYPING_MS);
    }

    function draw() {
        changed(content, answer);
    }

    function content() {
        if (answer === null) return failure ? failed(failure) : loading();
        const field = h("input", {
            type: "search",
            class: "search",
            value: search,
            placeholder: `Search ${name}`,
            "aria-label": `Search ${name}`,
            "data-search": true,
            maxlength: 249,
            oninput: typed,
        });
        const isEmpty = answer.items.length === 0 && (answer.next ?? null) === null && before.length === 0;
        return h(
            "div",
            { class: "list", "data-list": name },
            hasSearch && (!isEmpty || search) ? field : null,
            !isEmpty
                ? table(name, columns, answer.items, keyOf, attributesOf)
                : search
                  ? nothing(`No ${name} with “${search}” in the name.`, "Clear the search to see all.")
                  : nothing(...(typeof empty === "function" ? empty(answer) : empty)),
            pager(),
        );
    }

    function pager() {
        const next = answer.next ?? null;
        const total = answer.total ?? null;
        if (next === null && before.length === 0)
            return h("p", { class: "note" }, counted(total ?? answer.items.length, name.replace(/s$/, ""), name));
        const first = before.length * PART + 1;
        return h(
            "div",
            { class: "pager" },
            h("button", { type: "button", disabled: before.length === 0, onclick: () => turn("previous") }, "Previous"),
            h(
                "span",
                {},
                `${count(first)} to ${count(first + answer.items.length - 1)}${total === null ? "" : ` of ${count(total)}`}`,
            ),
            h("button", { type: "button", disabled: next === null, onclick: () => turn("next") }, "Next"),
        );
    }

    draw();
}

/**
 * As list(), for rows that are here already: returns `build(rows)`, which shows a part of them and those that match the
 * search. `textOf(row)` is what is searched.
 */
export function slices({ name, columns, keyOf, textOf, redraw, attributesOf }) {
    let search = "";
    let part = 0;
    return (rows) => {
        const found = search ? rows.filter((row) => textOf(row).toLowerCase().includes(search)) : rows;
        const parts = Math.max(1, Math.ceil(found.length / PART));
        part = Math.min(part, parts - 1);
        const shown = found.slice(part * PART, (part + 1) * PART);
        const turn = (by) => () => {
            part += by;
            redraw();
        };
        const typed = (event) => {
            search = event.target.value.trim().toLowerCase();
            redraw();
        };
        return h(
            "div",
            { class: "list", "data-list": name },
            rows.length > PART
                ? h("input", {
                      type: "search",
                      class: "search",
                      placeholder: `Search ${name}`,
                      "aria-label": `Search ${name}`,
                      "data-search": true,
                      oninput: typed,
                  })
                : null,
            table(name, columns, shown, keyOf, attributesOf),
            parts > 1
                ? h(
                      "div",
                      { class: "pager" },
                      h("button", { type: "button", disabled: part === 0, onclick: turn(-1) }, "Previous"),
                      h(
                          "span",
                          {},
                          `${count(part * PART + 1)} to ${count(part * PART + shown.length)} of ${count(found.length)}`,
                      ),
                      h("button", { type: "button", disabled: part === parts - 1, onclick: turn(1) }, "Next"),
                  )
                : h("p", { class: "note" }, counted(found.length, name.replace(/s$/, ""), name)),
        );
    };
}
