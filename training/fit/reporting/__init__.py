"""What a rank reports to its node's supervisor: its activity, its steps, its times and its end. Decides nothing."""
