"""Commands about the console, the page of `ingle serve`."""
