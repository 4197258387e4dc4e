#!/usr/bin/env bash
# The system's libraries that Qt draws windows into memory with, for tests/samples/test_desktop*.py. PySide6 must be in the
# Python environment already (pip install -r samples/desktop/requirements.txt).
# Fails where they can't be installed, and says why.
set -euo pipefail
. "$(dirname "$0")/apt.sh"
packages=(libegl1 libgl1 libxkbcommon0 libdbus-1-3 libfontconfig1 libglib2.0-0 fonts-dejavu-core)

refuse() { echo "Qt: $1" >&2; exit 1; }

draws() {
    QT_QPA_PLATFORM=offscreen python -c 'from PySide6.QtWidgets import QApplication, QLabel
QApplication([]), QLabel("text").grab()' 2>&1
}

if ! lack=$(draws); then
    python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("PySide6") is None)' ||
        refuse "PySide6 is not in this environment; pip install -r samples/desktop/requirements.txt"
    why=$(apt_install "${packages[@]}") || refuse "$why (Qt: $lack)"
    lack=$(draws) || refuse "it does not draw: $lack"
fi
echo "Qt: $(python -c 'import PySide6.QtCore as q; print(q.qVersion())')"
