"""A false row of the operator table deceives the planner; the proof refuses what comes of it."""
