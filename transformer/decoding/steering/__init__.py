"""What changes the outputs of a search: beginnings, terms, rules, names and trees."""
