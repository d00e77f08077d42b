"""The paper's tables and figures, made by `keepad reproduce`: checkpoints, variants for `keepad.evaluate`, one page."""
