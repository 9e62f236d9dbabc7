"""The workloads: one folder each, with the definitions in every framework side by side."""
