"""An analysis becomes a page, figures, JSON and Markdown, with the published numbers beside ours."""
