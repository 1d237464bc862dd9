"""What a run shows while it is carried out: its metrics, as Prometheus pulls them or a gateway gets them."""
