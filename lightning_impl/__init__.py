"""The same run, handed to Lightning's Trainer."""
