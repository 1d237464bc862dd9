"""The paths of a store, one module for each kind of record. `infra.store.layout` has the other paths."""
