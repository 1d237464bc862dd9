"""Charts as SVG: pure functions of numbers and texts, without a script, a font or a file.

Colours are CSS variables with a fallback: the report page sets the variables for light and for dark, and a picture that
stands alone, as in a Prefect artifact, takes the fallbacks, which can be read on both.
"""
