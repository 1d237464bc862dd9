"""This machine: its settings and limits; and the kinds of machines in the price book with their dated prices."""
