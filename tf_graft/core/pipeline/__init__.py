"""A gradient's way into the variables, stage by stage; `engine` calls the others."""
