// A small chart of one figure over the last minutes. A time without a figure is a gap. The pointer and the arrow keys
// read single points; the words below say the newest and the highest, so that the chart needs no eyes.

import { h, svg } from "./dom.js";
import { clockTime, duration, isKnown } from "./units.js";

const WIDTH = 360;
const HEIGHT = 120;
const LEFT = 4;
const BOTTOM = 20;
const TOP = 8;

/** 1, 2 or 5 times a power of ten that is not below `value`. */
export function niceTop(value) {
    if (!(value > 0)) return 1;
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].map((factor) => factor * power).find((top) => top >= value * 0.9999);
}

/** `points`: [{time_ms, value}], the oldest first, `step_ms` apart; `show` makes a text of a value. */
export function chart(title, points, step_ms, show) {
    const known = points.filter(({ value }) => isKnown(value));
    if (known.length < 2) {
        return h(
            "figure",
            { class: "chart", "data-chart": title },
            h("figcaption", {}, title),
            h("p", { class: "note" }, "Figures are kept while somebody looks; the line begins in a few seconds."),
        );
    }
    const begin = points[0].time_ms;
    const end = points[points.length - 1].time_ms;
    const top = niceTop(Math.max(...known.map(({ value }) => value)));
    const x = (time_ms) => LEFT + ((time_ms - begin) / Math.max(end - begin, 1)) * (WIDTH - 2 * LEFT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    const newest = known[known.length - 1];
    const highest = known.reduce((best, point) => (point.value > best.value ? point : best));
    const words = `Now ${show(newest.value)}, highest ${show(highest.value)} at ${clockTime(highest.time_ms)}, over ${duration(end - begin)}.`;
    return h(
        "figure",
        { class: "chart", "data-chart": title, "data-newest": newest.value },
        h("figcaption", {}, title),
        svg(
            "svg",
            {
                viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
                role: "img",
                "aria-label": `${title}. ${words}`,
                tabindex: "0",
                ...readers(points, x, y, show),
            },
            [0, 0.5, 1].map((share) =>
                svg("line", { class: "grid", x1: LEFT, x2: WIDTH - LEFT, y1: y(top * share), y2: y(top * share) }),
            ),
            pieces(points, step_ms).map((piece) => line(piece, x, y)),
            svg("text", { x: LEFT, y: TOP + 10 }, show(top)),
            svg("text", { x: LEFT, y: HEIGHT - 4 }, clockTime(begin)),
            svg("text", { x: WIDTH - LEFT, y: HEIGHT - 4, "text-anchor": "end" }, clockTime(end)),
            svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, "data-key": "cursor", visibility: "hidden" }),
        ),
        h("p", { class: "note reading" }, words),
    );
}

/** The points without the gaps between them. */
function pieces(points, step_ms) {
    const found = [];
    let last = null;
    for (const point of points) {
        if (!isKnown(point.value)) last = null;
        else {
            if (last === null || point.time_ms - last > step_ms * 3) found.push([]);
            found[found.length - 1].push(point);
            last = point.time_ms;
        }
    }
    return found;
}

function line(piece, x, y) {
    const drawn = piece.map(({ time_ms, value }) => `${x(time_ms).toFixed(1)},${y(value).toFixed(1)}`);
    if (drawn.length === 1)
        return svg("circle", { class: "line", cx: drawn[0].split(",")[0], cy: drawn[0].split(",")[1], r: 2 });
    return svg("polyline", { class: "line", points: drawn.join(" ") });
}

/** Handlers that show the point under the pointer, or the one that arrow keys chose. */
function readers(points, x, y, show) {
    const read = (element, at) => {
        const point = points[Math.max(0, Math.min(points.length - 1, at))];
        const cursor = element.querySelector(".cursor");
        cursor.setAttribute("x1", x(point.time_ms));
        cursor.setAttribute("x2", x(point.time_ms));
        cursor.setAttribute("visibility", "visible");
        element.dataset.at = Math.max(0, Math.min(points.length - 1, at));
        element.parentElement.querySelector(".reading").textContent =
            `${clockTime(point.time_ms)}: ${isKnown(point.value) ? show(point.value) : "no figure"}`;
    };
    return {
        onpointermove: (event) => {
            const element = event.currentTarget;
            const box = element.getBoundingClientRect();
            const wanted = ((event.clientX - box.left) / box.width) * WIDTH;
            const distances = points.map(({ time_ms }) => Math.abs(x(time_ms) - wanted));
            read(element, distances.indexOf(Math.min(...distances)));
        },
        onpointerleave: (event) => event.currentTarget.querySelector(".cursor").setAttribute("visibility", "hidden"),
        onkeydown: (event) => {
            const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
            if (!step) return;
            event.preventDefault();
            read(event.currentTarget, Number(event.currentTarget.dataset.at ?? points.length) + step);
        },
    };
}
