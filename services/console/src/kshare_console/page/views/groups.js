// The groups with their lag, and one group: members, share-partitions, configs.

import { path, session } from "../api.js";
import { change, form } from "../dialogs.js";
import { h, named, visible } from "../dom.js";
import { list, slices } from "../lists.js";
import { stream } from "../live.js";
import {
    facts,
    failed,
    figure,
    link,
    loading,
    nothing,
    partitionName,
    place,
    section,
    state,
    table,
    trail,
} from "../parts.js";
import { count, counted, duration, offsets } from "../units.js";

const GROUP_STATES = {
    Stable: "good",
    Empty: "none",
    Assigning: "busy",
    Reconciling: "busy",
    PreparingRebalance: "busy",
    CompletingRebalance: "busy",
};
const TOPICS_SHOWN = 3;

function groupState(words) {
    return state(words, GROUP_STATES[words] ?? "bad");
}

function topics(names) {
    const shown = names.slice(0, TOPICS_SHOWN).flatMap((name, at) => [at ? ", " : "", named(name)]);
    return [shown, names.length > TOPICS_SHOWN ? ` and ${count(names.length - TOPICS_SHOWN)} more` : ""];
}

const GROUPS = [
    { title: "Group", cell: (group) => link(place("groups", group.group_id), named(group.group_id)) },
    { title: "State", cell: (group) => groupState(group.state) },
    { title: "Members", cell: (group) => count(group.members), number: true },
    { title: "Lag", cell: (group) => count(group.lag_records), number: true },
    { title: "In flight", cell: (group) => count(group.in_flight), number: true },
    { title: "Topics", cell: (group) => topics(group.topics ?? []) },
];

export function groups(context) {
    context.title("Groups");
    list(context, {
        url: "api/groups",
        name: "groups",
        columns: GROUPS,
        keyOf: (group) => group.group_id,
        attributesOf: (group) => ({ "data-group": group.group_id }),
        empty: [
            "There is no share group yet.",
            "A group appears when its first worker joins: kshare consume TOPIC --group NAME, or one of the examples.",
        ],
        changed: (build) => context.show(h("h1", {}, "Groups"), build()),
    });
}

const MEMBERS = [
    { title: "Client", cell: (member) => named(member.client_id || "no client id") },
    { title: "Host", cell: (member) => named(member.host ?? "") },
    { title: "In flight", cell: (member) => count(member.in_flight), number: true },
    { title: "Assigned", cell: (member) => assigned(member.assignment ?? []) },
    { title: "Member id", cell: (member) => h("small", {}, named(member.member_id)) },
];

function assigned(assignment) {
    const total = assignment.reduce((sum, { partitions }) => sum + partitions.length, 0);
    if (total === 0) return "nothing";
    const parts = assignment.map(({ topic, partitions }) => h("div", {}, named(topic), `: ${partitions.join(", ")}`));
    if (total <= 6) return parts;
    return h(
        "details",
        {},
        h("summary", {}, `${counted(total, "partition")} of ${counted(assignment.length, "topic")}`),
        parts,
    );
}

function partitionColumns(group) {
    return [
        {
            title: "Share-partition",
            cell: (row) =>
                link(place("groups", group, row.topic, row.partition), partitionName(row.topic, row.partition)),
        },
        { title: "Lag", cell: (row) => count(row.lag_records), number: true },
        { title: "Acquired", cell: (row) => count(row.acquired), number: true },
        { title: "Available", cell: (row) => count(row.available), number: true },
        { title: "Done early", cell: (row) => count(row.done), number: true },
        {
            title: "Oldest held for",
            cell: (row) =>
                row.problem
                    ? named(row.problem)
                    : row.oldest_acquired_ms === null
                      ? "–"
                      : duration(row.oldest_acquired_ms),
            number: true,
        },
        { title: "Start offset", cell: (row) => count(row.start_offset), number: true },
        { title: "End offset", cell: (row) => count(row.end_offset), number: true },
        { title: "Leader", cell: (row) => named(row.leader ?? "none") },
    ];
}

export function group(context, groupId) {
    context.title(`Group ${groupId}`);
    let seen = null;
    let failure = null;
    let partitions = loading;
    const members = slices({
        name: "members",
        columns: MEMBERS,
        keyOf: (member) => member.member_id,
        textOf: (member) => `${member.client_id} ${member.host} ${member.member_id}`,
        redraw: draw,
    });

    function draw() {
        const top = [trail(["Groups", place("groups")], [named(groupId)]), h("h1", {}, "Group ", named(groupId))];
        if (seen === null) return context.show(...top, failure ? failed(failure) : loading());
        return context.show(
            ...top,
            facts([
                ["State", groupState(seen.state)],
                ["Lag", counted(seen.lag_records, "record")],
                ["Records delivered more than once", link(place("groups", groupId, "poison"), "poison records")],
            ]),
            section("Members", seen.members.length ? members(seen.members) : noMembers()),
            section("Share-partitions", partitions()),
            section("Configs", configs(groupId, seen.configs)),
        );
    }

    draw();
    stream(
        `api/stream?view=group&group=${encodeURIComponent(groupId)}`,
        path("groups", groupId),
        (fresh) => {
            seen = fresh;
            draw();
        },
        (problem) => {
            failure = problem;
            if (seen === null) draw();
        },
        context.signal,
    );
    list(context, {
        url: path("groups", groupId, "share-partitions"),
        name: "share-partitions",
        columns: partitionColumns(groupId),
        keyOf: (row) => `${row.topic} ${row.partition}`,
        attributesOf: (row) => ({ "data-partition": `${row.topic}-${row.partition}` }),
        empty: [
            "The group has no share-partition yet.",
            "They appear when a member subscribes to a topic that exists.",
        ],
        changed: (build) => {
            partitions = build;
            draw();
        },
    });
}

function noMembers() {
    return nothing(
        "No worker is a member now.",
        "Records wait until a worker joins. The group's lag is kept; scale the workers up, or look at their logs.",
    );
}

const CONFIGS = [
    { title: "Config", cell: (config) => h("code", {}, named(config.name)) },
    { title: "Value", cell: (config) => named(config.sensitive ? "hidden" : (config.value ?? "")) },
    { title: "Set", cell: (config) => (config.default ? "by default" : "for this group") },
];

function configs(groupId, found) {
    if (!found?.length) return nothing("No configs are known.", null);
    const changing = {
        title: "Change",
        cell: (config) => h("button", { type: "button", onclick: () => alter(groupId, config) }, "Change"),
    };
    return table("configs", session.admin ? [...CONFIGS, changing] : CONFIGS, found, (config) => config.name);
}

function alter(groupId, { name, value }) {
    form(`Change ${name}`, `New value for group ${groupId}`, value ?? "", "Go on", (text) =>
        change(
            `Change ${name}`,
            "Change",
            path("groups", groupId, "configs"),
            { configs: { [name]: text } },
            () => `${name} is ${text} now.`,
        ),
    );
}

const POISON = (groupId) => [
    {
        title: "Records",
        cell: (row) =>
            link(
                place("records", row.topic, row.partition, row.offset),
                partitionName(row.topic, row.partition),
                ` · ${offsets(row.offset, row.last_offset ?? row.offset)}`,
            ),
    },
    { title: "Delivered", cell: (row) => counted(row.delivery_count, "time"), number: true },
    {
        title: "State",
        cell: (row) => link(`${place("groups", groupId, row.topic, row.partition)}?offset=${row.offset}`, row.state),
    },
    { title: "Held by", cell: (row) => (row.client_id || row.member_id ? named(row.client_id ?? row.member_id) : "–") },
];

export function poison(context, groupId) {
    context.title(`Poison records of ${groupId}`);
    list(context, {
        url: path("groups", groupId, "poison"),
        name: "poison records",
        hasSearch: false,
        columns: POISON(groupId),
        keyOf: (row) => `${row.topic} ${row.partition} ${row.offset}`,
        empty: (answer) =>
            answer.problems?.length
                ? ["No such record was found in the share-partitions that could be read.", null]
                : [
                      "No record is being delivered more than once.",
                      "Records appear here while workers release them, or their locks end, until they are acknowledged or become dead letters.",
                  ],
        changed: (build, answer) =>
            context.show(
                trail(["Groups", place("groups")], [named(groupId), place("groups", groupId)], ["Poison records"]),
                h("h1", {}, "Poison records of ", named(groupId)),
                h(
                    "p",
                    { class: "note" },
                    "Records that were delivered more than once and are not done. A record links to its headers and payload.",
                ),
                ...(answer?.problems ?? []).map((problem) => h("p", { class: "failure" }, visible(problem.words))),
                build(),
            ),
    });
}
