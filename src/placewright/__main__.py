"""`python -m placewright`, for where the script is not on the path."""

from placewright.cli import main

if __name__ == "__main__":
    main()
