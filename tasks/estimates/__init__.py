"""What a run will need before it is begun: memory, time and cost, and the cheapest machines that do."""
