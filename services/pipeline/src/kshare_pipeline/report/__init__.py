"""The marts as one self-contained HTML page: no scripts, no network, charts as SVG.

`kshare report`, `python -m kshare_pipeline.report`, and the service after each refresh of the marts. `figures` reads
the marts (Parquet, without Spark), `charts` draws, `page` puts the page together.
"""
