"""The tool for people: look at what kube-proxy would do, try it out, measure it.

It imports the daemon's package and is never imported by it. Its own imports go down only:

    cli                    the command line; the commands themselves are imported when they run
    demo    bench          the lab and its demo as commands; the benchmarks
    flows                  objects, packets and their fate, run against plans, items or a lab
    lab                    a cluster of network namespaces with real traffic and real proxies
    look                   plans and rules from files, without a running proxy
    places    apiserver    network namespaces and a second kernel; API servers, small and real

Folders on one line do not import each other. `demo` has both `kpctl demo` and `kpctl lab`, because
both need flows and a lab; `lab` itself knows nothing of flows. `bench` needs no flows.
"""
