"""Studies: one module per table or figure of the documents, run by `python -m keepad.studies.NAME`.

A study is a list of variants for `keepad.evaluate`; it measures nothing itself.
"""
