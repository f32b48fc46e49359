"""Speed of kshare as a ratio against Apache Kafka 4.3.1, both measured in the same run on the same machine.

    make bench                       # or: .venv/bin/python -m benchmarks --help, with tests/ on PYTHONPATH

Read first: `scenarios` (what is measured), then `__main__` (in which order, and how the ratios are made).
"""
