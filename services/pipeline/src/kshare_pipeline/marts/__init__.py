"""Figures of the delivery history, computed by day from the table `events`.

| module | holds |
|---|---|
| `deliveries` | the end of each piece of an acquired run, by one pass over the ordered events |
| `definitions` | the marts: their columns and their exact meaning |
| `refresh` | recomputes the days whose events changed; a day of a mart is one Parquet file |

A run counts as last_offset - first_offset + 1 records everywhere, and percentiles are weighted by it.
"""
