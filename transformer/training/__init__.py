"""Training: objectives, the step, the optimizer. On top of them: methods, the loop, plans of jobs."""
