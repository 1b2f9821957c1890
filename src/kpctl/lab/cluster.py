"""A whole lab: namespaces, echo servers, probes and proxies, as one thing to open and close.

    async with Lab(topology) as lab:
        lab.proxies.write("objects", manifests)
        await lab.proxies.start("nftables", {})
        outcome = await lab.prober.probe(target)

Leaving the block removes everything, and so does the end of the process, whatever its cause.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from types import TracebackType

from kpctl.lab.conntrack import forget_flows
from kpctl.lab.echo import EchoServers, Listening
from kpctl.lab.namespaces import Namespaces
from kpctl.lab.probe import Prober
from kpctl.lab.proxy import Proxies
from kpctl.lab.topology import Topology
from kubeproxy.facts.ids import Family, Protocol


class Lab:
    """An open lab."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.namespaces = Namespaces(topology)
        self.echo = EchoServers(self.namespaces)
        self.prober = Prober(self.namespaces)
        self._directory = Path(tempfile.mkdtemp(prefix="kplab-"))
        self.proxies = Proxies(self.namespaces, self._directory)

    async def __aenter__(self) -> Lab:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Remove everything."""
        try:
            await self.proxies.stop(signal.SIGKILL)
        finally:
            self.prober.close()
            self.echo.close()
            self.namespaces.close()
            shutil.rmtree(self._directory, ignore_errors=True)

    def forget_flows(self) -> None:
        """Empty the conntrack tables of the nodes."""
        for node in self.topology.nodes:
            with self.namespaces.inside(node.name):
                forget_flows()

    def listen(self, host: str, protocol: Protocol, port: int) -> None:
        """Open an echo port on a host's address of each family."""
        for family in Family:
            address = self.topology.host(host).addresses.of(family)
            self.echo.listen(Listening(host, address, family, protocol, port))

    def hang_up(self, host: str, protocol: Protocol, port: int) -> None:
        """Close an echo port again, so that the endpoint fails."""
        for family in Family:
            address = self.topology.host(host).addresses.of(family)
            self.echo.stop(Listening(host, address, family, protocol, port))
