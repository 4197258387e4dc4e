#!/usr/bin/env bash
# Mono's C# compiler and runtime (16 packages of Debian), for the worker's client in tests/integrations/worker/test_clients.py.
# Fails where they can't be installed, and says why.
set -euo pipefail
packages=(mono-mcs mono-runtime libmono-system-core4.0-cil)

refuse() { echo "C#: $1" >&2; exit 1; }

is_there() { command -v mcs >/dev/null && command -v mono >/dev/null; }

install() {
    "${apt[@]}" update >/dev/null && "${apt[@]}" install --no-install-recommends "${packages[@]}" >/dev/null
}

if ! is_there; then
    command -v apt-get >/dev/null || refuse "there is no apt-get; install mcs and mono by hand"
    apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq)
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || refuse "neither root nor sudo without a password; install ${packages[*]} by hand"
        apt=(sudo -n "${apt[@]}")
    fi
    for attempt in 1 2 3; do # a mirror may be away for a moment
        if install; then break; fi
        [ $attempt -lt 3 ] || refuse "apt-get could not install ${packages[*]}"
        sleep $((attempt * 5))
    done
fi
echo "C#: $(mono --version | head -n 1)"
