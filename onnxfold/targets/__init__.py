"""What each target has operators for, what they cost, and what runtimes make of them."""
