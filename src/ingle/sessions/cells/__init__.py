"""One cell after another: turns, deadlines, input, output, history."""
