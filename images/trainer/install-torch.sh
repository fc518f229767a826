#!/bin/sh
# Install uv and the torch that torch.txt pins, into the environment of the Python given. For the node image and for
# local runs alike. All packages are held to the hashes of a lock file, but for torch and torchvision from another index
# than the default one: builds of one version differ by index, so those two are held to their versions alone.
#   images/trainer/install-torch.sh .venv/bin/python
# Environment:
#   WHEEL_INDEX    a package index that is asked first (a company's mirror, or one that has CPU wheels of torch)
#   SSL_CERT_FILE  a CA bundle to trust, when the network answers with certificates of its own
set -eu
here=$(dirname "$0")
python=$1
[ -z "${SSL_CERT_FILE:-}" ] || export PIP_CERT="$SSL_CERT_FILE"

say() { echo "install-torch: $*"; }
pip_install() { "$python" -m pip install --quiet --disable-pip-version-check "$@"; }
uv() { "$python" -m uv "$@"; }

if ! uv --version >/dev/null 2>&1; then
    if [ -z "${WHEEL_INDEX:-}" ] || \
        ! pip_install --index-url "$WHEEL_INDEX" --only-binary :all: --require-hashes -r "$here/uv.txt" 2>/dev/null; then
        pip_install --only-binary :all: --require-hashes -r "$here/uv.txt"
    fi
fi
# Wheels alone: what builds a source archive would be fetched without a hash and run.
uv_install() { uv pip install --quiet --no-build --python "$python" "$@"; }
torch() { uv_install -r "$here/torch.txt" --constraints "$here/torch-deps.txt" "$@"; } # uv checks a constraint's hashes

if [ -n "${WHEEL_INDEX:-}" ]; then
    say "torch from WHEEL_INDEX, then the default index"
    # First-match: that index may have a package, but not the version we pin.
    torch --index "$WHEEL_INDEX" --index-strategy unsafe-first-match --compile-bytecode
elif UV_HTTP_RETRIES=0 torch --torch-backend cpu --dry-run 2>/dev/null; then  # a CPU build is a tenth of the size
    torch --torch-backend cpu --compile-bytecode
else
    say "PyTorch's index of CPU wheels does not answer: torch from the default index (a larger build, it runs on the CPU too)"
    uv_install --require-hashes -r "$here/torch-pypi.txt" -r "$here/torch-deps.txt" --compile-bytecode
fi
say "$("$python" -c 'import torch; print("torch", torch.__version__)')"
