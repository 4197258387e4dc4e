#!/usr/bin/env bash
# The system's libraries that Qt draws windows into memory with, for tests/test_sample_desktop*.py. PySide6 must be in the
# Python environment already (pip install -r samples/desktop/requirements.txt).
# Fails where they can't be installed, and says why.
set -euo pipefail
packages=(libegl1 libgl1 libxkbcommon0 libdbus-1-3 libfontconfig1 libglib2.0-0 fonts-dejavu-core)

refuse() { echo "Qt: $1" >&2; exit 1; }

draws() {
    QT_QPA_PLATFORM=offscreen python -c 'from PySide6.QtWidgets import QApplication, QLabel
QApplication([]), QLabel("text").grab()' 2>&1
}

install() {
    "${apt[@]}" update >/dev/null && "${apt[@]}" install --no-install-recommends "${packages[@]}" >/dev/null
}

if ! lack=$(draws); then
    python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("PySide6") is None)' ||
        refuse "PySide6 is not in this environment; pip install -r samples/desktop/requirements.txt"
    command -v apt-get >/dev/null || refuse "there is no apt-get; install by hand what this asks for: $lack"
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
    lack=$(draws) || refuse "it does not draw: $lack"
fi
echo "Qt: $(python -c 'import PySide6.QtCore as q; print(q.qVersion())')"
