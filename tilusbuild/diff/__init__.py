"""The verbs `diff` and `explain`: how programs differ from those of another build."""
