// Figures that renew themselves, and whether they are stale.
//
// Pages that move come as server-sent events; lists are asked for again every few seconds. Both report to one state,
// which the header shows: live, or "stale since …" with the reason. Figures that are stale stay on the page.

import { get } from "./api.js";

const ASK_AGAIN_MS = 5000;
const RECONNECT_MS = 2000;
/** A stream sends something at least every 5 s: after three times that without anything the connection is dead. */
const SILENCE_MS = 15000;

export const freshness = { fresh_ms: null, stale_since_ms: null, reason: "" };
const listeners = new Set();
let skew_ms = 0;

/** The time by the service's clock, so that a wrong clock of this machine shows no wrong ages. */
export function now() {
    return Date.now() + skew_ms;
}

export function onFreshness(listener) {
    listeners.add(listener);
}

function fresh(time_ms) {
    if (typeof time_ms === "number") skew_ms = time_ms - Date.now();
    freshness.fresh_ms = Date.now();
    if (freshness.stale_since_ms !== null) {
        freshness.stale_since_ms = null;
        freshness.reason = "";
    }
    for (const listener of listeners) listener();
}

function stale(reason) {
    freshness.stale_since_ms ??= freshness.fresh_ms ?? Date.now();
    freshness.reason = reason;
    for (const listener of listeners) listener();
}

/** Forgets what another page reported. */
export function resetFreshness() {
    Object.assign(freshness, { fresh_ms: null, stale_since_ms: null, reason: "" });
    for (const listener of listeners) listener();
}

/**
 * Calls `show(json)` with each state of the stream at `url` until `signal` aborts. `first` is asked for at once, so that
 * an error has words: a browser tells nothing of why a stream could not be opened. `failed` gets that error.
 */
export function stream(url, first, show, failed, signal) {
    let source = null;
    let last_ms = Date.now();
    let opening = null;

    async function open() {
        clearTimeout(opening);
        try {
            const state = await get(first, signal);
            fresh(state.time_ms);
            show(state);
        } catch (failure) {
            if (signal.aborted) return;
            stale(failure.message);
            failed(failure);
            if (failure.status === 0 || failure.status >= 500) again();
            return;
        }
        connect();
    }

    function again() {
        source?.close();
        source = null;
        if (!signal.aborted) opening = setTimeout(open, RECONNECT_MS);
    }

    function connect() {
        source?.close();
        if (signal.aborted) return;
        source = new EventSource(url);
        last_ms = Date.now();
        source.addEventListener("state", (event) => {
            last_ms = Date.now();
            const state = JSON.parse(event.data);
            fresh(state.time_ms);
            show(state);
        });
        source.addEventListener("alive", (event) => {
            last_ms = Date.now();
            if (freshness.stale_since_ms === null) fresh(JSON.parse(event.data).time_ms);
        });
        source.addEventListener("problem", (event) => {
            last_ms = Date.now();
            stale(JSON.parse(event.data).error);
        });
        source.onerror = () => {
            stale("The connection to the console is lost; connecting again.");
            again();
        };
    }

    const watch = setInterval(() => {
        if (source !== null && Date.now() - last_ms > SILENCE_MS) {
            stale("Nothing has come from the console; connecting again.");
            again();
        }
    }, 1000);
    signal.addEventListener("abort", () => {
        clearInterval(watch);
        clearTimeout(opening);
        source?.close();
    });
    open();
}

/** As stream(), for what has no stream; returns a function that asks at once. A page in the background does not ask. */
export function poll(urlOf, show, failed, signal) {
    let timer = null;
    let asked = 0;

    async function ask() {
        clearTimeout(timer);
        asked += 1;
        const mine = asked;
        if (!document.hidden || freshness.fresh_ms === null) await refresh(mine);
        if (!signal.aborted && mine === asked) timer = setTimeout(ask, ASK_AGAIN_MS);
    }

    async function refresh(mine) {
        try {
            const state = await get(urlOf(), signal);
            if (mine !== asked) return; // a later question is under way, such as another search
            fresh(state.time_ms);
            show(state);
        } catch (failure) {
            if (signal.aborted || mine !== asked) return;
            stale(failure.message);
            failed(failure);
        }
    }

    signal.addEventListener("abort", () => clearTimeout(timer));
    ask();
    return ask;
}
