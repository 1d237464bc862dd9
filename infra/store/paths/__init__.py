"""Parts of `infra.store.layout`, which has all paths of a store: one module for each kind of record."""
