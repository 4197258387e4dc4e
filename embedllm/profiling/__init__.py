"""What measures and describes: speed (bench), the fastest device (tuning), folders and devices (inspection)."""
