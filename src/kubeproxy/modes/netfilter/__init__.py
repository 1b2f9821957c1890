"""What several modes share: iptables rules as items, their text, and the tools behind them."""
