"""Programs that check this project's own claims; none of them is part of the installed package."""
