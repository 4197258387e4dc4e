"""OpenVINO on CPUs, Intel's GPUs and NPUs."""
