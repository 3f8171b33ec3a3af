"""Programs that check the claims of this project; they are not part of the installed package."""
