// The console's page: which view the address asks for, the header, the session, the keys.

import { refreshSession, session, signOut, whenSignedOut } from "./api.js";
import { inform } from "./dialogs.js";
import { h, named, update } from "./dom.js";
import { freshness, onFreshness, resetFreshness } from "./live.js";
import { failed, place, staleWords, tick } from "./parts.js";
import { deadLetters } from "./views/dead_letters.js";
import { group, groups, poison } from "./views/groups.js";
import { overview } from "./views/overview.js";
import { placement } from "./views/placement.js";
import { record } from "./views/records.js";
import { sharePartition } from "./views/share_partition.js";
import { signInPage } from "./views/sign_in.js";
import { topic, topics } from "./views/topics.js";

const RETRY_MS = 2000;

const NAVIGATION = [
    ["Overview", "#/", "o", (parts) => parts.length === 0],
    ["Groups", place("groups"), "g", (parts) => parts[0] === "groups"],
    ["Dead letters", place("dead-letters"), "d", (parts) => parts[0] === "dead-letters"],
    ["Topics", place("topics"), "t", (parts) => parts[0] === "topics" || parts[0] === "records"],
    ["Placement", place("placement"), "p", (parts) => parts[0] === "placement"],
];

let leaving = new AbortController();
let shortcuts = {};
let parts = [];

/** The view of an address, or null. */
function viewOf([first, ...rest]) {
    if (first === undefined) return overview;
    if (first === "groups" && rest.length === 0) return groups;
    if (first === "groups" && rest.length === 1) return (context) => group(context, rest[0]);
    if (first === "groups" && rest.length === 2 && rest[1] === "poison") return (context) => poison(context, rest[0]);
    if (first === "groups" && rest.length === 3) return (context) => sharePartition(context, ...rest);
    if (first === "records" && rest.length === 3) return (context) => record(context, ...rest);
    if (first === "dead-letters" && rest.length === 0) return deadLetters;
    if (first === "topics" && rest.length === 0) return topics;
    if (first === "topics" && rest.length === 1) return (context) => topic(context, rest[0]);
    if (first === "placement" && rest.length === 0) return placement;
    return null;
}

function readAddress() {
    const [way, parameters] = location.hash.replace(/^#\/?/, "").split("?", 2);
    try {
        return [way.split("/").filter(Boolean).map(decodeURIComponent), new URLSearchParams(parameters ?? "")];
    } catch {
        return [["?"], new URLSearchParams()];
    }
}

function go() {
    leaving.abort();
    leaving = new AbortController();
    shortcuts = {};
    resetFreshness();
    const main = document.getElementById("main");
    const { signal } = leaving;
    const [address, parameters] = readAddress();
    parts = address;
    const context = {
        signal,
        parameters,
        show: (...nodes) => {
            if (!signal.aborted) update(main, ...nodes);
        },
        title: (words) => {
            document.title = `${words} · kshare`;
        },
        shortcuts: (keys) => {
            shortcuts = keys;
        },
    };
    main.replaceChildren();
    drawHeader();
    window.scrollTo(0, 0);
    if (session.sign_in === "sasl" && session.principal === null) return signInPage(context, go);
    const view = viewOf(parts);
    if (view) view(context);
    else context.show(h("h1", {}, "There is no such page"), h("p", {}, h("a", { href: "#/" }, "Go to the overview")));
    main.focus({ preventScroll: true });
}

function drawHeader() {
    const isSignedIn = session.sign_in !== "sasl" || session.principal !== null;
    update(
        document.getElementById("header"),
        h("a", { class: "brand", href: "#/", "aria-label": "kshare, to the overview" }, "kshare"),
        h(
            "nav",
            { "aria-label": "Pages", "data-key": "pages" },
            isSignedIn
                ? NAVIGATION.map(([words, target, , isHere]) =>
                      h("a", { href: target, "aria-current": isHere(parts) ? "page" : null }, words),
                  )
                : null,
        ),
        h(
            "div",
            { class: "tools", "data-key": "tools" },
            isSignedIn ? freshnessBadge() : null,
            isSignedIn
                ? h(
                      "span",
                      {
                          class: session.admin ? "badge admin" : "badge",
                          "data-mode": session.admin ? "admin" : "read-only",
                      },
                      session.admin ? "can change" : "read-only",
                  )
                : null,
            session.principal ? h("span", { class: "principal" }, named(session.principal)) : null,
            session.sign_in === "sasl" && session.principal
                ? h("button", { type: "button", class: "plain", onclick: leave }, "Sign out")
                : null,
            h(
                "button",
                {
                    type: "button",
                    class: "plain",
                    onclick: switchTheme,
                    "aria-label": "Switch between light and dark",
                    title: "Light or dark (t)",
                },
                "◑",
            ),
            h(
                "button",
                { type: "button", class: "plain", onclick: help, "aria-label": "Keys", title: "Keys (?)" },
                "?",
            ),
        ),
    );
}

function freshnessBadge() {
    const { fresh_ms, stale_since_ms, reason } = freshness;
    if (stale_since_ms !== null)
        return h(
            "span",
            { class: "badge stale", "data-freshness": "stale", title: reason, role: "alert" },
            `▲ ${staleWords(stale_since_ms)}`,
            h("small", {}, ` ${reason}`),
        );
    return h(
        "span",
        { class: "badge live", "data-freshness": fresh_ms === null ? "waiting" : "live" },
        fresh_ms === null ? "…" : "● live",
    );
}

async function leave() {
    await signOut();
    go();
}

function isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function switchTheme() {
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    try {
        localStorage.setItem("kshare-theme", theme);
    } catch {
        // Storage can be forbidden; the theme lasts as long as the page then.
    }
}

function help() {
    const keys = [
        ["?", "this help"],
        ["/", "search in a list"],
        ["t", "light or dark"],
        ...NAVIGATION.map(([words, , key]) => [`g ${key}`, words]),
        ["← →", "the run or point before and after, in a strip or chart"],
        ...Object.entries(shortcuts)
            .filter(() => session.admin)
            .map(([key, [words]]) => [key, words]),
        ["Esc", "close a dialog"],
    ];
    inform(
        "Keys",
        h(
            "dl",
            { class: "keys" },
            keys.map(([key, words]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, words))),
        ),
        h("p", { class: "note" }, `kshare ${session.version}, cluster ${session.cluster_id}`),
    );
}

let isAfterG = false;

function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select") || document.getElementById("dialog").open) return;
    const target = NAVIGATION.find(([, , key]) => key === event.key);
    if (isAfterG && target) location.hash = target[1];
    else if (event.key === "?") help();
    else if (event.key === "t") switchTheme();
    else if (event.key === "/") document.querySelector("[data-search]")?.focus();
    else if (shortcuts[event.key]) shortcuts[event.key][1]();
    else if (event.key !== "g") {
        isAfterG = false;
        return;
    }
    isAfterG = event.key === "g" && !isAfterG;
    event.preventDefault();
}

async function start() {
    try {
        await refreshSession();
    } catch (failure) {
        update(document.getElementById("main"), failed(failure));
        setTimeout(start, RETRY_MS);
        return;
    }
    whenSignedOut(() => {
        if (session.sign_in !== "sasl" || session.principal === null) return;
        session.principal = null;
        go();
    });
    addEventListener("hashchange", go);
    go();
}

document.getElementById("skip").onclick = (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
};
addEventListener("keydown", pressed);
onFreshness(drawHeader);
setInterval(tick, 1000);
start();
