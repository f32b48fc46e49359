// The dialog of the page: a change that is asked back, a form, a help text. There is one at a time.

import { advice, Failure, post } from "./api.js";
import { h, sentence } from "./dom.js";

const dialog = () => document.getElementById("dialog");

function open(title, ...children) {
    const element = dialog();
    element.replaceChildren(h("h2", { id: "dialog-title" }, title), ...children);
    if (!element.open) element.showModal();
}

export function close() {
    dialog().close();
}

export function inform(title, ...children) {
    open(
        title,
        ...children,
        h("div", { class: "buttons" }, h("button", { type: "button", onclick: close, autofocus: true }, "Close")),
    );
}

/**
 * A change: posts `body` unconfirmed, asks the service's question, and posts it confirmed. The service decides what
 * needs asking, so that no other caller can leave the question out either. `done(answer)` gives the words of success.
 */
export async function change(title, verb, url, body, done) {
    try {
        const answer = await post(url, body);
        finish(title, done(answer));
    } catch (failure) {
        if (failure instanceof Failure && failure.question) ask(title, verb, failure.question, url, body, done);
        else refuse(title, failure);
    }
}

function ask(title, verb, question, url, body, done) {
    const confirm = h("button", { type: "button", class: "danger", id: "confirm" }, verb);
    confirm.onclick = async () => {
        confirm.disabled = true;
        try {
            finish(title, done(await post(url, { ...body, confirmed: true })));
        } catch (failure) {
            refuse(title, failure);
        }
    };
    open(
        title,
        h("p", { class: "question" }, sentence(question)),
        h(
            "div",
            { class: "buttons" },
            h("button", { type: "button", onclick: close, autofocus: true }, "Cancel"),
            confirm,
        ),
    );
}

function finish(title, words) {
    close();
    if (words instanceof Node) inform(title, words);
    else notice(words);
}

function refuse(title, failure) {
    inform(
        title,
        h("p", { class: "failure", role: "alert" }, sentence(failure.message)),
        failure instanceof Failure ? h("p", {}, advice(failure)) : null,
    );
}

/** A form with one field; `send(value)` is called with what was written. */
export function form(title, label, value, verb, send, note = null) {
    const input = h("input", { id: "field", value, autocomplete: "off", spellcheck: "false" });
    const submit = (event) => {
        event.preventDefault();
        send(input.value);
    };
    open(
        title,
        h(
            "form",
            { onsubmit: submit },
            h("label", { for: "field" }, label),
            input,
            note ? h("p", { class: "note" }, note) : null,
            h(
                "div",
                { class: "buttons" },
                h("button", { type: "button", onclick: close }, "Cancel"),
                h("button", { type: "submit", class: "main" }, verb),
            ),
        ),
    );
    input.select();
}

let hiding = null;

/** Words of success, for some seconds. */
export function notice(words) {
    const element = document.getElementById("notice");
    element.textContent = words;
    element.classList.add("shown");
    clearTimeout(hiding);
    hiding = setTimeout(() => element.classList.remove("shown"), 8000);
}
