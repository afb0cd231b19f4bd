#!/usr/bin/env bash
# Install the built wheel into an environment that has never seen the checkout, and use it from somewhere else.
#   scripts/smoke.sh PYTHON
# torch and triton are lent by PYTHON's environment, as links: they are large, and not what is tested here. Everything
# else that the wheel asks for is installed, so that a dependency it forgets to name is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
python=${1:-python3}

wheels=(dist/tilewright-*.whl)
if [ ${#wheels[@]} -ne 1 ] || [ ! -f "${wheels[0]}" ]; then
    echo "smoke: dist holds ${#wheels[@]} wheels or none; run 'make wheel' first" >&2
    exit 2
fi
wheel=$root/${wheels[0]}

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV TRITON_INTERPRET

echo "smoke: installing $(basename "$wheel")[cli] into a fresh environment"
"$python" -m venv "$place/venv"
lender=$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent.parent)')
borrower=$("$place/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for name in torch functorch triton nvidia cuda; do
    for entry in "$lender/$name"*; do
        if [ -e "$entry" ]; then ln -s "$entry" "$borrower/"; fi
    done
done
"$place/venv/bin/python" -m pip install -qq --disable-pip-version-check -c constraints-cpu.txt "$wheel[cli]"
PATH="$place/venv/bin:$PATH"
cd "$place"

echo "smoke: the command"
tilewright --help >help.txt
grep -q inspect help.txt
tilewright plan 4096x4096x4096 --device h200 --json >plan.json
python -c 'import json; assert json.load(open("plan.json")), "an empty plan"'
status=0
tilewright plan 4096xlarge --device h200 >bad.txt 2>&1 || status=$?
if [ "$status" -ne 2 ] || grep -q Traceback bad.txt; then
    echo "smoke: a bad shape must end with one line and status 2; it ended with status $status:" >&2
    cat bad.txt >&2
    exit 1
fi

echo "smoke: the library"
python - <<'PY'
import importlib.metadata, importlib.resources, pathlib, sys
import torch
import tilewright as tw

assert pathlib.Path(tw.__file__).is_relative_to(sys.prefix), tw.__file__
a, b = torch.randn(33, 65), torch.randn(65, 17)
torch.testing.assert_close(tw.matmul(a, b), a @ b)
assert "h200" in tw.Device.names()
data = importlib.resources.files("tilewright") / "data"
assert any(f.name.endswith(".json") for f in (data / "suites").iterdir()), "the wheel has no suites"
print(f"smoke: tilewright {importlib.metadata.version('tilewright')}, torch {torch.__version__}: the installed wheel works")
PY
