"""What a vendor fills in, and what the core calls of it.

`backend` and `builder` say what there is to fill in, `hookspec` how it is handed over, `registry`
who did, `verify` what is wrong with it. Nothing here imports Triton.
"""
