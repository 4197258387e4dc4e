#!/usr/bin/env bash
# LibreOffice Writer without a display, and the system's Python with uno, for tests/samples/test_directml_plugin.py.
# Never fails: where they can't be installed it says why, and those tests are skipped with that reason.
set -uo pipefail
. "$(dirname "$0")/apt.sh"

is_there() { command -v soffice >/dev/null && /usr/bin/python3 -c 'import uno' 2>/dev/null; }

install() {
    why=$(apt_install libreoffice-writer-nogui python3-uno) && is_there
}

is_there || install || { echo "LibreOffice is not here; its tests are skipped: ${why:-it does not start}"; exit 0; }
echo "LibreOffice: $(soffice --version 2>/dev/null | head -n 1)"
