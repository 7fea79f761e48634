"""Stage `respond`: samples a policy's responses to every benchmark problem and keeps all of them."""
