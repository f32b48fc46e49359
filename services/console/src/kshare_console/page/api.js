// Requests to the console's service. A failure carries words for the user, and what could be done next.

export const session = { principal: null, sign_in: "none", admin: false, version: "", cluster_id: "", csrf_token: "" };

/** A console that is stopped, or behind a dead connection, takes requests and answers none. */
const READ_TIMEOUT_MS = 15000;
/** A redrive moves many records. */
const CHANGE_TIMEOUT_MS = 600000;

let signedOut = () => {};

/** Calls `handler` where the service says that nobody is signed in. */
export function whenSignedOut(handler) {
    signedOut = handler;
}

export class Failure extends Error {
    /** `status` 0: the console itself did not answer. */
    constructor(status, words, code, question = null) {
        super(words);
        this.status = status;
        this.code = code;
        this.question = question;
    }
}

/** "/api/groups/a%2Fb": a path of parts from outside. */
export function path(...parts) {
    return `api/${parts.map(encodeURIComponent).join("/")}`;
}

export function query(values) {
    const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
    return given.length ? `?${new URLSearchParams(given)}` : "";
}

export async function get(url, signal) {
    return await request(url, { signal });
}

export async function post(url, body) {
    return await request(url, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Kshare-Csrf": session.csrf_token ?? "" },
        body: JSON.stringify(body),
    });
}

export async function refreshSession() {
    Object.assign(session, await get("api/session"));
}

export async function signIn(username, password) {
    Object.assign(session, await post("api/session", { username, password }));
}

export async function signOut() {
    await request("api/session", { method: "DELETE", headers: { "X-Kshare-Csrf": session.csrf_token ?? "" } });
    await refreshSession();
}

async function request(url, options) {
    let response;
    const ends = AbortSignal.timeout(options.method === "POST" ? CHANGE_TIMEOUT_MS : READ_TIMEOUT_MS);
    const signal = options.signal ? AbortSignal.any([options.signal, ends]) : ends;
    try {
        response = await fetch(url, { cache: "no-store", credentials: "same-origin", ...options, signal });
    } catch (problem) {
        if (problem.name === "AbortError") throw problem;
        throw new Failure(0, "The console does not answer.", "NOT_REACHED");
    }
    const body = await response.json().catch(() => null);
    if (response.ok && body !== null) return body;
    if (response.ok && response.status === 204) return {};
    const words = body?.error ?? `The console answered with status ${response.status}.`;
    if (response.status === 401 && options?.method !== "POST") signedOut();
    throw new Failure(response.status, words, body?.code ?? String(response.status), body?.question ?? null);
}

/** What to do next about a failure, in words. */
export function advice(failure) {
    if (failure.status === 0)
        return "The page tries again by itself. If this stays, see whether the console's process runs.";
    if (failure.status === 401) return "Sign in again.";
    if (failure.status === 403) {
        return session.admin
            ? "Ask an administrator of the cluster for an ACL that allows it."
            : "Changes need a console that was started with --console-admin, or the kshare command.";
    }
    if (failure.status === 404) return "It may have been deleted meanwhile. Go back to the list that led here.";
    if (failure.status === 503)
        return "The page tries again by itself. The overview says which role does not answer; kshare doctor says what to do.";
    return "Nothing was changed.";
}
