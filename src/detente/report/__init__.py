"""One page description, told four ways: terminal text, Markdown, HTML, and the JSON of the Result itself."""
