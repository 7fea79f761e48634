"""Pictures of coloured shapes with a prompt, a renderer, and a detector that says how true a picture is.

The small world of the laptop's text-to-image recipe: what people would judge by eye is known here, so that scorers,
annotators and generators are measured against the truth. `scenes` has the prompts, `renderer` draws one picture of a
prompt, `truth` looks at pixels only, wherever they come from.
"""
