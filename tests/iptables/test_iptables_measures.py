"""What the iptables mode publishes is what the metrics know."""

from kubeproxy.facts.ids import Family
from kubeproxy.modes.iptables.mode import IptablesBackend
from kubeproxy.modes.iptables.options import Features, Options
from kubeproxy.status.metrics import Metrics
from kubeproxy.sync.report import RoundReport


def test_figures_of_a_round_are_known_metrics_where_the_kernel_counts_packets() -> None:
    """Packet counters are read when scraped; they are no figures of a round."""
    backend = IptablesBackend(Family.IPV4, Options())
    backend.use_features(Features(has_invalid_counter=True, has_localhost_counter=True))
    measures = tuple(backend.measures())
    report = RoundReport(Family.IPV4, True, 1.0, 0.1, measures=measures)
    Metrics("iptables").observe_round(report)
    assert {m.metric for m in measures} >= {"kubeproxy_sync_proxy_rules_iptables_total"}


def test_a_counter_the_kernel_does_not_have_is_not_asked_for() -> None:
    """Without the accounting object there is nothing to read."""
    backend = IptablesBackend(Family.IPV4, Options())
    backend.use_features(Features(has_invalid_counter=False, has_localhost_counter=False))
    assert backend.packet_count("ct_state_invalid_dropped_pkts") is None
