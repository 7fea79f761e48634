"""Stage `t2i_base`: the generator that the text-to-image branch starts from."""
