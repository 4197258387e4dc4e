#!/usr/bin/env bash
# Mono's C# compiler and runtime (16 packages of Debian), for the worker's client in tests/integrations/worker/test_clients.py.
# Fails where they can't be installed, and says why.
set -euo pipefail
. "$(dirname "$0")/apt.sh"
packages=(mono-mcs mono-runtime libmono-system-core4.0-cil)

refuse() { echo "C#: $1" >&2; exit 1; }

is_there() { command -v mcs >/dev/null && command -v mono >/dev/null; }

if ! is_there; then
    why=$(apt_install "${packages[@]}") || refuse "$why"
fi
echo "C#: $(mono --version | head -n 1)"
