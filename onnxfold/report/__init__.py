"""Reports of optimize and inspect: JSON, the table on the terminal, the HTML page."""
