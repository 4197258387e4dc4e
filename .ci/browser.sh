#!/usr/bin/env bash
# Chromium and the npm packages of bindings_web, for the tests marked `browser`. Node.js 20 or newer must be there.
# Fails where they can't be installed, and says why.
set -euo pipefail
cd "$(dirname "$0")/.."
. .ci/apt.sh

refuse() { echo "browser tests: $1" >&2; exit 1; }

command -v node >/dev/null || refuse "Node.js is not here; install Node.js 20 or newer, with npm"
[ "$(node -p 'process.versions.node.split(".")[0]')" -ge 20 ] || refuse "Node.js is $(node --version); 20 or newer is needed"

# the headless shell for pages, where the distribution has it; the whole browser for its extensions
command -v chromium >/dev/null && command -v chromium-headless-shell >/dev/null || {
    apt_install chromium chromium-headless-shell >/dev/null || command -v chromium >/dev/null ||
        why=$(apt_install chromium) || refuse "$why"
}

(cd bindings_web && npm ci --no-audit --no-fund --loglevel=error)
echo "browser tests: Chromium $(chromium --product-version 2>/dev/null || chromium --version 2>/dev/null), Node.js $(node --version)"
