"""What receivers of reassignments share: leaders copy partitions, share coordinators copy state partitions.

`copy_loop` runs the steps of a copy and retries them; `rows` splits the data of a page into its rows.
"""
