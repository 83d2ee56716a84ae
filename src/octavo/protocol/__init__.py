"""Values that cross seams: requests, outputs, plans, errors."""
