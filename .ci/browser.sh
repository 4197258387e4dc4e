#!/usr/bin/env bash
# Chromium and the npm packages of bindings_web, for the tests marked `browser`. Node.js 20 or newer must be there.
# Fails where they can't be installed, and says why.
set -euo pipefail
cd "$(dirname "$0")/.."

refuse() { echo "browser tests: $1" >&2; exit 1; }

command -v node >/dev/null || refuse "Node.js is not here; install Node.js 20 or newer, with npm"
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || refuse "Node.js is $(node --version); 20 or newer is needed"

if ! command -v chromium >/dev/null; then
    command -v apt-get >/dev/null || refuse "there is no apt-get; install Chromium by hand"
    apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq)
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || refuse "neither root nor sudo without a password; install Chromium by hand"
        apt=(sudo -n "${apt[@]}")
    fi
    "${apt[@]}" update >/dev/null
    "${apt[@]}" install --no-install-recommends chromium >/dev/null
fi

(cd bindings_web && npm ci --no-audit --no-fund --loglevel=error)
echo "browser tests: Chromium $(chromium --product-version 2>/dev/null || chromium --version 2>/dev/null), Node.js $(node --version)"
