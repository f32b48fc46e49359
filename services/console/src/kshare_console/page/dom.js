// Elements, and the update of what is shown to a new version of it.
//
// Every text becomes a text node and every attribute is set by name: nothing here parses HTML, so a group id such as
// `<img onerror=…>` is shown as it is written. The policy of the page (default-src 'self') forbids inline handlers too.

const SVG = "http://www.w3.org/2000/svg";

// Characters that change how a text is laid out: controls, direction marks, and what has no width.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** An element with attributes (`onclick` and the like take functions), and children: nodes, texts, lists; null is none. */
export function h(name, attributes, ...children) {
    return build(document.createElement(name), attributes, children);
}

/** As h(), for elements of SVG. */
export function svg(name, attributes, ...children) {
    return build(document.createElementNS(SVG, name), attributes, children);
}

function build(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
        if (value === null || value === undefined || value === false) continue;
        if (name.startsWith("on")) listen(element, name, value);
        else element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(...nodes(children));
    return element;
}

function listen(element, name, handler) {
    element[name] = handler;
    (element.handlers ??= new Set()).add(name);
}

function* nodes(children) {
    for (const child of children) {
        if (child === null || child === undefined || child === false) continue;
        if (Array.isArray(child)) yield* nodes(child);
        else yield child instanceof Node ? child : document.createTextNode(String(child));
    }
}

/** A text from outside with its invisible characters written out, such as `\u202e`. */
export function visible(text) {
    return String(text).replace(
        INVISIBLE,
        (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
    );
}

/** Words of the service as a sentence: with a capital letter. */
export function sentence(text) {
    const shown = visible(text);
    return shown.charAt(0).toUpperCase() + shown.slice(1);
}

/** A name from outside (a group, a topic, a client), apart from the direction of the text around it. */
export function named(text) {
    return h("bdi", { class: "name" }, visible(text));
}

/**
 * Makes the children of `target` equal to `wanted`, and keeps the elements that are the same, with their focus, scroll
 * position and selection. Elements are the same where their name and their `data-key` are.
 */
export function update(target, ...wanted) {
    const fresh = [...nodes(wanted)];
    const keyed = new Map();
    for (const child of target.children) if (child.dataset?.key !== undefined) keyed.set(child.dataset.key, child);
    let place = target.firstChild;
    for (const next of fresh) {
        const key = next.dataset?.key;
        let old = key === undefined ? place : keyed.get(key);
        if (old && isSame(old, next)) {
            if (old === place) place = place.nextSibling;
            else target.insertBefore(old, place);
            morph(old, next);
        } else {
            target.insertBefore(next, place);
        }
        keyed.delete(key);
    }
    while (place) {
        const after = place.nextSibling;
        place.remove();
        place = after;
    }
}

function isSame(old, next) {
    return old.nodeType === next.nodeType && old.nodeName === next.nodeName && old.dataset?.key === next.dataset?.key;
}

function morph(old, next) {
    if (old.nodeType === Node.TEXT_NODE) {
        if (old.data !== next.data) old.data = next.data;
        return;
    }
    for (const { name } of [...old.attributes]) {
        const isOfUser = name === "open" && old.nodeName === "DETAILS";
        if (!next.hasAttribute(name) && !isOfUser) old.removeAttribute(name);
    }
    for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const name of old.handlers ?? []) if (!next.handlers?.has(name)) old[name] = null;
    for (const name of next.handlers ?? []) listen(old, name, next[name]);
    // What somebody writes stays; what was chosen by the page is shown.
    if (old.nodeName === "INPUT" || old.nodeName === "TEXTAREA") return;
    update(old, ...next.childNodes);
}
