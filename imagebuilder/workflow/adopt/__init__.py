"""Write a recipe from what people have: an image (`images`) or a requirement file (`requirements`)."""
