"""``detente workloads``: what can be measured."""

from __future__ import annotations

import json

import click

from detente.cli.options import format_option


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@format_option("text", "json")
def command(form: str) -> int:
    """List the workloads with their sizes, contracts, parameters, and the FLOPs of one step.

    The dimensions in brackets are what `detente compare --set KEY=VALUE` overrides.

    \b
    Examples:
      detente workloads
      detente workloads --format json
    """
    from detente.records.contract import CONTRACTS
    from detente.workloads.catalogue import WORKLOADS, find_workload

    found = [find_workload(name) for name in WORKLOADS]
    if form == "json":
        print(
            json.dumps(
                {
                    "schema": "detente/workloads/1",
                    "workloads": [
                        {
                            "name": w.name,
                            "what": w.what,
                            "contracts": list(w.contracts),
                            "definitions": sorted(w.definitions),
                            "source": w.source,
                            "sizes": {s.name: dict(s.dims) for s in w.sizes.values()},
                            "parameters": {s.name: w.parameters(s) for s in w.sizes.values()},
                        }
                        for w in found
                    ],
                }
            )
        )
        return 0
    for w in found:
        print(f"{w.name}: {w.what}")
        for size in w.sizes.values():
            region = CONTRACTS[w.contracts[0]].region
            dims = ", ".join(f"{k} {v}" for k, v in size.dims.items())
            cost = f"{w.flops(size, region) / 1e9:9.3g} GFLOP per {w.contracts[0]}"
            print(f"  {size.name:6} {cost}, {w.parameters(size):,} parameters  ({dims})")
        print(f"  contracts: {', '.join(w.contracts)}; defined in: {', '.join(sorted(w.definitions))}")
    return 0
