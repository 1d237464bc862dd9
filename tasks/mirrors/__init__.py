"""What the mirrors are still to be told, and what they are told. Nothing is read from a mirror to decide something."""
