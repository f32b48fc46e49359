"""The whole system under a virtual clock, an in-memory network and seeded faults; no sockets, threads or real time.

Read first: `loop` (virtual time, and what a crash is), then `network` (calls between roles), `connections` (Kafka bytes
between a client and a gateway), `hosts` (a machine that runs one node), `cluster` (all four roles), `kafka_clients`
(`session`, `producer`, `transactional_producer`, `member`, `admin`), `faults` (which faults occur, and when), `history`
(the recorded events), `evidence`, `checker` and `rules` (whether they were allowed), `plan` and `scenario` (one seed
from start to end), `swarm` (what a seed has at all), `seeds` (`script`: one history as data; `shrink`: a small one from
a failing seed; `coverage`: what seeds met; `fresh`: seeds that no earlier run had).

    python -m support.simulation --seeds 200 --processes 2      many seeds; failing ones are printed
    python -m support.simulation --seed 17 --trace              one seed again, with all that happened
    pytest tests/simulation --seeds 50 | --seed 17              the same from pytest

(run in `tests/`, or with PYTHONPATH=tests). The same seed gives the same history to the last message: everything random
comes from `random.Random` objects that are seeded with the seed and the name of their user.
"""
