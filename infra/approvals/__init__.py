"""Questions to people before a promotion, their answers, and the aliases that ask for them whatever a spec says.

Who decides to ask is in `tasks`.
"""
