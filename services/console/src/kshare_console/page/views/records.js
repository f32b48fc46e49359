// One record: key, headers and value, each as text, as indented JSON, or as bytes in hexadecimal.

import { get, path } from "../api.js";
import { h, named, visible } from "../dom.js";
import { failed, facts, link, loading, partitionName, place, section, table, trail } from "../parts.js";
import { bytes, count, counted, time } from "../units.js";

const BYTES_A_LINE = 16;
const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

export function record(context, topic, partition, offset) {
    context.title(`Record ${topic}-${partition} ${offset}`);
    const top = () => [
        trail(
            ["Topics", place("topics")],
            [named(topic), place("topics", topic)],
            [`partition ${partition}`],
            [`offset ${count(Number(offset))}`],
        ),
        h("h1", {}, "Record ", partitionName(topic, partition), ` · ${count(Number(offset))}`),
    ];
    const modes = new Map();
    context.show(...top(), loading());
    get(path("records", topic, partition, offset), context.signal)
        .then((found) => {
            const draw = () => context.show(...top(), ...page(found, modes, draw));
            draw();
        })
        .catch((failure) => {
            if (!context.signal.aborted)
                context.show(
                    ...top(),
                    failed(failure),
                    h(
                        "div",
                        { class: "buttons" },
                        step(topic, partition, Number(offset) - 1, "Previous offset"),
                        step(topic, partition, Number(offset) + 1, "Next offset"),
                    ),
                );
        });
}

function page(found, modes, redraw) {
    const { topic, partition, offset } = found;
    return [
        facts([
            ["Time", time(found.timestamp_ms)],
            ["Size", bytes(found.size_bytes)],
            ["Headers", count((found.headers?.length ?? 0) + (found.headers_left_out ?? 0))],
        ]),
        h(
            "div",
            { class: "buttons" },
            step(topic, partition, offset - 1, "Previous offset"),
            step(topic, partition, offset + 1, "Next offset"),
        ),
        section("Key", payload("Key", found.key, modes, redraw)),
        section("Value", payload("Value", found.value, modes, redraw)),
        section("Headers", headers(found.headers ?? [], found.headers_left_out ?? 0)),
    ];
}

function step(topic, partition, offset, words) {
    if (offset < 0) return null;
    return h("a", { class: "button", href: place("records", topic, partition, offset) }, words);
}

function headers(found, left_out) {
    if (found.length === 0) return h("p", { class: "note" }, "The record has no headers.");
    const columns = [
        { title: "Name", cell: ({ name }) => named(name) },
        {
            title: "Value",
            cell: ({ value }) => (value === null ? h("em", {}, "null") : named(value.text ?? spaced(value.hex))),
        },
        {
            title: "Size",
            cell: ({ value }) => (value === null ? "–" : [bytes(value.size_bytes), value.truncated ? ", cut" : ""]),
            number: true,
        },
    ];
    const note = left_out > 0 ? h("p", { class: "note" }, `${counted(left_out, "further header")} left out.`) : null;
    return h(
        "div",
        {},
        table("headers", columns, found, (header) => `${found.indexOf(header)}`),
        note,
    );
}

/** A value in one of the forms that it has; a tombstone is said in words. */
function payload(name, value, modes, redraw) {
    if (value === null || value === undefined)
        return h("p", { class: "note" }, name === "Value" ? "null: a tombstone" : "The record has no key.");
    if (value.size_bytes === 0) return h("p", { class: "note" }, "Empty: 0 bytes.");
    const forms = [];
    if (value.json && !value.truncated && value.text !== null) forms.push(["JSON", () => indented(value.text)]);
    if (value.text !== null) forms.push(["Text", () => value.text]);
    forms.push(["Hex", () => dump(value.hex)]);
    const chosen = forms.find(([form]) => form === modes.get(name)) ?? forms[0];
    const choose = (form) => () => {
        modes.set(name, form);
        redraw();
    };
    return h(
        "div",
        { class: "payload", "data-payload": name },
        h(
            "div",
            { class: "buttons", role: "group", "aria-label": `Form of the ${name.toLowerCase()}` },
            forms.map(([form]) =>
                h(
                    "button",
                    { type: "button", "aria-pressed": String(form === chosen[0]), onclick: choose(form) },
                    form,
                ),
            ),
            h("span", { class: "note" }, bytes(value.size_bytes)),
        ),
        value.truncated
            ? h(
                  "p",
                  { class: "note cut" },
                  `Cut: the first ${bytes(value.hex.length / 2)} of ${bytes(value.size_bytes)} are shown. kshare consume shows the whole record.`,
              )
            : null,
        h("pre", { tabindex: "0" }, lines(chosen[1]())),
    );
}

/** Line ends and tabs are kept; other characters that cannot be seen are written out. */
function lines(text) {
    return text
        .replaceAll("\r\n", "\n")
        .split(/([\n\t])/)
        .map((part) => (part === "\n" || part === "\t" ? part : visible(part)))
        .join("");
}

/** JSON with line ends and indentation; every token stays as it was written, so that long numbers keep their digits. */
export function indented(text) {
    let depth = 0;
    let out = "";
    let last = "";
    for (const [token] of text.matchAll(TOKEN)) {
        const line = () => `\n${"  ".repeat(depth)}`;
        if (token === "}" || token === "]") {
            depth -= 1;
            out += last === "{" || last === "[" ? token : line() + token;
        } else {
            if (last === "{" || last === "[" || last === ",") out += line();
            out += token === ":" ? ": " : token;
            if (token === "{" || token === "[") depth += 1;
        }
        last = token;
    }
    return out;
}

function spaced(hex) {
    return hex.match(/../g)?.join(" ") ?? "";
}

function dump(hex) {
    const out = [];
    for (let at = 0; at < hex.length; at += BYTES_A_LINE * 2) {
        const part = hex.slice(at, at + BYTES_A_LINE * 2);
        const letters = (part.match(/../g) ?? [])
            .map((pair) => parseInt(pair, 16))
            .map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "."));
        out.push(
            `${(at / 2).toString(16).padStart(6, "0")}  ${spaced(part).padEnd(BYTES_A_LINE * 3)} ${letters.join("")}`,
        );
    }
    return out.join("\n");
}
