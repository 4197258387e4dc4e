#!/usr/bin/env bash
# Runs a command with a software Vulkan driver (Mesa's lavapipe), for the tests of WebGPU:
#     .ci/lavapipe.sh pytest -m webgpu tests/backends/gpu/test_webgpu.py
# The command gets EMBEDLLM_ALLOW_SOFTWARE_GPU=1 and time for a probe; the tests need pip install -e ".[test,webgpu]".
# On Debian and its kin, as root or where user namespaces are allowed. Exits with 77, and says why, where it cannot.
#
# Debian 12 has a Mesa that is too old for WebGPU, and in its backports one whose LLVM 15 takes two to five times as long
# for the shaders as the LLVM 19 of Debian 13. So Debian 13's packages are unpacked into build/lavapipe (nothing is
# installed) and laid over the system's libraries, its C library among them, in a mount namespace of the command's own.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=trixie libc=2.41 place=$PWD/build/lavapipe
keys=/usr/share/keyrings/debian-archive-keyring.gpg

cannot() { echo "lavapipe: skipped: $1" >&2; exit 77; }

[ $# -gt 0 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
command -v "$1" >/dev/null || { echo "lavapipe: there is no command '$1'" >&2; exit 127; }
for tool in apt-get dpkg-deb unshare getconf; do
    command -v "$tool" >/dev/null || cannot "there is no $tool, as on Debian"
done
[ -r "$keys" ] || cannot "there is no $keys, which Debian's packages are checked with"
as_root=(unshare --mount)
[ "$(id -u)" = 0 ] || as_root=(unshare --mount --map-root-user)
"${as_root[@]}" true 2>/dev/null || cannot "neither root nor allowed to make a mount namespace"

fetch() {
    local work=$place.partial
    rm -rf "$work"
    mkdir -p "$work"/{lists,cache/archives}/partial "$work/root"
    : >"$work/status" # as if nothing were installed: all that Mesa needs comes along
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main" >"$work/sources.list"
    local options=(-qq -y -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists"
        -o Dir::State::status="$work/status" -o Dir::Cache="$work/cache" -o APT::Sandbox::User= -o Debug::NoLocking=1)
    apt-get "${options[@]}" update >&2 || cannot "Debian's list of packages cannot be fetched"
    apt-get "${options[@]}" install --download-only --no-install-recommends mesa-vulkan-drivers libvulkan1 >&2 ||
        cannot "Mesa cannot be fetched from Debian"
    local package
    for package in "$work"/cache/archives/*.deb; do
        dpkg-deb --extract "$package" "$work/root"
    done
    rm -rf "$work"/{lists,cache,status,sources.list}
    mkdir "$work/shaders"
    rm -rf "$place"
    mv "$work" "$place"
}

[ -d "$place" ] || fetch
libraries=$(dirname "$(ls "$place"/root/usr/lib/*/libvulkan_lvp.so)")
system=/usr/lib/$(basename "$libraries")
if dpkg --compare-versions "$(getconf GNU_LIBC_VERSION | cut -d' ' -f2)" ge "$libc"; then
    # a newer system keeps its own C and C++ libraries
    rm -f "$libraries"/{ld-linux*,libc.so*,libm.so*,libmvec*,libpthread*,libdl*,librt*,libresolv*,libanl*,libnss_*,libutil*,libstdc++*,libgcc_s*}
fi
cat >"$place/driver.json.$$" <<EOF
{"file_format_version": "1.0.0", "ICD": {"api_version": "1.4.305", "library_path": "$libraries/libvulkan_lvp.so"}}
EOF
# the outcome of a probe is kept for as long as this file's time is the same, so it is replaced only by another text
if cmp --quiet "$place/driver.json.$$" "$place/driver.json"; then
    rm "$place/driver.json.$$"
else
    mv "$place/driver.json.$$" "$place/driver.json"
fi
runtime=$(mktemp -d)
trap 'rm -rf "$runtime"' EXIT
export VK_DRIVER_FILES=$place/driver.json XDG_RUNTIME_DIR=$runtime MESA_SHADER_CACHE_DIR=$place/shaders
export EMBEDLLM_ALLOW_SOFTWARE_GPU=1 ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1
export EMBEDLLM_PROBE_TIMEOUT=${EMBEDLLM_PROBE_TIMEOUT:-600} # seconds; of the usual 120 the probe was seen to take 100
over='mount -t overlay overlay -o "lowerdir=$0:$1" "$1" || { echo "lavapipe: skipped: no overlay can be mounted" >&2; exit 77; }'
"${as_root[@]}" bash -c "$over; shift; exec \"\$@\"" "$libraries" "$system" "$@"
