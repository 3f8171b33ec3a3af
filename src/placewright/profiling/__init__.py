"""This machine as a cluster and a cost table: discovery, measurement, store, calibration."""
