"""Services and EndpointSlices as YAML, with only what matters to a test spelled out."""

from __future__ import annotations

from collections.abc import Sequence

HTTP = "{name: http, port: 80}"
HTTP_TARGET = "{name: http, port: 8080}"


def service_text(
    address: str | Sequence[str],
    name: str = "web",
    *,
    ports: str = HTTP,
    spec: str = "",
    status: str = "",
) -> str:
    """A Service of the namespace `shop`. `spec` has more fields of it, as flow mappings have them.

    Several addresses are of both families, the first family first.
    """
    every = [address] if isinstance(address, str) else list(address)
    families = ", ".join("IPv6" if ":" in each else "IPv4" for each in every)
    quoted = ", ".join(f'"{each}"' for each in every)
    more = f", {spec}" if spec else ""
    return (
        "---\napiVersion: v1\nkind: Service\n"
        f"metadata: {{name: {name}, namespace: shop}}\n"
        f'spec: {{clusterIP: "{every[0]}", clusterIPs: [{quoted}], ipFamilies: [{families}],'
        f" ports: [{ports}]{more}}}\n" + (f"status: {status}\n" if status else "")
    )


def slice_text(
    *endpoints: str, name: str = "web", number: int = 1, ports: str = HTTP_TARGET
) -> str:
    """A slice of a Service. An endpoint is an address, or a flow mapping."""
    found = [e if e.startswith("{") else f'{{addresses: ["{e}"]}}' for e in endpoints]
    is_six = any("::" in endpoint for endpoint in endpoints)
    return (
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"
        f"metadata: {{name: {name}-{number}, namespace: shop,"
        f" labels: {{kubernetes.io/service-name: {name}}}}}\n"
        f"addressType: {'IPv6' if is_six else 'IPv4'}\nports: [{ports}]\n"
        f"endpoints: [{', '.join(found)}]\n"
    )


def at(address: str, node: str) -> str:
    """An endpoint on a node."""
    return f'{{addresses: ["{address}"], nodeName: {node}}}'
