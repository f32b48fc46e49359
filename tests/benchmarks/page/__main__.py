"""The page of `make bench-report`: the plots of one run or more, from the JSON files that `make bench` wrote.

One self-contained HTML file, drawn with the charts of kshare's own report (`kshare_pipeline.report`): no scripts, no
network, and no plotting library beside them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from benchmarks.page.plots import ratio_plot, sample_plot, size_plot
from benchmarks.report import ROOT, ratio_shown, shown
from benchmarks.rounds import is_better_when_lower, ratios, spread
from benchmarks.run_file import Run, read_run
from benchmarks.scaling import flatness
from kshare_pipeline.report.page import document, write_table

STYLE = """
.whisker{stroke:var(--text);stroke-width:1.4}.sample{fill:var(--text);opacity:.55}.even{stroke:var(--soft)}
.ratio circle{fill:var(--c)}.ratio line{stroke:var(--c);stroke-width:2}
svg text.row{font-size:8.5px}article{margin-bottom:4rem}
"""
RATIO = "Ratio to {baseline}, within each round: median and quartiles; right of 1 is better"
DEFAULT = ROOT / "build" / "benchmark"


def page(runs: Sequence[Run]) -> str:
    """The whole page, a part for each run."""
    body = "".join(_part(run, at) for at, run in enumerate(runs))
    note = (
        "<p class='note'>A bar or a point is the median of the rounds, a thin line reaches from the lower to the upper "
        "quartile, and a dot is a sample. No sample is left out.</p>"
    )
    return document("kshare benchmark", f"<h1>kshare benchmark</h1>{note}{body}", STYLE)


def _part(run: Run, at: int) -> str:
    described = "<br>".join(f"{escape(name)}: {escape(text)}" for name, text in run.described.items())
    sections = "".join(_section(run, scenario, figures) for scenario, figures in run.scenarios.items())
    heading = f"<h2>{escape(', '.join(run.scenarios))}</h2>"
    return f'<article id="run-{at}">{heading}<p class="note">{described}</p>{_overview(run)}{sections}</article>'


def _overview(run: Run) -> str:
    """All ratios in one plot, and the flatness of what was measured at several sizes."""
    rows = {
        figure: {
            system: spread(by_round)
            for system, samples in by_system.items()
            if system != run.baseline and (by_round := ratios(figure, samples, by_system[run.baseline]))
        }
        for figure, by_system in run.samples.items()
    }
    found = ratio_plot(RATIO.format(baseline=run.baseline), rows, run.systems)
    factors = [
        [figure, ", ".join(f"{size:,}" for size in sizes), *_factors(sizes, run.systems)]
        for figure, sizes in flatness.per_record(run.samples).items()
    ]
    if factors:
        columns = ("largest median / smallest", "sizes", *run.systems)
        found += f"<h3>Flatness</h3>{write_table('flatness', columns, factors)}"
    return found


def _factors(sizes: flatness.Series, systems: Sequence[str]) -> list[str]:
    found = flatness.factors(sizes)
    return [f"x{found[system]:.2f}" if system in found else "-" for system in systems]


def _section(run: Run, scenario: str, figures: Sequence[str]) -> str:
    """The plots of one scenario, and its table."""
    samples = {figure: run.samples[figure] for figure in figures if figure in run.samples}
    at_sizes = flatness.series(samples)
    plots = [size_plot(figure, _better(figure), sizes, run.systems) for figure, sizes in at_sizes.items()]
    plots += [
        sample_plot(figure, _better(figure), by_system, run.systems)
        for figure, by_system in samples.items()
        if figure.partition(flatness.MARK)[0] not in at_sizes
    ]
    return (
        f'<section data-scenario="{escape(scenario)}"><h3>{escape(scenario)}</h3>'
        f'<div class="charts">{"".join(plots)}</div>{_table(run, samples)}</section>'
    )


def _better(figure: str) -> str:
    return "lower is better" if is_better_when_lower(figure) else "higher is better"


def _table(run: Run, samples: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    others = [system for system in run.systems if system != run.baseline]
    columns = ["figure", run.baseline, *(text for system in others for text in (system, "ratio"))]
    rows = []
    for figure, by_system in samples.items():
        cells = [figure, shown(spread(by_system[run.baseline]))]
        for system in others:
            if system in by_system:
                ratio = ratio_shown(figure, by_system[system], by_system[run.baseline]).replace("*", "")
                cells += [shown(spread(by_system[system])), ratio]
            else:
                cells += ["-", "-"]
        rows.append(cells)
    return write_table("figures", columns, rows) if rows else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make bench-report", description=__doc__)
    parser.add_argument(
        "runs", type=Path, nargs="*", default=[DEFAULT.with_suffix(".json")], help="files of make bench"
    )
    parser.add_argument("--output", type=Path, default=DEFAULT.with_suffix(".html"))
    given = parser.parse_args(arguments)
    missing = [str(path) for path in given.runs if not path.exists()]
    if missing:
        parser.error(f"there is no {', '.join(missing)}; make bench writes it")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(page([read_run(path) for path in given.runs]))
    print(given.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
