"""The loops of TFRecord in native code, compiled by Numba; imported only where TFRecord is used."""
