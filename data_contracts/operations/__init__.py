"""Records of a service in operation: nodes, sensors, backups, deliveries to mirrors, and its objectives."""
