"""What optimize and inspect tell: JSON, the table on the terminal, the HTML page."""
