"""The whole-model proof: eager, torch.compile and forged, on inputs the search never saw."""
