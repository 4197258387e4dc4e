"""What a packed application needs beside the modules, which PyInstaller finds by itself: the files of the package.

The demo model (28 MB) stays out with hooksconfig={"embedllm": {"demo": False}} in the spec file's Analysis.
"""

from __future__ import annotations

from PyInstaller.depend.imphookapi import PostGraphAPI
from PyInstaller.utils.hooks import collect_data_files, copy_metadata, get_hook_config

from embedllm.backends.devices.drivers import MODULES
from embedllm.backends.system.ort_builds import builds

_DEMO = "demo/*"
_NOT_TAKEN = ["backends/*", "export/*", "web/*", "web/**/*"]  # a browser's; those of the other two are named below


def hook(hook_api: PostGraphAPI) -> None:
    """Adds the demo, the models that devices are probed with, and the record of the build of ONNX Runtime."""
    has_demo = get_hook_config(hook_api, "embedllm", "demo") is not False
    hook_api.add_datas(collect_data_files("embedllm", excludes=_NOT_TAKEN + ([] if has_demo else [_DEMO])))
    hook_api.add_datas(collect_data_files("embedllm.backends"))
    hook_api.add_datas(collect_data_files("embedllm.export"))  # the built-in calibration text
    hook_api.add_imports(*MODULES)  # which are imported by their names
    for build in builds():
        hook_api.add_datas(copy_metadata(build.name))  # devices() tells two builds that overwrite each other by it
