// Where partitions and share-partition states are, what moves, and how a leader is emptied before it is taken away.

import { session } from "../api.js";
import { change } from "../dialogs.js";
import { h, named } from "../dom.js";
import { slices } from "../lists.js";
import { poll } from "../live.js";
import { failed, loading, nothing, partitionName, section, state } from "../parts.js";
import { count } from "../units.js";

export function placement(context) {
    context.title("Placement");
    let seen = null;
    let failure = null;
    const leaders = nodes("leader", "leaders", () => draw());
    const coordinators = nodes("share-coordinator", "share coordinators", () => draw());
    const moves = slices({
        name: "moves under way",
        columns: MOVES,
        keyOf: (move) => `${move.topic} ${move.partition}`,
        textOf: (move) => `${move.topic}-${move.partition} ${move.from} ${move.to}`,
        redraw: () => draw(),
    });

    function draw() {
        const top = h("h1", {}, "Placement");
        if (seen === null) return context.show(top, failure ? failed(failure) : loading());
        return context.show(
            top,
            section(
                "Leaders",
                seen.leaders.length
                    ? leaders(seen.leaders)
                    : nothing("No leader is known.", "Records are stored once a leader has started."),
            ),
            section(
                "Share coordinators",
                seen.share_coordinators.length
                    ? coordinators(seen.share_coordinators)
                    : nothing("No share coordinator is known.", "Share groups work once one has started."),
            ),
            section(
                "Moves under way",
                seen.moves.length
                    ? [moves(seen.moves), cut(seen)]
                    : nothing(
                          "No partition moves now.",
                          "kshare partitions move and rebalance begin moves; a drain empties a leader.",
                      ),
            ),
        );
    }

    draw();
    poll(
        () => "api/placement",
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

function nodeState(node) {
    if (node.live === false) return state("does not answer", "bad");
    return node.draining ? state("draining", "busy") : state("in use", "good");
}

const MOVES = [
    { title: "Partition", cell: (move) => partitionName(move.topic, move.partition) },
    { title: "From", cell: (move) => named(move.from ?? "none") },
    { title: "To", cell: (move) => named(move.to ?? "none") },
    { title: "Phase", cell: (move) => named(move.phase) },
];

function cut({ moves, moves_total }) {
    return moves_total > moves.length
        ? h("p", { class: "note" }, `${count(moves_total - moves.length)} further moves are not listed.`)
        : null;
}

function nodes(role, name, redraw) {
    const columns = [
        { title: "Name", cell: (node) => named(node.name) },
        { title: "Partitions", cell: (node) => count(node.partitions ?? node.state_partitions), number: true },
        { title: "State", cell: nodeState },
    ];
    if (session.admin)
        columns.push({
            title: "Drain",
            cell: (node) =>
                h(
                    "button",
                    { type: "button", disabled: node.draining, onclick: () => drain(role, node.name) },
                    "Drain",
                ),
        });
    return slices({
        name,
        columns,
        keyOf: (node) => node.name,
        textOf: (node) => node.name,
        redraw,
        attributesOf: (node) => ({ "data-node": node.name }),
    });
}

function drain(role, name) {
    change(
        `Drain ${name}`,
        "Drain",
        "api/placement/drain",
        { role, name },
        () => `${name} gives its partitions to others; they are listed under moves.`,
    );
}
