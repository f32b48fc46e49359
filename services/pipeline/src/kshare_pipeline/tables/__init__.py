"""From the history topic to tables that other tools can read.

| module | holds |
|---|---|
| `layout` | what lies where in the pipeline's data folder |
| `parse` | a record of the topic becomes rows of `events`, or one of `quarantine` |
| `formats` | how tables are stored: Parquet, or Delta or Iceberg where their jars are |
| `parquet` | a folder of Parquet files, to which only whole batches are published |
| `history_stream` | the streaming query: a batch becomes rows once, whatever crashes |
| `upkeep` | joins the small files of days, and removes days that are too old |

`events` has one row for each delivery event, partitioned by the UTC day of the event and by group. A row is
identified by `EVENT_KEY`: an event that the topic has twice (a retry), or that a repeated batch brings again, is one
row. This is found by looking into the table, where only the same day can have it: an event that comes again has the
same time. `quarantine` has the records that are no history, with the reason, partitioned by the day on which they
were appended.
"""
