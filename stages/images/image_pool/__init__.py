"""The image pool: generated and foreign images of a round, safely decoded, each once."""
