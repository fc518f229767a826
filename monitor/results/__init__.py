"""result.json and what people and programs read of it."""
