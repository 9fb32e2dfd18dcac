"""Linear attention: the gated delta rule and state space duality."""
