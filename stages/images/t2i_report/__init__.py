"""Stage `t2i_report`: the page of a text-to-image recipe, with its pictures."""
