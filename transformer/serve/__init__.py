"""A server of trained models, over HTTP: `transformer serve RUN`."""
