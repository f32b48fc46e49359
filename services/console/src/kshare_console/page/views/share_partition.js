// The strip of one share-partition: every run between its start and end offset, who holds it, and what can be done.

import { path, session } from "../api.js";
import { change } from "../dialogs.js";
import { h, named } from "../dom.js";
import { stream } from "../live.js";
import {
    failed,
    facts,
    figure,
    link,
    loading,
    nothing,
    partitionName,
    place,
    section,
    since,
    stripPlace,
    table,
    trail,
    until,
} from "../parts.js";
import { bar, blocks, legend, length, STATES } from "../strip.js";
import { count, counted, isKnown, offsets } from "../units.js";

/** Runs that are drawn at a time. */
const WINDOW = 120;

export function sharePartition(context, groupId, topic, partition) {
    new Strip(context, groupId, topic, partition).start();
}

class Strip {
    constructor(context, groupId, topic, partition) {
        Object.assign(this, { context, groupId, topic, partition });
        this.strip = null;
        this.failure = null;
        this.state = ""; // the state that is shown alone, or ""
        this.first = 0; // the index of the first run that is drawn
        const offset = context.parameters.get("offset");
        this.offset = offset === null ? null : Number(offset); // one of the chosen run
        this.isToShow = this.offset !== null;
        const from = context.parameters.get("from");
        this.from = from === null ? null : Number(from); // runs before this offset are not asked for
    }

    start() {
        const { context, groupId, topic, partition } = this;
        context.title(`${topic}-${partition} of ${groupId}`);
        const from = this.from === null ? {} : { from_offset: this.from };
        this.draw();
        stream(
            `api/stream?${new URLSearchParams({ view: "strip", group: groupId, topic, partition, ...from })}`,
            `${path("groups", groupId, "topics", topic, "partitions", partition)}?${new URLSearchParams(from)}`,
            (fresh) => {
                this.strip = fresh;
                this.draw();
            },
            (failure) => {
                this.failure = failure;
                if (this.strip === null) this.draw();
            },
            context.signal,
        );
        context.shortcuts({
            r: ["Release the selected run", () => this.act("release")],
            x: ["Reject the selected run", () => this.act("reject")],
        });
    }

    get runs() {
        return this.state ? this.strip.runs.filter((run) => run.state === this.state) : this.strip.runs;
    }

    get chosen() {
        if (this.offset === null) return null;
        return this.strip.runs.find((run) => run.first_offset <= this.offset && this.offset <= run.last_offset) ?? null;
    }

    /** Whether runs of the strip are not shown: it has so many at most, or begins at a later offset. */
    get isPart() {
        return this.strip.next_offset !== null || this.isBefore(this.strip.start_offset);
    }

    isBefore(offset) {
        return this.from !== null && offset < this.from;
    }

    /** Whether the offset may be in a run that is not shown. */
    isLeftOut(offset) {
        const { start_offset, end_offset, next_offset } = this.strip;
        if (offset < start_offset || offset >= end_offset) return false;
        return this.isBefore(offset) || (next_offset !== null && offset >= next_offset);
    }

    placeOf(offset, from) {
        const { groupId, topic, partition } = this;
        const chosen = stripPlace({ group_id: groupId, topic, partition, first_offset: offset });
        return from === null ? chosen : `${chosen}&from=${from}`;
    }

    choose(offset) {
        this.offset = offset;
        this.isToShow = true;
        history.replaceState(null, "", this.placeOf(offset, this.from));
        this.draw();
    }

    draw() {
        const { groupId, topic, partition } = this;
        const top = [
            trail(
                ["Groups", place("groups")],
                [named(groupId), place("groups", groupId)],
                [partitionName(topic, partition)],
            ),
            h("h1", {}, partitionName(topic, partition), h("small", {}, " of ", named(groupId))),
        ];
        if (this.strip === null) this.context.show(...top, this.failure ? failed(this.failure) : loading());
        else this.context.show(...top, this.figures(), ...this.body());
    }

    figures() {
        const { strip } = this;
        const acquired = strip.runs.filter((run) => run.state === "Acquired");
        const behind =
            isKnown(strip.end_offset) && isKnown(strip.log_end_offset)
                ? Math.max(0, strip.log_end_offset - strip.end_offset)
                : null;
        return h(
            "div",
            { class: "figures", "data-key": "figures" },
            figure("Start offset", count(strip.start_offset), "all before it are done"),
            figure("End offset", count(strip.end_offset), "the next to be fetched"),
            figure("Log end", count(strip.log_end_offset), `${counted(behind, "record")} not fetched`),
            figure(
                "Acquired",
                count(strip.acquired),
                `${counted(acquired.length, "run")}${this.isPart ? " of those shown" : ""}`,
            ),
            figure(
                "Leader",
                named(strip.leader ?? "none"),
                `leader epoch ${count(strip.leader_epoch)}, state epoch ${count(strip.state_epoch)}`,
                "words",
            ),
        );
    }

    body() {
        const { strip, runs, chosen } = this;
        if (strip.runs.length === 0) return [this.isBefore(strip.start_offset) ? this.beginning() : empty(strip)];
        this.keepInWindow(runs, chosen);
        const shown = runs.slice(this.first, this.first + WINDOW);
        return [
            h(
                "section",
                { class: "strip", "data-key": "strip", "aria-label": "Strip" },
                bar(strip, strip.runs, chosen, (offset) => this.choose(offset)),
                h(
                    "div",
                    { class: "ends", "aria-hidden": "true" },
                    h("span", {}, count(strip.start_offset)),
                    h("span", {}, count(Math.max(strip.log_end_offset ?? 0, strip.end_offset))),
                ),
                this.details(chosen),
                this.controls(runs, shown),
                shown.length
                    ? blocks(shown, chosen, (run) => this.choose(run.first_offset))
                    : nothing(`No run is ${this.state}.`, "Choose another state above."),
                this.isBefore(strip.start_offset) ? this.beginning() : null,
                strip.offsets_left_out > 0
                    ? h(
                          "p",
                          { class: "note" },
                          `${counted(strip.offsets_left_out, "offset")} before the end offset are left out: a strip has so many runs at most.`,
                      )
                    : null,
                legend(),
            ),
            section("Runs", this.table(shown, chosen)),
        ];
    }

    beginning() {
        return h(
            "p",
            { class: "note", "data-key": "beginning" },
            `Runs before offset ${count(this.from)} are not shown. `,
            link(this.placeOf(this.strip.start_offset, null), "Show the strip from its start"),
        );
    }

    /** Moves the window to the chosen run once; after that it stays where the user put it. */
    keepInWindow(runs, chosen) {
        const at = runs.indexOf(chosen);
        if (this.isToShow && at !== -1 && (at < this.first || at >= this.first + WINDOW))
            this.first = Math.max(0, at - Math.floor(WINDOW / 2));
        this.isToShow = false;
        this.first = Math.min(this.first, Math.max(0, runs.length - 1));
    }

    controls(runs, shown) {
        const states = Object.keys(STATES);
        const turn = (by) => () => {
            this.first = Math.max(0, this.first + by);
            this.draw();
        };
        const only = (event) => {
            this.state = event.target.value;
            this.first = 0;
            this.draw();
        };
        const counts = (name) => this.strip.runs.filter((run) => run.state === name).length;
        return h(
            "div",
            { class: "buttons" },
            h(
                "label",
                {},
                "Show ",
                h(
                    "select",
                    { onchange: only, "aria-label": "Which runs are shown" },
                    h("option", { value: "" }, `all runs (${count(this.strip.runs.length)})`),
                    states.map((name) =>
                        h("option", { value: name }, `${STATES[name].mark} ${name} (${count(counts(name))})`),
                    ),
                ),
            ),
            runs.length > WINDOW
                ? [
                      h(
                          "button",
                          { type: "button", disabled: this.first === 0, onclick: turn(-WINDOW) },
                          "Previous runs",
                      ),
                      h(
                          "span",
                          { class: "note" },
                          `${count(this.first + 1)} to ${count(this.first + shown.length)} of ${count(runs.length)}`,
                      ),
                      h(
                          "button",
                          { type: "button", disabled: this.first + WINDOW >= runs.length, onclick: turn(WINDOW) },
                          "Next runs",
                      ),
                  ]
                : null,
        );
    }

    details(chosen) {
        const { topic, partition } = this;
        if (chosen === null) {
            let words = "Select a run to see who holds it, and its records.";
            if (this.offset !== null && this.isLeftOut(this.offset))
                words = [
                    `Offset ${count(this.offset)} is in the part of the strip that is not shown. `,
                    link(this.placeOf(this.offset, this.offset), "Show the runs from this offset on"),
                ];
            else if (this.offset !== null)
                words = `Offset ${count(this.offset)} is not in flight: it is done, or not fetched yet.`;
            return h(
                "section",
                { class: "details", "data-key": "details", "data-details": "" },
                h("p", { class: "note" }, words),
            );
        }
        const isHeld = chosen.state === "Acquired";
        const record = (offset) => link(place("records", topic, partition, offset), count(offset));
        return h(
            "section",
            { class: "details", "data-key": "details", "data-details": chosen.first_offset },
            h(
                "h2",
                {},
                `${STATES[chosen.state]?.mark ?? ""} ${chosen.state} · ${offsets(chosen.first_offset, chosen.last_offset)}`,
            ),
            facts([
                ["Means", STATES[chosen.state]?.words ?? ""],
                [
                    "Records",
                    [
                        count(length(chosen)),
                        ": ",
                        record(chosen.first_offset),
                        chosen.last_offset > chosen.first_offset ? [" … ", record(chosen.last_offset)] : null,
                    ],
                ],
                ["Delivered", counted(chosen.delivery_count, "time")],
                ...(isHeld
                    ? [
                          ["Held by", holder(chosen)],
                          ["For", since(chosen.acquired_ms)],
                          ["Lock ends in", until(chosen.lock_ends_ms)],
                      ]
                    : []),
            ]),
            session.admin && isHeld
                ? h(
                      "div",
                      { class: "buttons" },
                      h(
                          "button",
                          { type: "button", class: "main", id: "release", onclick: () => this.act("release") },
                          "Release",
                      ),
                      h(
                          "button",
                          { type: "button", class: "danger", id: "reject", onclick: () => this.act("reject") },
                          "Reject",
                      ),
                      h("span", { class: "note" }, "Release delivers the records again; Reject gives them up."),
                  )
                : null,
        );
    }

    act(verb) {
        const chosen = this.strip === null ? null : this.chosen;
        if (!session.admin || chosen?.state !== "Acquired") return;
        const { first_offset, last_offset } = chosen;
        const words = { release: ["Release", "released"], reject: ["Reject", "rejected"] }[verb];
        change(
            `${words[0]} ${offsets(first_offset, last_offset)}`,
            words[0],
            path("groups", this.groupId, "topics", this.topic, "partitions", this.partition, verb),
            { first_offset, last_offset },
            (answer) => `${counted(answer[words[1]], "record")} ${words[1]}.`,
        );
    }

    table(shown, chosen) {
        const columns = [
            {
                title: "Offsets",
                cell: (run) =>
                    h(
                        "button",
                        { type: "button", class: "plain", onclick: () => this.choose(run.first_offset) },
                        offsets(run.first_offset, run.last_offset),
                    ),
            },
            { title: "Records", cell: (run) => count(length(run)), number: true },
            { title: "State", cell: (run) => `${STATES[run.state]?.mark ?? ""} ${run.state}` },
            { title: "Delivered", cell: (run) => counted(run.delivery_count, "time"), number: true },
            { title: "Held by", cell: (run) => (run.state === "Acquired" ? holder(run) : "–") },
            { title: "For", cell: (run) => (run.state === "Acquired" ? since(run.acquired_ms) : "–"), number: true },
            {
                title: "Lock ends in",
                cell: (run) => (run.state === "Acquired" ? until(run.lock_ends_ms) : "–"),
                number: true,
            },
        ];
        return table(
            "runs",
            columns,
            shown,
            (run) => run.first_offset,
            (run) => ({ "data-row": run.first_offset, class: run === chosen ? "chosen" : null }),
        );
    }
}

function empty(strip) {
    const wait =
        isKnown(strip.lag_records) && strip.lag_records > 0
            ? `${counted(strip.lag_records, "record")} wait for a fetch of a worker.`
            : "Records appear here when workers fetch them.";
    if (strip.is_loaded === false)
        return nothing("The share-partition is not in use: no worker holds records of it.", wait);
    return nothing(`Nothing is in flight: all records before offset ${count(strip.start_offset)} are done.`, wait);
}

function holder(run) {
    if (run.client_id) return named(run.client_id);
    return run.member_id ? [named(run.member_id), " (no client id: it may have left)"] : "unknown";
}
