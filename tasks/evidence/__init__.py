"""Whether one model is better than another on the same rows, and how sure that is: numbers in, numbers out. Nothing
here reads a store, a spec or a file.
"""
