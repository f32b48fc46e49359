// Dead letters by group and reason, with what a redrive would move, and the redrive itself.

import { session } from "../api.js";
import { change } from "../dialogs.js";
import { h, named, visible } from "../dom.js";
import { list } from "../lists.js";
import { link, partitionName, place, since } from "../parts.js";
import { count, counted } from "../units.js";

const REASONS = { rejected: "rejected by a worker", delivery_count_limit: "delivered too often" };
const EXAMPLES = 3;
const URL = "api/dead-letters/redrive";

function examples(found) {
    if (!found?.length) return "none";
    return found
        .slice(0, EXAMPLES)
        .map((record) =>
            h(
                "a",
                { class: "example", href: place("records", record.topic, record.partition, record.offset) },
                partitionName(record.source_topic ?? record.topic, record.source_partition ?? record.partition),
                ` · ${count(record.source_offset ?? record.offset)}`,
            ),
        );
}

const COLUMNS = [
    { title: "Group", cell: (row) => link(place("groups", row.group_id), named(row.group_id)) },
    { title: "Reason", cell: (row) => visible(REASONS[row.reason] ?? row.reason) },
    { title: "Records", cell: (row) => count(row.count), number: true },
    { title: "Last", cell: (row) => [since(row.last_ms), " ago"], number: true },
    { title: "First", cell: (row) => [since(row.first_ms), " ago"], number: true },
    { title: "Topic", cell: (row) => link(place("topics", row.dead_letter_topic), named(row.dead_letter_topic)) },
    { title: "Examples", cell: (row) => examples(row.examples) },
];

export function deadLetters(context) {
    context.title("Dead letters");
    const columns = session.admin ? [...COLUMNS, { title: "Redrive", cell: actions }] : COLUMNS;
    list(context, {
        url: "api/dead-letters",
        name: "reasons",
        hasSearch: false,
        columns,
        keyOf: (row) => `${row.group_id} ${row.dead_letter_topic} ${row.reason}`,
        attributesOf: (row) => ({ "data-dead-letters": `${row.group_id} ${row.reason}` }),
        empty: [
            "There are no dead letters.",
            "A group has them with the config errors.deadletterqueue.topic.name: what is rejected, or delivered too often, is kept there.",
        ],
        changed: (build, answer) => context.show(h("h1", {}, "Dead letters"), ...limits(answer), build()),
    });
}

/** What the figures do not cover, in words. */
function limits(answer) {
    if (answer === null) return [];
    const { is_partial, scanned_records_per_partition, problems } = answer;
    return [
        ...(problems ?? []).map((problem) => h("p", { class: "failure" }, visible(problem.words))),
        is_partial
            ? h(
                  "p",
                  { class: "note" },
                  `Counted are at most the newest ${count(scanned_records_per_partition)} records of each partition; there are more.`,
              )
            : null,
    ];
}

function actions(row) {
    const body = { group_id: row.group_id, dead_letter_topic: row.dead_letter_topic, reasons: [row.reason] };
    return h(
        "span",
        { class: "buttons" },
        h("button", { type: "button", onclick: () => dryRun(body) }, "Dry run"),
        h("button", { type: "button", onclick: () => redrive(body) }, "Redrive"),
    );
}

function dryRun(body) {
    const words = (answer) =>
        h(
            "div",
            {},
            h(
                "p",
                {},
                h("b", {}, counted(answer.would_redrive, "record")),
                " would be produced to their source topic again. Nothing was moved.",
            ),
            outcome(answer),
        );
    change("Dry run of a redrive", "Dry run", URL, { ...body, dry_run: true }, words);
}

function redrive(body) {
    change("Redrive", "Redrive", URL, body, (answer) =>
        h(
            "div",
            {},
            h("p", {}, h("b", {}, counted(answer.redriven, "record")), " produced to their source topic again."),
            outcome(answer),
        ),
    );
}

/** What a redrive leaves out, what it could not move, and some of its records. */
function outcome({ already_redriven, problems, examples: records }) {
    return [
        already_redriven > 0
            ? h("p", {}, `${counted(already_redriven, "record")} were redriven before, and are left out.`)
            : null,
        Object.entries(problems ?? {}).map(([words, many]) =>
            h("p", { class: "failure" }, `${counted(many, "record")}: ${visible(words)}`),
        ),
        records?.length
            ? h(
                  "ul",
                  {},
                  records
                      .slice(0, EXAMPLES)
                      .map(({ from, to, key }) =>
                          h("li", {}, named(from), " → ", named(to), key ? [", key ", named(key)] : null),
                      ),
              )
            : null,
    ];
}
