// The topics, and one topic: its partitions and configs.

import { path } from "../api.js";
import { h, named } from "../dom.js";
import { list, slices } from "../lists.js";
import { poll } from "../live.js";
import { facts, failed, link, loading, nothing, place, section, state, table, trail } from "../parts.js";
import { count } from "../units.js";

const TOPICS = [
    {
        title: "Topic",
        cell: (topic) => [
            link(place("topics", topic.topic), named(topic.topic)),
            topic.internal ? h("small", {}, " internal") : null,
        ],
    },
    { title: "Partitions", cell: (topic) => count(topic.partitions), number: true },
    { title: "Replication", cell: (topic) => count(topic.replication), number: true },
    {
        title: "Health",
        cell: (topic) => (topic.offline ? state(`${count(topic.offline)} offline`, "bad") : state("online", "good")),
    },
];

export function topics(context) {
    context.title("Topics");
    list(context, {
        url: "api/topics",
        name: "topics",
        columns: TOPICS,
        keyOf: (topic) => topic.topic,
        attributesOf: (topic) => ({ "data-topic": topic.topic }),
        empty: ["There is no topic yet.", "kshare topics create NAME makes one; kshare produce NAME writes to it."],
        changed: (build) => context.show(h("h1", {}, "Topics"), build()),
    });
}

const PARTITIONS = [
    { title: "Partition", cell: (row) => count(row.partition), number: true },
    {
        title: "Leader",
        cell: (row) => (row.leader === null ? state("no leader", "bad") : named(`leader-${row.leader}`)),
    },
    {
        title: "Records",
        cell: (row) => count(row.end_offset === null ? null : row.end_offset - row.start_offset),
        number: true,
    },
    { title: "Start offset", cell: (row) => count(row.start_offset), number: true },
    { title: "End offset", cell: (row) => count(row.end_offset), number: true },
    { title: "Leader epoch", cell: (row) => count(row.epoch), number: true },
];

export function topic(context, name) {
    context.title(`Topic ${name}`);
    let seen = null;
    let failure = null;
    const partitions = slices({
        name: "partitions",
        columns: [
            ...PARTITIONS,
            {
                title: "Newest",
                cell: (row) =>
                    row.end_offset > row.start_offset
                        ? link(place("records", name, row.partition, row.end_offset - 1), "newest record")
                        : "–",
            },
        ],
        keyOf: (row) => row.partition,
        textOf: (row) => `${row.partition} ${row.leader}`,
        redraw: draw,
    });

    function draw() {
        const top = [trail(["Topics", place("topics")], [named(name)]), h("h1", {}, "Topic ", named(name))];
        if (seen === null) return context.show(...top, failure ? failed(failure) : loading());
        return context.show(
            ...top,
            facts([["Topic id", named(seen.topic_id)]]),
            section("Partitions", partitions(seen.partitions)),
            section(
                "Configs",
                seen.configs.length
                    ? table("configs", CONFIGS, seen.configs, (config) => config.name)
                    : nothing("No configs are known.", null),
            ),
        );
    }

    draw();
    poll(
        () => path("topics", name),
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
}

const CONFIGS = [
    { title: "Config", cell: (config) => h("code", {}, named(config.name)) },
    { title: "Value", cell: (config) => named(config.sensitive ? "hidden" : (config.value ?? "")) },
    { title: "Set", cell: (config) => (config.default ? "by default" : "for this topic") },
];
