"""Text-to-image generators as diffusers folders: loading, generating, and the denoising loss that trains them."""
