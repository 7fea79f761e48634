"""Final answers as text: finding them in a response, and deciding exactly whether two agree."""
