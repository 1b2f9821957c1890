"""Benchmarks: this program and upstream's kube-proxy side by side, and how our work grows.

    run ─▶ world (API server, namespaces) ─▶ control, traffic ─▶ records ─▶ table, charts, document
    growth: counts calls, bytes and items per change; needs neither Go nor an API server

Times of commits come from the kernel, never from either program. Everything happens in network
namespaces made for the run. Each mode may have a module of its own here for figures that concern
it alone.
"""
