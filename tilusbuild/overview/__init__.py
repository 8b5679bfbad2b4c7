"""The verbs `report` and `dispatch`: what builds cost, and which program serves which sizes."""
