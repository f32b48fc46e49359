"""From the history topic to tables that other tools can read.

| module | holds |
|---|---|
| `layout` | the files in the data folder |
| `parse` | parses a record of the topic into rows of `events`, or one of `quarantine` |
| `formats` | the storage of tables |
| `parquet` | a folder of Parquet files, to which only complete batches are published |
| `history_stream` | the streaming query: each batch becomes rows once, across crashes |
| `upkeep` | joins the small files of days, and removes days that are too old |

`events` has one row for each delivery event, partitioned by the UTC day of the event and by group. A row is
identified by `EVENT_KEY`: an event that is in the topic twice (a retry), or in a repeated batch, is one row. A lookup
in the table finds it, in one day's partition, because a repeated event has the same time. `quarantine` has malformed
records with the reason, partitioned by the day of their append.
"""
