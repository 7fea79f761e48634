"""Stage demonstrate: supervised data from web solutions, given solutions and a policy's correct responses."""
