"""Systems: a model with its objective, searches and scores."""
