"""What is shown of learned placers beside their controls."""
