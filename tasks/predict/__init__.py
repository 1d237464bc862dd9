"""`predict`: what a model version is given, looked up in the store, and the child that predicts. Writes no store."""
