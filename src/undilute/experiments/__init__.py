"""Measurements that become a table or a figure, one file each."""
