#!/usr/bin/env bash
# Builds the wheel and runs the tests of the Python package, with each interpreter of PYTHONS (default: python3).
#
#     crates/python/test.sh [ARGUMENTS OF PYTEST]
#     PYTHONS="python3.11 python3.14" PROFILE=release crates/python/test.sh
#     SUITES="bookworm sid" crates/python/test.sh
#
# The wheel is built once, for the oldest Python that it claims; all interpreters run that file. Environments stay in
# target/python, so only the first run downloads packages. Packages that the tests use if they are there (pandas, pyarrow)
# are installed if that is possible. Ends with status 77 if packages that are needed cannot be installed.
#
# SUITES names suites of Debian: the tests run with their Python, NumPy, pandas, PyTorch and pyarrow too, which debian.sh
# downloads. A suite that cannot be downloaded is left out, with the reason.
set -euo pipefail
cd "$(dirname "$0")"
out=$PWD/../../target/python
profile=${PROFILE:-dev}
mkdir -p "$out"
read -ra pythons <<<"${PYTHONS:-python3}"

# Makes a virtual environment unless it is there, and prints its python.
environment() {
    local python=$1 name
    name=$("$python" -c 'import sys; print("%s-%d.%d" % (sys.implementation.name, *sys.version_info[:2]))')
    [ -x "$out/$name/bin/python" ] || "$python" -m venv "$out/$name"
    echo "$out/$name/bin/python"
}

first=$(environment "${pythons[0]}")
"$first" -m maturin --version >/dev/null 2>&1 || "$first" -m pip install --quiet 'maturin>=1.9,<2' || exit 77
rm -rf "$out/wheels"
# The interpreter is left out: the wheel is for any Python from 3.11 on.
VIRTUAL_ENV=$(dirname "$(dirname "$first")") nice -n 5 "$first" -m maturin build --quiet --profile "$profile" \
    --compatibility linux --out "$out/wheels"
wheel=$(echo "$out"/wheels/*.whl)

for python in "${pythons[@]}"; do
    python=$(environment "$python")
    "$python" -m pip install --quiet --force-reinstall --no-deps "$wheel"
    "$python" -m pip install --quiet "$wheel[test]" || exit 77
    for package in pandas pyarrow; do
        "$python" -c "import $package" 2>/dev/null || "$python" -m pip install --quiet --only-binary :all: "$package" ||
            echo "$package cannot be installed: its tests skip"
    done
    echo "$("$python" --version), $(basename "$wheel")"
    # `python -m pytest` would import the sources of this folder, which lack the native module.
    "$(dirname "$python")/pytest" -q -p no:cacheprovider "$@"
done

# Debian's Python takes no packages from pip, so the wheel is unpacked, which is all that its installation does.
for suite in ${SUITES:-}; do
    python=$(./debian.sh "$suite") || { echo "not run with Debian's $suite"; continue; }
    rm -rf "$out/$suite/site"
    "$python" -m zipfile -e "$wheel" "$out/$suite/site"
    echo "$("$python" --version) of Debian's $suite, $(basename "$wheel")"
    PYTHONPATH=$out/$suite/site "$python" -P - <<'EOF'
import importlib
for name in ("numpy", "pandas", "torch", "pyarrow"):
    try:
        print(name, importlib.import_module(name).__version__)
    except ImportError as error:
        print(f"no {name}: {error}")
EOF
    PYTHONPATH=$out/$suite/site "$python" -P -m pytest -q -p no:cacheprovider "$@"
done
