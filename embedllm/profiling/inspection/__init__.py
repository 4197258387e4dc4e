"""Reports on a package and on the devices of this machine."""
