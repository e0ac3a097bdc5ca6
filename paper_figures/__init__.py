"""One short script per figure of the paper: records in, figure.png, figure.pdf, data.csv and reports out."""
