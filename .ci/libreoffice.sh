#!/usr/bin/env bash
# LibreOffice Writer without a display, and the system's Python with uno, for tests/samples/test_directml_plugin.py.
# Never fails: where they can't be installed it says why, and those tests are skipped with that reason.
set -uo pipefail

is_there() { command -v soffice >/dev/null && /usr/bin/python3 -c 'import uno' 2>/dev/null; }

install() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq)
    if [ "$(id -u)" -ne 0 ]; then
        sudo -n true 2>/dev/null || { echo "neither root nor sudo without a password"; return 1; }
        apt=(sudo -n "${apt[@]}")
    fi
    command -v apt-get >/dev/null || { echo "no apt-get; install LibreOffice Writer and its Python bridge by hand"; return 1; }
    "${apt[@]}" update >/dev/null 2>&1
    "${apt[@]}" install --no-install-recommends libreoffice-writer-nogui python3-uno 2>&1 >/dev/null | tail -n 3
    is_there || { echo "apt-get could not install libreoffice-writer-nogui and python3-uno"; return 1; }
}

is_there || install || { echo "LibreOffice is not here; its tests are skipped"; exit 0; }
echo "LibreOffice: $(soffice --version 2>/dev/null | head -n 1)"
