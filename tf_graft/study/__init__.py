"""Studies: many runs of configs that differ, compared in a table and a picture."""
