"""Signatures: keys of one's own, and envelopes (DSSE) that anyone can verify offline with the public key.

Keys are named (`file:`, `env:`) and never written. The signing libraries are imported only where something is signed or
verified.
"""
