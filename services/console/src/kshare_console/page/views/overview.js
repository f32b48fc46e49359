// The overview: what moves, what is wrong, and what has been held for the longest time.

import { chart } from "../chart.js";
import { h, named } from "../dom.js";
import { stream } from "../live.js";
import {
    failed,
    figure,
    link,
    loading,
    nothing,
    partitionName,
    place,
    placeOf,
    section,
    since,
    state,
    stripPlace,
    table,
} from "../parts.js";
import { count, counted, offsets, rate } from "../units.js";

const ROLE_STATES = { healthy: "good", standby: "good", draining: "busy", late: "busy" };

/** With `?role=NAME` that role is marked and in sight, as the link of a problem asks. */
export function overview(context) {
    const wanted = context.parameters.get("role");
    context.title("Overview");
    context.show(loading());
    let seen = null;
    stream(
        "api/stream?view=overview",
        "api/overview",
        (fresh) => {
            const isFirst = seen === null;
            seen = fresh;
            context.show(...page(fresh, wanted));
            if (isFirst && wanted !== null)
                document.querySelector(`[data-role="${CSS.escape(wanted)}"]`)?.scrollIntoView({ block: "center" });
        },
        (failure) => {
            if (seen === null) context.show(failed(failure));
        },
        context.signal,
    );
}

function page(overview, wanted) {
    return [
        h("h1", {}, "Overview"),
        overview.roles?.length ? problems(overview.problems ?? []) : hidden(),
        figures(overview),
        section("The last ten minutes", charts(overview.history ?? { step_ms: 2000, points: [] })),
        section("Held for the longest time", oldest(overview.oldest_acquired ?? [])),
        section("Roles", roles(overview.roles ?? [], wanted)),
    ];
}

/** Roles and problems are hidden from those who may not describe the cluster. */
function hidden() {
    return h(
        "p",
        { class: "note", "data-key": "problems" },
        "Problems and roles are shown to users with DESCRIBE on the cluster.",
    );
}

function problems(found) {
    if (found.length === 0)
        return h(
            "p",
            { class: "verdict good", "data-key": "problems" },
            "● No problems: every role answers, and every partition has a leader.",
        );
    return h(
        "section",
        { class: "problems", "data-key": "problems", "aria-label": "Problems" },
        h("h2", {}, found.length === 1 ? "One problem" : `${count(found.length)} problems`),
        h(
            "ul",
            {},
            found.map((problem) => {
                const target = placeOf(problem.where);
                return h(
                    "li",
                    { class: "bad" },
                    state(problem.words, "bad"),
                    target ? [" ", link(target, "Look at it")] : null,
                );
            }),
        ),
    );
}

function figures(overview) {
    const { throughput = {}, partitions = {} } = overview;
    const offline = partitions.offline ? `${count(partitions.offline)} offline` : "all online";
    return h(
        "div",
        { class: "figures", "data-key": "figures" },
        figure("Delivered", rate(throughput.delivered_per_s)),
        figure("Acknowledged", rate(throughput.acknowledged_per_s)),
        figure("Produced", rate(throughput.produced_per_s)),
        figure("Lag", count(overview.lag_records), "records not yet done"),
        figure("Redelivered", rate(overview.redelivered_per_s), null, overview.redelivered_per_s > 0 ? "busy" : null),
        figure(
            "Dead letters",
            count(overview.dead_letters),
            link(place("dead-letters"), "by reason"),
            overview.dead_letters > 0 ? "busy" : null,
        ),
        figure("Partitions", count(partitions.total), offline, partitions.offline ? "bad" : null),
    );
}

function charts({ points, step_ms }) {
    const of = (name) => points.map((point) => ({ time_ms: point.time_ms, value: point[name] }));
    return h(
        "div",
        { class: "charts" },
        chart("Delivered", of("delivered_per_s"), step_ms, rate),
        chart("Lag", of("lag_records"), step_ms, (value) => count(value)),
        chart("Redelivered", of("redelivered_per_s"), step_ms, rate),
    );
}

const OLDEST = [
    {
        title: "Records",
        cell: (run) =>
            link(
                stripPlace(run),
                partitionName(run.topic, run.partition),
                ` · ${offsets(run.first_offset, run.last_offset ?? run.first_offset)}`,
            ),
    },
    { title: "Group", cell: (run) => link(place("groups", run.group_id), named(run.group_id)) },
    { title: "Held by", cell: (run) => named(run.client_id ?? run.member_id ?? "a member that left") },
    { title: "For", cell: (run) => since(run.acquired_ms), number: true },
    { title: "Delivered", cell: (run) => counted(run.delivery_count, "time"), number: true },
];

function oldest(runs) {
    if (runs.length === 0)
        return nothing("No record is acquired now.", [
            "Workers hold records while they process them. See ",
            link(place("groups"), "the groups"),
            ".",
        ]);
    return table(
        "held for the longest time",
        OLDEST,
        runs,
        (run) => `${run.group_id} ${run.topic} ${run.partition} ${run.first_offset}`,
    );
}

const ROLES = [
    { title: "Name", cell: (role) => named(role.name) },
    { title: "Role", cell: (role) => named(role.role.replace("_", " ")) },
    { title: "State", cell: (role) => state(role.state, ROLE_STATES[role.state] ?? "bad") },
    { title: "Address", cell: (role) => named(role.address ?? "") },
    { title: "Reason", cell: (role) => (role.reason ? named(role.reason) : "") },
];

function roles(found, wanted) {
    if (found.length === 0)
        return nothing(
            "No role is shown.",
            "Seeing them needs DESCRIBE on the cluster; kshare doctor says what is wrong with a set-up.",
        );
    return table(
        "roles",
        ROLES,
        found,
        (role) => role.name,
        (role) => ({ "data-role": role.name, class: role.name === wanted ? "chosen" : null }),
    );
}
