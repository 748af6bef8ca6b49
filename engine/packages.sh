#!/bin/sh
# packages.sh FILE [OPTION...]: installs what a requirements file names and no layer has so far, with further options of
# `uv pip install`, and takes away what the engine can do without. Behind a proxy with an authority of its own, the secret
# `ca` is its bundle.
set -eu

if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca; fi
uv=0.13.9
tools=/var/cache/octavo/uv-$uv
[ -x "$tools/bin/uv" ] || { python3 -m venv "$tools" && "$tools/bin/pip" install "uv==$uv"; }
[ -x /opt/octavo/bin/python ] || python3 -m venv --without-pip /opt/octavo

file=$1
shift
UV_LINK_MODE=copy "$tools/bin/uv" pip install --python /opt/octavo/bin/python --require-hashes -r "$file" "$@"

cd "$(/opt/octavo/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
# What only other programs are compiled and linked with, kernels for another vendor's devices, solvers for several
# devices that nothing loads, and packages' own tests: half a gigabyte of six.
find . -name '*.a' -delete
rm -rf torch/include triton/backends/amd/lib/libtriton_amd_codegen.so nvidia/cu*/lib/libcusolverMg.so.*
rm -rf numpy/*/tests numpy/tests
find sympy mpmath networkx -depth -type d -name tests -exec rm -rf {} + 2>/dev/null || true
# Bytecode of this layer's files; what those below have is up to date and stays there. A file or two, written for another
# version of Python, cannot be compiled, and is never imported.
/opt/octavo/bin/python -m compileall -qq -j 0 . || true
