#!/usr/bin/env bash
# Gradescope runs this once, as root, when it builds the image.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y bubblewrap util-linux
python=python3
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    python=python3.11
fi
apt-get install -y $python $python-venv
$python -m venv /opt/mplab
# torch for CPU: the usual one carries gigabytes for CUDA
/opt/mplab/bin/pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
    "/autograder/source/WHEEL[grade]"
/opt/mplab/bin/python -I -c 'from mplab.grading.gradescope_runner import prepare; prepare("/autograder")'
