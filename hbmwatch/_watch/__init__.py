"""The public entry points: the decorator, the `with` block, and the stages of compilation."""
