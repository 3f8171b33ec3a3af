"""Everything that is shown: verdicts, tables, timelines, traces, pictures and the page."""
