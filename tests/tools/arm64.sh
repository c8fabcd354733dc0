#!/usr/bin/env bash
# Before a release: are numbers, arithmetic, matrix units and linear systems the same on ARM64?
#   tests/tools/arm64.sh FOLDER    compares the digests of an emulated processor with the stored ones
# On Debian 12, whose Python is 3.11, with qemu-user-static and pip, and once, as root:
#   dpkg --add-architecture arm64 && apt-get update
# FOLDER gets 0.5 GB. The first time takes about half an hour, because numba compiles emulated, too.
set -euo pipefail
folder=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
python=python3.11
if [ ! -e "$folder/made" ]; then
    mkdir -p "$folder"/{debs,root,wheels,site}
    packages=(lib$python-minimal lib$python-stdlib $python-minimal libc6 libgcc-s1 libstdc++6 zlib1g
        libbz2-1.0 libexpat1 libffi8 liblzma5 libsqlite3-0 libssl3 libuuid1)
    (cd "$folder/debs" && apt-get download "${packages[@]/%/:arm64}")
    for deb in "$folder"/debs/*.deb; do dpkg-deb -x "$deb" "$folder/root"; done
    mapfile -t versions < <(grep -E '^(numpy|ml_dtypes|numba|llvmlite|lazy-loader|mpmath)==' constraints.txt)
    python3 -m pip download --dest "$folder/wheels" --no-deps --only-binary :all: \
        --implementation cp --python-version 3.11 --platform manylinux_2_28_aarch64 \
        --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 "${versions[@]}"
    for wheel in "$folder"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$folder/site"; done
    touch "$folder/made"
fi
export PYTHONPATH=$folder/site:$PWD PYTHONDONTWRITEBYTECODE=1 NUMBA_CACHE_DIR=$folder/cache
qemu-aarch64-static -cpu max -L "$folder/root" "$folder/root/usr/bin/$python" \
    -m mplab.commands.reproducibility | tee "$folder/digests.txt" |
    diff - mplab/commands/reproducibility.txt
echo "ARM64 has the digests of all other machines."
