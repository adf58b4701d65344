# make = the list of targets. Every target installs what it needs (Debian packages only as root).
PYTHON ?= python3
# make deb PYTHON=3.9: a version names the Python of the machines a package is for, not the one used here.
TARGET := $(filter 3.%,$(PYTHON))
# make deb ARCH=aarch64: the architecture of the machines a package is for.
ARCH ?= x86_64
RELEASE ?= 1
RUNTIME ?= demo
# What the tests of make e2e run on: the machine's containerd, or containerd-1.7, containerd-2, cri-o.
CRI ?= containerd
# Which of them; in .ci/run: those of the runtime's NRI, on containerd 2.
E2E ?= tests/e2e
# The run of make e2e-vm-resctrl: hygon, or ends, amd, intel, which are long.
RESCTRL ?= hygon
# Seconds of make bench-soak.
SOAK ?= 3600
# Tests at a time.
WORKERS ?= 2
# What make test-mutations changes: a package or a module, so many mutants, those of this number.
MODULE ?= policies
SAMPLE ?= 30
SEED ?= 1
VENV := .venv
BIN := $(VENV)/bin
# What tools/debian-packages could not install without taking something away is there.
BESIDE := $(CURDIR)/.cache/beside/usr
export PATH := $(BESIDE)/sbin:$(BESIDE)/bin:$(PATH)
DEBIAN := containerd runc containernetworking-plugins iproute2 iptables busybox-static
# What the tests of real traffic need besides.
TRAFFIC := nginx wrk python3-bpfcc gcc libc6-dev util-linux
# What the model of caches is built and tested with.
CACHE := qemu-user gcc libc6-dev
# What the test of `top` has as its terminal.
TERMINAL := tmux
# What the tests of the page have as its browser.
BROWSER := chromium chromium-driver
# What builds and boots a virtual machine.
VIRTUAL := qemu-system-x86 mmdebstrap e2fsprogs cpio kmod busybox-static gcc libc6-dev dpkg
# What the QEMU with resctrl is built with.
QEMU := meson ninja-build pkg-config gcc libc6-dev libglib2.0-dev libpixman-1-dev libfdt-dev libattr1-dev libcap-ng-dev
# What arm64 machines need besides.
ARM := qemu-system-arm qemu-user-static gcc-aarch64-linux-gnu libc6-dev-arm64-cross device-tree-compiler
# What a control plane's certificates are made with.
CLUSTER := util-linux openssl
# What a node's shutdown is announced with.
LOGIND := dbus-daemon dbus-bin systemd
# What runc is built with.
PEERS := gcc libc6-dev libseccomp-dev pkg-config
# What CRI-O's containers are watched by, and what gives it images.
CRIO := conmon skopeo
# What packages are built, looked at and installed with.
PACKAGING := debootstrap rpm cpio rpmlint lintian e2fsprogs

.PHONY: help setup proto compiled source demo say-demo demo-affinity demo-cluster test test-source test-39 test-arm test-long test-mutations lint peers e2e e2e-crio e2e-cluster e2e-kubelet e2e-cri-tools resctrl-qemu e2e-vm e2e-vm-resctrl e2e-vm-isolation e2e-vm-arm e2e-vm-life e2e-vm-shown e2e-vm-old bench bench-short bench-placement bench-peers bench-observer bench-affinity bench-cache-model bench-cache bench-cache-long bench-soak bench-cluster run docs packages deb rpm image chart clean

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# What the environment is made from. `.runs`: the project can run in it; `.ready`: it can be tested and linted as well.
PARTS := setup.cfg pyproject.toml cri_api/build_protos.py $(wildcard cri_api/*.proto)

$(VENV)/.runs: $(PARTS)
	@tools/prepare-venv $(if $(TARGET),python3,$(PYTHON)) $(VENV) demo
	@touch $@

$(VENV)/.ready: $(PARTS)
	@tools/prepare-venv $(if $(TARGET),python3,$(PYTHON)) $(VENV) test,lint
	@touch $(VENV)/.runs $@

setup: $(VENV)/.ready ## The virtual environment, with everything in it

proto: setup ## Make the protobuf modules (cri_api/*_pb2.py)
	$(BIN)/python -m cri_api.build_protos

demo: say-demo $(VENV)/.runs ## The main job in one look; RUNTIME=containerd: with a private real containerd (root)
	@$(if $(filter containerd,$(RUNTIME)),tools/debian-packages $(DEBIAN) &&,) $(BIN)/python -m demo --runtime $(RUNTIME)

say-demo:
	@echo "make demo: pods of 1 to 64 CPUs through the real daemon, on a described machine of 128 CPUs; nothing of this machine is changed"

demo-affinity: $(VENV)/.runs ## Containers that talk come together: the graph, the plan, the placement after
	@$(BIN)/python -m demo.affinity

demo-cluster: peers ## nginx and wrk on a real cluster of one node, before and after (root)
	@tools/debian-packages $(DEBIAN) $(CLUSTER) $(TRAFFIC)
	@$(BIN)/python -m demo.cluster

compiled: setup ## What pays is compiled in this tree (mypyc), where a compiler is; again after each change of it
	@tools/debian-packages gcc libc6-dev python3-dev
	@$(BIN)/python packaging/compiled.py

source: ## Take away what was compiled in this tree
	@python3 packaging/compiled.py --remove

test: setup ## All tests; as root also those on a real containerd
	@tools/debian-packages $(DEBIAN) $(TRAFFIC) $(TERMINAL) $(BROWSER) $(PACKAGING) $(CACHE) mmdebstrap
	@$(BIN)/python -m tests.peers --or-without kubectl api.proto
	$(BIN)/python -m pytest --numprocesses=$(WORKERS)

test-source: setup source ## The tests of what can be compiled, from source
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) tests/relay tests/policies tests/test_form.py

test-long: peers ## Minutes of property tests and fuzzing
	@tools/debian-packages $(DEBIAN) $(TRAFFIC) $(TERMINAL) $(BROWSER) $(VIRTUAL) $(ARM) $(PACKAGING) $(CLUSTER) $(LOGIND) $(CACHE)
	HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest --long --vm --kubelet --cluster --cri-tools
	@$(MAKE) --no-print-directory e2e CRI=containerd-1.7
	@$(MAKE) --no-print-directory e2e CRI=containerd-2
	@$(MAKE) --no-print-directory e2e-crio
	@$(MAKE) --no-print-directory test-39
	@$(MAKE) --no-print-directory test-arm

test-mutations: setup ## Mutants of MODULE=policies/exclusive that its own tests do not see; SAMPLE=30, SEED=1 choose them
	@$(BIN)/python -c "import cosmic_ray, coverage" 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[mutations]'
	@$(BIN)/python tools/mutations.py $(MODULE) --sample $(SAMPLE) --seed $(SEED)

test-39: setup ## The unit and functional tests under Python 3.9 and bcc 0.18, in a Debian 11 in a folder (root)
	@tools/debian-packages debootstrap iproute2
	WORKERS=$(WORKERS) tools/old-python

test-arm: setup ## The tests of policies, engine and observer by an arm64 Python 3.9, under qemu-user (root)
	@tools/debian-packages debootstrap qemu-user-static
	ARCH=arm64 WORKERS=$(WORKERS) tools/old-python

peers: setup ## Kubernetes, etcd, containerd 2 and 1.7, runc, crictl, critest, the CRI for the tests, from pinned Go modules; gets Go if there is none
	@tools/debian-packages $(PEERS)
	$(BIN)/python -m tests.peers --get-go

e2e: setup ## Only the tests on a real runtime; CRI=containerd-1.7, containerd-2, cri-o: built (make peers), else the machine's (root)
	@tools/debian-packages $(DEBIAN) $(TRAFFIC) $(if $(filter cri-o,$(CRI)),$(CRIO),)
	$(BIN)/python -m pytest --runtime=$(CRI) $(E2E)

e2e-crio: setup ## Placing, restarts, adopting, NRI and a real kubelet on a real CRI-O, which is built for it (root)
	@tools/debian-packages $(DEBIAN) $(CRIO) $(PEERS)
	$(BIN)/python -m tests.peers --get-go crio pinns runc kubelet
	$(BIN)/python -m pytest --runtime=cri-o $(patsubst %,tests/e2e/test_%.py,runtime_itself placement exclusive restarts adoption drift wrong_cpuset sandboxes system_pods everything_works demand quota nri_plugin nri_hosting nri_apply nri_payloads nri_scheduling isolation_starts claims)
	$(BIN)/python -m pytest --runtime=cri-o --kubelet --long $(patsubst %,tests/kubelet/real/test_%.py,switches placement pods_life lost_replies outages)

e2e-kubelet: peers ## A real kubelet 1.36 on a real containerd 2, static pods and an API server's (KUBELET=PATH: another one) (root)
	@tools/debian-packages $(DEBIAN) $(CLUSTER) $(LOGIND)
	$(BIN)/python -m tests.peers --get-go dra-example-kubeletplugin dracpu
	$(BIN)/python -m pytest -v --kubelet --numprocesses=$(WORKERS) --durations=0 --durations-min=5 tests/kubelet/real

e2e-cri-tools: peers ## critest and crictl on a real containerd 2: the same direct and through the daemon (root)
	@tools/debian-packages $(DEBIAN) util-linux gcc libc6-dev
	$(BIN)/python -m pytest -v --cri-tools --numprocesses=$(WORKERS) --durations=0 --durations-min=5 tests/cri_tools

e2e-cluster: peers ## A real control plane 1.36, nodes, agents and the operator (KUBE_APISERVER, ETCD, KUBELET: others) (root)
	@tools/debian-packages $(DEBIAN) $(CLUSTER) mmdebstrap
	$(BIN)/python -m pytest -v --cluster --numprocesses=$(WORKERS) --durations=0 --durations-min=5 tests/cluster/real

e2e-vm: setup ## The package on a virtual Hygon machine: kernel 6.1, cgroup v2 (root)
	@tools/debian-packages $(VIRTUAL)
	$(BIN)/python -m pytest -v --vm --durations=0 --durations-min=5 tests/vm -k "not old-cgroup and not life and not places- and not shown- and not arm- and not resctrl- and not subjects- and not together- and not clocks-"

resctrl-qemu: setup ## A QEMU whose guests have resctrl, from Debian's source; kept in .cache (a quarter of an hour, once)
	@tools/debian-packages $(VIRTUAL) $(QEMU)
	@$(BIN)/python -m tests.vm.qemu

e2e-vm-resctrl: setup ## On that QEMU: the kernel's resctrl as Hygon has it, and what the daemon does there; RESCTRL=ends, amd, intel: others (root)
	@tools/debian-packages $(VIRTUAL)
	$(BIN)/python -m pytest -v --vm --long --durations=0 --durations-min=5 tests/vm -k "resctrl-$(RESCTRL)-"

e2e-vm-isolation: setup ## Isolation beside caches: each subject, on cgroup v2 and v1, and all at once (root)
	@tools/debian-packages $(VIRTUAL)
	$(BIN)/python -m pytest -v --vm --long --durations=0 --durations-min=5 tests/vm -k "test_on_the_virtual_node and (subjects- or together- or clocks-)"

e2e-vm-life: setup ## On that machine: places and nesting; upgrade under load, out of memory, no runtime (root)
	@tools/debian-packages $(VIRTUAL)
	$(BIN)/python -m pytest -v --vm --long --durations=0 --durations-min=5 tests/vm -k "life or places-"

e2e-vm-shown: setup ## What docs/vm.md says a guest must be shown, and machines without: what doctor says there
	@tools/debian-packages $(VIRTUAL)
	$(BIN)/python -m pytest -v --vm --long --durations=0 --durations-min=5 tests/vm -k shown-

e2e-vm-old: setup ## The same on kernel 5.10 with Python 3.9, cgroup v1 and v2 (root)
	@tools/debian-packages $(VIRTUAL)
	$(BIN)/python -m pytest -v --vm --long --durations=0 --durations-min=5 tests/vm -k old-cgroup

e2e-vm-arm: setup ## On arm64 machines like Kunpeng's: kernel 5.10 with cgroup v1 alone, and with v2; 6.1 (root)
	@tools/debian-packages $(VIRTUAL) $(ARM)
	$(BIN)/python -m pytest -v --vm --long --durations=0 --durations-min=5 tests/vm -k arm-

lint: setup ## ruff, mypy --strict, import rules, no task or thread past its supervisor
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config setup.cfg
	$(BIN)/python tools/starts
	$(BIN)/python tools/prints

bench: setup ## Added latency and decision time, side by side; says which kept ratio has become worse
	@tools/debian-packages $(BROWSER)
	$(BIN)/python -m bench

bench-short: setup ## Two minutes: ratios of CPU time, memory and counts against those that are kept (bench/ratios.json)
	$(BIN)/python -m bench.short

bench-placement: setup ## L3s, NUMA nodes and cores of random sequences, beside nri-plugins' policies and the best possible
	@$(BIN)/python -m tests.peers --or-without --get-go nri-topology-aware nri-balloons
	$(BIN)/python -m bench.placement

bench-peers: compiled ## What we add to a call beside Intel's cri-resource-manager and a plain grpc-go relay (root)
	$(BIN)/python -m tests.peers --get-go cri-caller cri-runtime grpc-passthrough intel-cri-resmgr
	$(BIN)/python -m bench.peers --fifo

bench-observer: setup ## What seeing traffic costs nginx and wrk, and the observer itself (root)
	@tools/debian-packages nginx wrk python3-bpfcc
	$(BIN)/python -m bench.observer_cost

bench-affinity: setup ## Plans against the optimum and others, their time, and how much moves
	$(BIN)/python -c "import kahip, leidenalg, pymetis, scipy" 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python -m bench.affinity

bench-cache-model: setup ## What the model of caches counts of programs whose lines are known
	@tools/debian-packages $(CACHE)
	$(BIN)/python -m bench.cache.user_mode

bench-cache: setup resctrl-qemu ## Lines between caches a request, without a manager, in one L3, and there beside a stream, isolated or not: nginx on a virtual Hygon machine, eight and three boots (root; an hour and a half)
	@tools/debian-packages $(VIRTUAL) $(TRAFFIC)
	$(BIN)/python -m bench.cache.virtual --cpusets --boots 8 --runs 1
	$(BIN)/python -m bench.cache.virtual --neighbour --boots 3 --runs 3

bench-cache-long: setup ## The same under every placement, the observer's too: Redis over a unix socket, a producer and a consumer in shared memory (root)
	@tools/debian-packages $(VIRTUAL) $(TRAFFIC) redis-tools
	$(BIN)/python -m bench.cache.virtual --long

bench-soak: setup ## An hour of pods, plugins, an observer and floods on a real containerd; SOAK=180: seconds (root)
	@tools/debian-packages $(DEBIAN) python3-bpfcc
	$(BIN)/python -m bench.soak $(SOAK)

bench-cluster: setup ## Memory, CPU and bytes of a node's agent; the operator's rounds with 5,000 nodes
	$(BIN)/python -m bench.cluster_agent
	$(BIN)/python -m bench.cluster_operator

docs: setup ## Write docs/configuration.md, docs/metrics.md, the CRDs from the tables
	$(BIN)/python -m cri_proxy.config.documents > docs/configuration.md
	$(BIN)/python -m cri_proxy.daemon.metrics_documents > docs/metrics.md
	$(BIN)/python tools/write_crds.py

packages: deb rpm ## Both packages, in dist/

deb: setup ## The Debian package; PYTHON=3.9, ARCH=aarch64: for machines with these
	@tools/debian-packages dpkg
	@$(BIN)/python packaging/build.py deb $(addprefix --python=,$(TARGET)) --architecture $(ARCH) --release $(RELEASE)

rpm: setup ## The rpm; PYTHON=3.9, ARCH=aarch64 as well
	@tools/debian-packages rpm
	@$(BIN)/python packaging/build.py rpm $(addprefix --python=,$(TARGET)) --architecture $(ARCH) --release $(RELEASE)

image: setup ## The image, as an OCI layout with its SBOM, in dist/ (root)
	@tools/debian-packages mmdebstrap dpkg
	@$(BIN)/python packaging/cluster/image.py

chart: setup ## The Helm chart, in dist/chart, from what Kustomize applies
	$(BIN)/python packaging/cluster/chart.py

run: setup ## The daemon in the foreground, with /etc/cri-resmgr; RUNTIME=containerd: before a private containerd with pods (root)
	@$(if $(filter containerd,$(RUNTIME)),tools/debian-packages $(DEBIAN) && $(BIN)/python -m demo.foreground,$(BIN)/cri-resmgr run)

clean: ## Remove everything that was made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache
	rm -f cri_api/*_pb2.py cri_api/*_pb2.pyi
	python3 packaging/compiled.py --remove
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
