"""Stage `respond`: samples a policy's responses to every benchmark problem and keeps them all."""
