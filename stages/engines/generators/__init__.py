"""Text-to-image generators as diffusers folders: loading, drawing, the denoising loss that trains them."""
