# The targets a person needs; each makes .venv first when it is missing. See README.md.
# The Python of `.venv`. Debian's takes about 15 % less processor time than pyenv's default build, which has no
# profile-guided optimization, so it goes first where it can make environments and has headers for C extensions.
CAN_SETUP := import ensurepip, os, sys, sysconfig; \
  sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
PYTHON ?= $(shell for python in /usr/bin/python3.11 python3.11 python3; do \
  $$python -c '$(CAN_SETUP)' 2>/dev/null && echo $$python && exit; done; echo python3.11)
BIN := .venv/bin
STAMP := .venv/.setup-stamp

.PHONY: setup demo up test test-all test-attached test-attached-faults test-real-faults test-franz-go test-client-configs test-hostile test-kubernetes test-pipeline-image check bench bench-report bench-delivery-history bench-fastpath bench-first-record bench-heartbeats bench-machine bench-memory bench-messages bench-scale bench-share-coordinator bench-spark model-slow simulate mutations soak protos configs format docs wheels

setup: $(STAMP)

# Compiled, since where PYTHONDONTWRITEBYTECODE is set each start of a process would compile a thousand modules again.
$(STAMP): uv.lock pyproject.toml $(wildcard libs/*/pyproject.toml libs/*/setup.py libs/*/src/*/*.c services/*/pyproject.toml)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv sync --quiet --frozen --all-packages --inexact --compile-bytecode
	$(BIN)/python -m compileall -q libs services
	touch $@

protos: setup
	$(BIN)/python protos/generate.py
	$(BIN)/python libs/wire/generate_messages.py

# docs/configs.md, from the definitions of the configs.
configs: setup
	PYTHONPATH=tests $(BIN)/python -m support.house.config_reference

format: setup
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

# A cluster on a temporary folder, workers that crash, release and reject, and an account of every order.
demo: setup
	$(BIN)/kshare demo

# A package for each service and library, in build/wheels: pip install --constraint build/wheels/constraints.txt kshare
# The constraints name the file of each package, because an index such as PyPI may have others of the same names.
CONSTRAINTS := import pathlib; wheels = sorted(pathlib.Path("build/wheels").resolve().glob("*.whl")); \
  print("\n".join(wheel.name.partition("-")[0] + " @ " + wheel.as_uri() for wheel in wheels))
wheels: setup
	rm -rf build/wheels
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv build --quiet --all-packages --wheel --out-dir build/wheels
	$(BIN)/python -c '$(CONSTRAINTS)' > build/wheels/constraints.txt

# kshare on this machine until Ctrl-C; make up LISTEN=0.0.0.0:9092 DATA=/var/lib/kshare
LISTEN ?= 127.0.0.1:9092
DATA ?= data
up: setup
	$(BIN)/kshare up --data-dir $(DATA) --listen $(LISTEN)

# What needs no container, no Spark and no minutes: rules, models, contracts, seeded simulations, and real clients against
# real processes. Files run side by side in three processes, since many wait for clients; those that measure seconds run
# alone. make test TEST="-n 0" for one process.
TEST ?= -n 3 --dist loadfile --no-loadscope-reorder
QUICK_TESTS := tests/unit tests/contract tests/model tests/simulation \
  tests/e2e/test_confluent_clients.py tests/e2e/examples/test_python_examples.py
test: setup
	$(BIN)/python -m pytest $(TEST) $(QUICK_TESTS)

# The whole test suite, which a change has to pass: make test, then everything else. Tests that measure seconds come last
# and one by one: among the others each would wait until those that run have ended, while nothing new begins.
BEYOND_QUICK := $(addprefix --ignore=,$(QUICK_TESTS))
test-all: test
	$(BIN)/python -m pytest -m "not quiet and not large_image and not attached_faults and not real_faults and not client_programs" $(TEST) $(BEYOND_QUICK)
	$(BIN)/python -m pytest -m "quiet and not large_image and not attached_faults and not real_faults and not client_programs" -n 0 $(BEYOND_QUICK)

# The end-to-end tests of clients in front of an existing Kafka 3.9.1: share groups in mode share, then everything in mode
# proxy with one broker and with three; takes about an hour.
ATTACHED := $(addprefix tests/e2e/,kafka_tools records groups admin share transactions offsets)
ATTACHED_OPTIONS := -n 2 -m "not quiet and not attached_faults and not real_faults"
test-attached: setup
	$(BIN)/python -m pytest $(ATTACHED_OPTIONS) --engine kafka-share tests/e2e/share \
	  tests/e2e/kafka_tools/test_console_share_consumer.py
	$(BIN)/python -m pytest $(ATTACHED_OPTIONS) --engine kafka-proxy $(ATTACHED)
	KSHARE_TEST_BROKERS=3 $(BIN)/python -m pytest $(ATTACHED_OPTIONS) --engine kafka-proxy $(ATTACHED)

# Killed, paused and added processes and brokers, with kshare in front of an existing cluster; takes about 6 minutes.
ATTACHED_FAULTS := $(addprefix tests/e2e/attach/test_,lost_brokers.py paused_owners.py scaling.py started_elsewhere.py)
test-attached-faults: setup
	$(BIN)/python -m pytest -n 0 $(ATTACHED_FAULTS)

# Real processes and clients under faults, judged by the checker of the simulation; needs root and Debian's libfaketime.
test-real-faults: setup
	$(BIN)/python -m pytest -n 0 -m real_faults tests/e2e tests/deploy

# What needs an image with Java: the pipeline's container (with Spark, minutes to build), and compose with an existing Kafka.
test-pipeline-image: setup
	$(BIN)/python -m pytest -m large_image

# The tests of franz-go, a client in Go, on kshare; needs Go. make test-franz-go GO_TEST="-test.run Share -test.v"
test-franz-go: setup
	PYTHONPATH=tests GO_TEST="$(GO_TEST)" $(BIN)/python -m support.clients.franz_go

# The workers that kshare client-config prints, in Python, Java and Go, on listeners with TLS and SASL; needs Java and Go.
test-client-configs: setup
	$(BIN)/python -m pytest -n 0 -m client_programs tests/e2e/cli/test_client_programs.py

# The chart on a real Kubernetes: the one of KUBECONFIG, or one node that ../shared/kubernetes brings up (12 minutes to
# build at the first time, within whichever test comes first).
test-kubernetes: setup
	KSHARE_TEST_KUBERNETES=1 $(BIN)/python -m pytest --timeout 3600 tests/kubernetes

# Everything that looks at the code without running it.
check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python protos/generate.py --check
	$(BIN)/python libs/wire/generate_messages.py --check
	PYTHONPATH=tests $(BIN)/python -m support.house.config_reference --check
	$(BIN)/mypy libs/*/src services/*/src tests docs/conf.py protos/generate.py libs/wire/generate_messages.py
	$(BIN)/mypy examples/python-worker examples/retry-and-dead-letters examples/spark-stream
	$(BIN)/lint-imports
	$(BIN)/python tests/support/house/registrations.py
	$(BIN)/python tests/support/house/tidy.py
	PYTHONPATH=tests $(BIN)/python -m support.house.references
	PYTHONPATH=tests $(BIN)/python -m support.house.dependencies
	$(MAKE) --no-print-directory docs

# The docs site in build/docs. A dead link, a dead anchor, or a page that is in no table of contents is an error.
docs: setup
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --conf-dir docs . build/docs

# Speed as a ratio against Apache Kafka 4.3.1 in the same run; needs Java 17 and Maven.
bench: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks $(BENCH)

# The page with plots of what make bench wrote: make bench-report RUNS="one.json another.json --output page.html"
bench-report: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.page $(RUNS)

# Where the servers' processor time goes: make profile PROFILE="--scenario released --single-process"
profile: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.profile $(PROFILE)

# What one operation of the share-partition machine costs, in microseconds.
bench-machine: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.machine

# What each speed trick is worth: the same work with it and without it.
bench-fastpath: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.fastpath

# What Kafka's messages cost to read and to write, in microseconds.
bench-messages: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.messages

# What a record costs with more partitions, groups, members, and records in the log; beside another checkout in turn with
# make bench-scale BENCH="--tree before=PATH".
bench-scale: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.scale $(BENCH)

# What a write of share-partition state costs as the store grows, and how many 1, 2 and 3 share coordinators take.
bench-share-coordinator: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.share_coordinator $(BENCH)

# Structured Streaming through the share source, beside Spark's own Kafka source on Apache Kafka in the same run.
bench-spark: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.spark_source $(BENCH)

# Subscribe to first record, the medians of ten, beside Apache Kafka's in the same run.
bench-first-record: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.first_record $(BENCH)

# What each process takes of memory: idle, after load and quiet again, beside Apache Kafka.
bench-memory: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.memory $(BENCH)

# What the delivery history costs: share-consume with it and without it, in rounds on two clusters.
bench-delivery-history: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.delivery_history $(BENCH)

# What heartbeats of 10 to 1,000 share groups cost the coordinator.
bench-heartbeats: setup
	PYTHONPATH=tests $(BIN)/python -m benchmarks.heartbeats $(BENCH)

# The share-partition machine against its naive model, 100,000 steps.
model-slow: setup
	$(BIN)/python -m pytest --hypothesis-profile slow tests/model/leader/share

# Hours of mixed load with a fault every 20 s, and an account of every record: make soak HOURS=2. Plots: build/soak.html.
HOURS ?= 2
soak: setup
	PYTHONPATH=tests $(BIN)/python -m soak --hours $(HOURS) $(SOAK)

# Hostile requests against real processes, with a good client beside them: make test-hostile REQUESTS=1000000 SEED=1
REQUESTS ?= 100000
test-hostile: setup
	PYTHONPATH=tests $(BIN)/python -m support.hostile --requests $(REQUESTS) $(if $(SEED),--seed $(SEED)) $(HOSTILE)

# Many seeds of the simulation: make simulate SIMULATE="--seeds 1000"
simulate: setup
	PYTHONPATH=tests $(BIN)/python -m support.simulation $(SIMULATE)

# Every planted bug, over up to 200 seeds until one finds it, and the table: make mutations MUTATIONS="--only leases"
mutations: setup
	PYTHONPATH=tests $(BIN)/python -m support.simulation.mutations $(MUTATIONS)
