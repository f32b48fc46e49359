"""Where the servers' processor time goes in one scenario: `make profile PROFILE="--scenario released"`.

A cluster runs the scenario until it is warm, then py-spy samples each of its processes while the scenario runs again.
Told is for each process the processor time of its threads per record, by the threads' names (RocksDB names its own),
and the share of the samples that each package and each function has. Only a thread that holds the interpreter's lock
counts: waiting is not in it. A function has a sample while it runs itself, or C code that it called.
"""
