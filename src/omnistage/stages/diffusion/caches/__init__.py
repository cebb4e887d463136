"""What is reused between the denoising steps of a picture: one file for each way to tell that a step can do without its blocks."""
