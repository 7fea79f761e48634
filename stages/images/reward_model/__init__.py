"""Stage `reward_model`: a scorer of pictures learns what people prefer."""
