# SPDX-License-Identifier: Apache-2.0
# Everything a clone needs; only python3 (3.10 or later), make and Java (17 or later, for Spark) must be there;
# for tests of SQL Server's driver also three libraries of the system, which `make libraries` names.
SHELL := bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.changefeed-installed
UV_VERSION := $(shell sed -n 's/^uv==\([^ ;]*\).*/\1/p' constraints.txt)
UV := $(BIN)/uv
# Where `make ui` listens, on 127.0.0.1
PORT ?= 8080
# Processes that share the tests, one more than cores because they also wait for servers, clocks and Spark; 0 runs
# the tests in this one, for --pdb and the like
WORKERS ?= 3
# More options for pytest, for example: make test PYTEST_ARGS="tests/unit -k ulid"
PYTEST_ARGS ?=
# A folder for a JUnit report of each target: tests.tools.check_report judges them
REPORTS ?=
PYTEST = -m pytest $(if $(REPORTS),--junitxml='$(REPORTS)/$@.xml')
SHARED := -n $(WORKERS) --dist loadgroup --max-worker-restart 0

# Minors of Spark: the newest patch of each, the Python of one, and files of tests that need what one lacks
SPARKS ?= 3.5 4.0 4.1 4.2 4.3
PYSPARK_3.5 := 3.5.9
PYSPARK_4.0 := 4.0.4
PYSPARK_4.1 := 4.1.3
PYSPARK_4.2 := 4.2.0
PYSPARK_4.3 := 4.3.0
SPARK_PYTHON_3.5 := >=3.10,<3.12
SPARK_LACKS_3.5 := $(wildcard tests/*/spark/test_datasource*.py)
SPARK_LACKS_4.0 := tests/unit/spark/test_datasource_filters.py
# What `make matrix-spark` tests on each
SPARK_TESTS ?= $(wildcard tests/unit/spark/test_*.py) \
	$(patsubst %,tests/integration/spark/test_%.py,versions job fold fold_bases fold_snapshots fold_job merge_job snapshot_job reconcile types datasource datasource_capture datasource_stream)

# Older minors of Airflow: the newest patch of each, the day of its release, and the Spark that it is tested with
MINORS ?= 3.0 3.1 3.2
RELEASE_3.0 := 3.0.6 2025-08-29 $(PYSPARK_4.0)
RELEASE_3.1 := 3.1.8 2026-03-11 $(PYSPARK_4.1)
RELEASE_3.2 := 3.2.2 2026-05-29 $(PYSPARK_4.2)
# What `make matrix` tests on each
FACES ?= tests/unit/airflow tests/system/test_dags.py

# uv answers "is this installed" with hard links where it can; a copy is as good where the cache is on another disk.
export UV_LINK_MODE ?= copy
export UV_NO_PROGRESS ?= 1
# No other environment that happens to be active may be changed.
unexport VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH
# Some dozen processes of Airflow and Spark are started, each of which would compile a thousand modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup java libraries demo demo-mssql ui test test-more fuzz check matrix matrix-spark operators observability constraints-operators walks docs svg pictures constraints-docs browser stores readers soak mutants tsql test-mssql bench plots lint format constraints constraints-airflow build release-check fixtures surface clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(STAMP) ## Make .venv with the exact versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "make setup: $(PYTHON) is not on PATH. Install Python 3.10 or later, or name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "make setup: $$($(PYTHON) --version) is too old, 3.10 or later is needed. Name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "make setup: $(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@[ "$$($(UV) --version 2>/dev/null | cut -d' ' -f2)" = "$(UV_VERSION)" ] || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv==$(UV_VERSION)"
	@echo "Installing into $(VENV) (the first time this downloads about 1 GB)"
	@$(UV) pip install --quiet --python $(BIN)/python -c constraints.txt -b constraints.txt -e '.[dev,mssql,spark,s3,azure,gcs,delta,iceberg]'
	@touch $(STAMP)

java: ## Check that Java 17 or later is there for Spark
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version="$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)"; \
	if [ "$${version:-0}" -lt 17 ]; then \
		if [ -z "$$version" ]; then echo "Spark needs Java 17 or later, and no Java was found ($$java)."; \
		else echo "Spark needs Java 17 or later, and $$java is version $$version."; fi; \
		echo "  Debian, Ubuntu:  sudo apt-get install openjdk-17-jre-headless"; \
		echo "  Fedora, RHEL:    sudo dnf install java-21-openjdk-headless"; \
		echo "  macOS:           brew install openjdk@17; export JAVA_HOME=\"\$$(brew --prefix openjdk@17)\""; \
		echo "If it is installed elsewhere, export JAVA_HOME with its folder."; \
		exit 1; \
	fi >&2

libraries: ## Check that Microsoft's driver for SQL Server finds the libraries of the system that it needs
	@[ "$$(uname)" != Linux ] || $(PYTHON) -c 'import ctypes.util, sys; \
		sys.exit(not all(map(ctypes.util.find_library, ("ltdl", "krb5", "gssapi_krb5"))))' || { \
		echo "Microsoft's driver for SQL Server needs libltdl, libkrb5 and libgssapi_krb5; at least one was not found."; \
		echo "  Debian, Ubuntu:  sudo apt-get install libltdl7 libkrb5-3 libgssapi-krb5-2"; \
		echo "  Fedora, RHEL:    sudo dnf install libtool-ltdl krb5-libs"; \
		exit 1; \
	} >&2

demo: setup java ## Backfill real flights through Airflow and Spark, with proof (under 6 minutes)
	@$(BIN)/python -m tests.system.demo

# The same on an older Airflow: make demo-airflow-3.0
demo-airflow-%: .venv-airflow-%/.changefeed-installed java
	@.venv-airflow-$*/bin/python -m tests.system.demo

demo-mssql: setup java libraries ## The same on the SQL Server named by CHANGEFEED_TEST_MSSQL
	@$(BIN)/python -m tests.system.demo --mssql

# Where `make observability` has installed clients of OpenLineage and StatsD, with these.
ui: setup java ## Open Airflow's UI with a loaded feed and a week of hourly windows (PORT=8080)
	@python=.venv-observability/bin/python; [ -e .venv-observability/.changefeed-installed ] || python=$(BIN)/python; \
	exec $$python -m tests.system.ui --port "$(PORT)"

# Which tests are in which tier: docs/CONTRIBUTING.md
test: setup java libraries ## Run the gate: each promise, quickly (5 minutes on two cores)
	@$(BIN)/python $(PYTEST) -m "not ci and not nightly" $(SHARED) $(PYTEST_ARGS)

test-more: setup java libraries ## Run what the gate leaves out: Spark, Airflow's processes, races (6 minutes)
	@$(BIN)/python $(PYTEST) -m "ci and not nightly" $(SHARED) $(PYTEST_ARGS)

# Spark and what its jobs need, without Airflow; Spark 3.5 with the oldest versions that do.
.venv-spark-%/.changefeed-installed: constraints/spark.in constraints.txt $(wildcard constraints/spark-*.txt) | $(STAMP)
	@echo "Installing PySpark $(PYSPARK_$*) into $(@D)"
	@$(UV) venv --quiet --clear --python '$(or $(SPARK_PYTHON_$*),$(PYTHON))' $(@D)
	@grep -Ev '^(pyspark|py4j)' $(firstword $(wildcard constraints/spark-$*.txt) constraints.txt) > $(@D)/constraints.txt
	@$(UV) pip install --quiet --python $(@D)/bin/python -c $(@D)/constraints.txt -b constraints.txt \
		-r constraints/spark.in pyspark==$(PYSPARK_$*)
	@touch $@

# PySpark before 4.2 leaves sockets to the garbage collector, and 3.5 still uses distutils.
matrix-spark: $(SPARKS:%=.venv-spark-%/.changefeed-installed) java ## Test jobs and data source on other Sparks (SPARKS="3.5 4.0"), and what a plain install takes
	@status=0; \
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/registry || status=1; \
	$(foreach minor,$(SPARKS),echo "Spark $(minor)"; \
		.venv-spark-$(minor)/bin/python -m pytest \
			-W 'ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning' \
			-W 'ignore:The distutils package is deprecated:DeprecationWarning' \
			-W 'ignore:distutils Version classes are deprecated:DeprecationWarning' $(PYTEST_ARGS) \
			$(filter-out $(SPARK_LACKS_$(minor)),$(SPARK_TESTS)) || status=1;) \
	exit $$status

# An older Airflow in an environment of its own, with what its time had; Airflow 3.0 needs Python 3.12 or earlier.
.venv-airflow-%/.changefeed-installed: pyproject.toml constraints/airflow-%.txt | $(STAMP)
	@[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	@echo "Installing into $(@D)"
	@$(UV) pip install --quiet --python $(@D)/bin/python -c constraints/airflow-$*.txt -b constraints.txt -e '.[dev,mssql,spark,s3,azure,gcs,delta,iceberg]'
	@touch $@

matrix: $(MINORS:%=.venv-airflow-%/.changefeed-installed) java ## Run the tests of the Airflow faces and the example DAGs on older Airflows (MINORS="3.0 3.1 3.2")
	@status=0; \
	for minor in $(MINORS); do \
		echo "Airflow $$minor"; \
		.venv-airflow-$$minor/bin/python -m pytest $(if $(REPORTS),--junitxml='$(REPORTS)/$@-'$$minor.xml) -m "not nightly" $(SHARED) $(PYTEST_ARGS) $(FACES) || status=1; \
	done; \
	exit $$status

.venv-operators/.changefeed-installed: pyproject.toml constraints/operators.txt | $(STAMP)
	@[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	@echo "Installing into $(@D)"
	@$(UV) pip install --quiet --python $(@D)/bin/python -c constraints/operators.txt -b constraints.txt -r constraints/operators.in -e '.[dev]'
	@touch $@

operators: .venv-operators/.changefeed-installed ## Import and render the documented operators of other providers
	@.venv-operators/bin/python $(PYTEST) $(PYTEST_ARGS) tests/operators

constraints-operators: setup ## Resolve constraints/operators.txt again
	@grep -E '^(apache-airflow|pyspark|pyspark-client)==' constraints.txt > build/airflow.in
	@{ echo "# Airflow and the providers whose operators the docs show."; \
		echo "# Made by \`make constraints-operators\`; versions only, no addresses."; \
		$(UV) pip compile --quiet --universal --python-version 3.10 --extra dev --no-header --no-annotate \
			-c build/airflow.in pyproject.toml constraints/operators.in; } > build/operators.txt
	@mv build/operators.txt constraints/operators.txt

# What sends lineage and metrics, beside the versions of constraints.txt.
.venv-observability/.changefeed-installed: pyproject.toml constraints.txt constraints/observability.txt | $(STAMP)
	@[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	@echo "Installing into $(@D)"
	@$(UV) pip install --quiet --python $(@D)/bin/python -c constraints.txt -b constraints.txt -r constraints/observability.txt -e '.[dev,spark,delta]'
	@touch $@

observability: .venv-observability/.changefeed-installed ## Test lineage and metrics with real clients of OpenLineage and StatsD, and the alerts (needs Python 3.11 or later and promtool)
	@.venv-observability/bin/python $(PYTEST) $(PYTEST_ARGS) \
		tests/unit/airflow/test_lineage.py tests/unit/airflow/test_metrics.py tests/observability

walks: setup java ## Walk the long tutorial as its reader does (3 minutes)
	@$(BIN)/python $(PYTEST) $(PYTEST_ARGS) tests/walks

browser: setup ## Test the page in Airflow in a browser (needs chromium and chromedriver)
	@$(BIN)/python $(PYTEST) $(PYTEST_ARGS) tests/browser

# What plays Azure and Google Cloud Storage on this machine. Azurite from 3.36 on needs Node 22.
AZURITE_VERSION := 3.35.0
FAKE_GCS_VERSION := v1.52.3

build/stores/node_modules/.bin/azurite-blob:
	@command -v npm >/dev/null || { echo "make stores: npm is not on PATH; Azurite needs Node.js 18 or later" >&2; exit 1; }
	@npm install --prefix build/stores --no-audit --no-fund --loglevel=error "azurite@$(AZURITE_VERSION)"

build/stores/bin/fake-gcs-server:
	@command -v go >/dev/null || { echo "make stores: go is not on PATH; fake-gcs-server needs Go 1.24 or later" >&2; exit 1; }
	@GOBIN="$$PWD/build/stores/bin" go install "github.com/fsouza/fake-gcs-server@$(FAKE_GCS_VERSION)"

stores: setup build/stores/node_modules/.bin/azurite-blob build/stores/bin/fake-gcs-server ## Test exports to Azure and Google Cloud Storage (needs Node.js and Go)
	@$(BIN)/python $(PYTEST) -m "not nightly" --timeout 900 $(SHARED) $(PYTEST_ARGS) tests/stores

# DuckDB with those of its extensions that packages have. Spark takes its jars from Maven Central.
.venv-readers/.changefeed-installed: constraints/readers.txt | $(STAMP)
	@echo "Installing into $(@D)"
	@$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python -r constraints/readers.txt
	@touch $@

readers: .venv-readers/.changefeed-installed .venv-spark-4.1/.changefeed-installed java ## Read tables by Spark and by DuckDB's extensions
	@$(BIN)/python $(PYTEST) $(PYTEST_ARGS) tests/readers

# Sphinx, and what draws, beside the package with its Airflow, whose docstrings Sphinx reads.
.venv-docs/.changefeed-installed: pyproject.toml constraints.txt constraints/docs.txt | $(STAMP)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make docs: Sphinx needs Python 3.11 or later, and $(VENV) has $$($(BIN)/python --version)." >&2; exit 1; }
	@[ -x $(@D)/bin/python ] || $(PYTHON) -m venv $(@D)
	@echo "Installing into $(@D)"
	@$(UV) pip install --quiet --python $(@D)/bin/python -c constraints.txt -b constraints.txt -r constraints/docs.txt -e .
	@touch $@

docs: .venv-docs/.changefeed-installed ## Build the documentation's site into build/docs (needs Python 3.11 or later)
	@.venv-docs/bin/python -m tests.tools.pictures --check
	@.venv-docs/bin/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going docs build/docs
	@echo "The site begins at build/docs/index.html."

svg: .venv-docs/.changefeed-installed ## Draw the documentation's diagrams, and plots of its benchmarks
	@.venv-docs/bin/python -m tests.tools.pictures

pictures: svg setup java ## Make all pictures of the documentation again, from a running Airflow (10 minutes; needs chromium and chromedriver)
	@CHANGEFEED_PICTURES=docs/images $(MAKE) browser
	@CHANGEFEED_PICTURES=docs/images $(BIN)/python -m tests.system.ui.pictures

constraints-docs: setup ## Resolve constraints/docs.txt again
	@mkdir -p build
	@grep -v '^#' constraints.txt > build/constraints.txt
	@{ echo "# Sphinx and matplotlib, for Python 3.11 and later; what constraints.txt has, too, in its versions."; \
		echo "# Made by \`make constraints-docs\`; versions only, no addresses."; \
		$(UV) pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --group docs --no-header --no-annotate \
			-c build/constraints.txt; } > build/docs.txt
	@mv build/docs.txt constraints/docs.txt
	@rm build/constraints.txt

soak: setup java libraries ## Run the nightly tests: launchers, long races, all values and names (hours)
	@! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || $(MAKE) .venv-observability/.changefeed-installed
	@$(BIN)/python $(PYTEST) -m nightly --timeout 7200 $(PYTEST_ARGS) tests/unit tests/integration tests/system tests/stores

# Those of T-SQL, on the server named by CHANGEFEED_TEST_MSSQL: make mutants SERVER=1; one: make mutants ONLY=purge_past_acks
mutants: setup java ## Break the package, one break at a time in a copy, and see that the tests notice (10 minutes; needs Mono)
	@$(BIN)/python -m tests.mutation $(if $(ONLY),--only "$(ONLY)") $(if $(SERVER),--server)

# Beside the environment, not in it: only this needs it, and it has no packages of its own.
build/fuzz/atheris: constraints/fuzz.txt | $(STAMP)
	@$(UV) pip install --quiet --python $(BIN)/python --target $(@D) -r constraints/fuzz.txt
	@touch $@

fuzz: build/fuzz/atheris ## Fuzz what reads documents of others, guided by coverage (SECONDS=600; Linux)
	@mkdir -p build/fuzz/corpus
	@PYTHONPATH=build/fuzz $(BIN)/python -m tests.unit.hostile.fuzz build/fuzz/corpus \
		-artifact_prefix=build/fuzz/ -max_total_time=$(or $(SECONDS),600) -max_len=8192 -verbosity=0

tsql: setup ## Compile all T-SQL with Microsoft's compiler (needs Mono)
	@status=0; \
	$(BIN)/python -m tests.tools.tsql || status=1; \
	$(BIN)/python $(PYTEST) $(PYTEST_ARGS) tests/tsql || status=1; \
	exit $$status

test-mssql: setup java libraries ## Run all tests of SQL Server on CHANGEFEED_TEST_MSSQL, or on a container of Microsoft's (FULL=1: probes for hours)
	@$(if $(FULL),CHANGEFEED_TEST_MSSQL_FULL=1 )$(BIN)/python -m tests.tools.mssql $(PYTEST_ARGS)

bench: setup java ## Measure (about half an hour), and 20 minutes more on the server named by CHANGEFEED_TEST_MSSQL
	@$(BIN)/python -m tests.benchmarks
	@$(MAKE) plots

# What was measured last as pictures, like those of docs/reference/benchmarks.md.
plots: .venv-docs/.changefeed-installed
	@.venv-docs/bin/python -m tests.tools.pictures --plots build/benchmarks.md build/plots

bench-%: setup java ## Measure one chapter: bench-history, or bench-year (an hour, 20 GB of disk)
	@$(BIN)/python -m tests.benchmarks $*
	@$(MAKE) plots

# For example: make check SINCE=HEAD PYTEST_ARGS="-x -k NAME"
check: setup ## Check what changed since main (SINCE=...): style, types, nearest unit tests, contract (first run: minutes)
	@$(BIN)/python -m tests.tools.check $(if $(SINCE),--since $(SINCE)) $(PYTEST_ARGS)

lint: setup ## Check style and types
	@status=0; \
	$(BIN)/ruff check --output-format concise . || status=1; \
	$(BIN)/ruff format --check . || status=1; \
	$(BIN)/mypy || status=1; \
	exit $$status

format: setup ## Sort imports and format
	@$(BIN)/ruff check --select I --fix .
	@$(BIN)/ruff format .

constraints: setup ## Resolve constraints.txt again (UPGRADE=1 takes the newest versions)
	@mkdir -p build
	@grep -v '^#' constraints.txt > build/constraints.txt
	@$(UV) pip compile --quiet --universal --python-version 3.10 --all-extras --no-header --no-annotate \
		$(if $(UPGRADE),--upgrade) pyproject.toml -o build/constraints.txt
	@grep '^#' constraints.txt > build/constraints.new
	@cat build/constraints.txt >> build/constraints.new
	@mv build/constraints.new constraints.txt
	@rm build/constraints.txt

# What is exempt from the date is not Airflow's: our driver, Spark, and tools that the tests know in one version.
UNDATED := hypothesis moto mssql-python mssql-python-odbc mssql-python-rs pyspark pyspark-client pytest

constraints-airflow: setup ## Resolve constraints/airflow-3.N.txt again, from what was released until Airflow's
	@mkdir -p build constraints
	@resolve() { \
		printf '%s\n' "apache-airflow==$$2" "pyspark==$$4" "pyspark-client==$$4" > build/airflow.in; \
		rm -f build/airflow.txt; \
		$(UV) pip compile --quiet --universal --python-version 3.10 --all-extras --no-header --no-annotate \
			--exclude-newer "$$3" $(UNDATED:%=--exclude-newer-package %=2026-11-20) \
			pyproject.toml build/airflow.in -o build/airflow.txt && \
		{ echo "# Airflow $$2 and what was released until $$3, but for: $(UNDATED)."; \
			echo "# Made by \`make constraints-airflow\`; versions only, no addresses."; \
			cat build/airflow.txt; } > "constraints/airflow-$$1.txt"; \
	}; \
	$(foreach minor,$(MINORS),resolve $(minor) $(RELEASE_$(minor)) &&) rm build/airflow.in build/airflow.txt

build: setup ## Build the wheel and the source distribution into dist/
	@rm -rf dist
	@$(UV) build --quiet --python $(BIN)/python -b constraints.txt --out-dir dist

.venv-release/.changefeed-installed: constraints/release.txt | $(STAMP)
	@echo "Installing into $(@D)"
	@$(UV) venv --quiet --clear --python $(BIN)/python $(@D)
	@$(UV) pip install --quiet --python $(@D)/bin/python -r constraints/release.txt
	@touch $@

release-check: build .venv-release/.changefeed-installed java ## Install what is built into fresh environments without constraints, and use it
	@mkdir -p build
	@$(BIN)/python -m tests.tools.changelog > build/release-notes.md
	@$(BIN)/python -m tests.tools.check_wheel dist
	@.venv-release/bin/twine check --strict dist/*
	@$(BIN)/python -m tests.tools.check_release dist

fixtures: setup java ## Write what the present version leaves behind, before its release (3 minutes)
	@$(BIN)/python -m tests.tools.released.write

surface: setup ## Write only what people hold on to of the present version: names, keys, options
	@$(BIN)/python -m tests.tools.released.write surface

clean: ## Remove what builds, tests, demo and ui left (the environment stays)
	@rm -rf build dist .airflow .mypy_cache .ruff_cache .hypothesis .pytest_cache spark-warehouse
	@find . -path "./.venv*" -prune -o -name __pycache__ -type d -exec rm -rf {} +
