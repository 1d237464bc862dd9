"""The packages that a user's code needs beside ours: resolved once, sealed with the code, installed per machine."""
