"""Speed of kshare as a ratio against Apache Kafka 4.3.1, both measured in the same run on the same machine.

    make bench                       # or: .venv/bin/python -m benchmarks --help, with tests/ on PYTHONPATH

Read first: `rounds` (in which order, and how the ratios are made), then `scenarios` and `paced` (what is measured).
"""
