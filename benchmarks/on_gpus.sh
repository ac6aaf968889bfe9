#!/bin/sh
# All that needs GPUs, one after the other on the machine it runs on: the suites, their self-test,
# tests/gpu, each figure beside nvbandwidth's, and `gpuxfer watch` around known traffic.
#
#     benchmarks/on_gpus.sh OUT [PATH_OF_NVBANDWIDTH]
#
# From a checkout whose package is installed. OUT gets the JUnit file, the record, and what each
# step printed; the end of that is shown. The exit status is that of the first step that failed.

out=$1 nvbandwidth=$2 status=0
mkdir -p "$out" || exit 2

step() { # NAME SECONDS COMMAND...
    name=$1 seconds=$2
    shift 2
    timeout "$seconds" "$@" >"$out/$name.txt" 2>&1
    ended=$?
    echo "== $name: status $ended"
    tail -n 60 "$out/$name.txt"
    if [ "$status" -eq 0 ]; then status=$ended; fi
}

suites="--pyargs pytest_gpuxfer.suites --gpuxfer-hw=auto --gpuxfer-gpus=visible"
step suites 1200 pytest -q $suites --junitxml="$out/junit.xml" --gpuxfer-out="$out"
step selftest 60 pytest -q $suites --gpuxfer-selftest
GPUXFER_REQUIRE_GPU=1 step tests 180 pytest -q tests/gpu
if [ -n "$nvbandwidth" ]; then
    step nvbandwidth 300 python3 -m benchmarks.against_nvbandwidth "$nvbandwidth"
fi
step watch 60 gpuxfer watch -- python3 benchmarks/watch_known_traffic.py 60
exit "$status"
