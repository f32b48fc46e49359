"""What an existing cluster can do for kshare, and what is missing: findings in words, with the command that mends each.

| module | holds |
|---|---|
| `findings` | a finding, its severity, and the diagnosis |
| `served_apis` | the APIs that kshare calls, and what speaks for an older or another broker |
| `configs` | configs of brokers and topics that decide what is lost when a broker fails |
| `trial` | a topic that is created, written, pruned and deleted, as kshare does with its own |
| `examination` | all of them, in order |
"""
